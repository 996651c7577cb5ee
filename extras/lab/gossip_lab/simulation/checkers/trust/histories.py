"""Base of the checkers that derive the expected decisions of a round from its history."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from gossip.core import Apply, Commit, PeerId, Report
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    keep_latest,
    on_effect,
    on_report,
)

HISTORIES_KEPT = 512

Decision = tuple[PeerId, str]
"""(peer, event with which a core reports its decision about this peer)."""


class HistoryChecker(Checker):
    """Base of checkers that judge each round when the first peer applies it.

    Attributes:
        decision_events: Events that report decisions. Each decision has to follow from the record
            of the history.
        record_kind: Class of the records. Called with the settings, it creates the record of a
            history without rounds.
        records: Hash of the last round of a history -> record of the history. A record's ``wrong``
            is (peer, error text) if a decision of the core does not follow from the record.
    """

    needs = "rolling"
    decision_events: ClassVar[tuple[str, ...]]
    record_kind: ClassVar[Any]
    _decisions = PerIncarnation(list[Decision])

    def make_records(self) -> None:
        self.records: dict[bytes, Any] = {}

    @abstractmethod
    def follow(self, before: Any, commits: Sequence[Commit], decisions: Sequence[Decision]) -> Any:
        """Return the record after one more round, or None if the round cannot be judged."""

    @on_report("ready")
    def begin_history(self, report: Report) -> None:
        self.records.setdefault(self.rolling.chain, self.record_kind(self.core.settings))

    @on_report("quarantined", "parole", "passed_over", "serves_again")
    def record_decision(self, report: Report) -> None:
        if report.event in self.decision_events:
            self._decisions.append((report.fields["subject"], report.event))

    @on_effect
    def judge_history(self, apply: Apply) -> None:
        done = self.commits
        decisions = self._decisions
        self._decisions = []
        if not done or not self.core.settings.f or done[0].chain in self.records:
            return
        commits = [committed.commit for committed in done]
        # None after a restore of a state with an unknown history
        before = self.records.get(commits[0].parent)
        record = None if before is None else self.follow(before, commits, decisions)
        if record is None:
            return
        if record.wrong is not None:
            peer, text = record.wrong
            raise self.violated(f"peer {peer} {text}")
        self.records[done[0].chain] = record
        keep_latest(self.records, HISTORIES_KEPT)
