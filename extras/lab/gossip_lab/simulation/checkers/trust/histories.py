"""Base of the checkers that judge a round by the history before it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from gossip.core import Apply, Commit, PeerId, Report
from gossip_lab.simulation.checkers.base import Checker, PerLife, keep_latest
from gossip_lab.simulation.checkers.watching import on_effect, on_report

HISTORIES_KEPT = 512

Decision = tuple[PeerId, str]
"""Peer, and the report of a decision of the core about it."""


class HistoryChecker(Checker):
    """Judges each round when the first peer applies it.

    Attributes:
        told: Reports of decisions that the record of a history has to explain.
        record_kind: Class of these records; ``begin`` creates the record of a history without
            rounds.
        records: Records of histories, by the hash of their last round. ``wrong`` of a record is a
            decision of the core that does not follow from it: the peer, and the error.
    """

    needs = "rolling"
    told: ClassVar[tuple[str, ...]]
    record_kind: ClassVar[Any]
    _decisions = PerLife(list[Decision])

    def make_records(self) -> None:
        self.records: dict[bytes, Any] = {}

    @abstractmethod
    def follow(self, before: Any, commits: Sequence[Commit], decisions: Sequence[Decision]) -> Any:
        """Return the record after one more round; None if its history is not known."""

    @on_report("ready")
    def begin_history(self, report: Report) -> None:
        self.records.setdefault(self.rolling.chain, self.record_kind.begin(self.core.settings))

    @on_report("quarantined", "parole", "passed_over", "serves_again")
    def record_decision(self, report: Report) -> None:
        if report.event in self.told:
            self._decisions.append((report.fields["subject"], report.event))

    @on_effect
    def judge_history(self, apply: Apply) -> None:
        done, decisions, self._decisions = self.commits, self._decisions, []
        if not done or not self.core.settings.f or done[0].chain in self.records:
            return
        commits = [committed.commit for committed in done]
        # None if it has restored a state with an unknown history
        before = self.records.get(commits[0].parent)
        record = None if before is None else self.follow(before, commits, decisions)
        if record is None:
            return
        if record.wrong is not None:
            peer, text = record.wrong
            raise self.violated(f"peer {peer} {text}")
        self.records[done[0].chain] = record
        keep_latest(self.records, HISTORIES_KEPT)
