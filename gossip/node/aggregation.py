"""Executes the aggregations of a node and records them in the journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gossip.aggregators import BoundRule
from gossip.core import Event, events
from gossip.run import Journal

from .identical import IdenticalUpdates
from .influence import InfluenceWatch
from .reducer import Reducer, TrainerJudge
from .usage import RuleClock


class Aggregation:
    """Carries out ``Aggregate`` and ``Committed`` effects. The rule runs in the node, or in the
    trainer if it needs the trainer's loss.

    Args:
        emit: Receives the resulting events for the core.
    """

    def __init__(
        self,
        rule: BoundRule,
        reducer: Reducer,
        judge: TrainerJudge,
        journal: Journal,
        emit: Callable[[Event], None],
    ) -> None:
        self._rule, self._reducer, self._judge = rule, reducer, judge
        self._journal, self._emit = journal, emit
        self._clock = RuleClock()
        self._identical = IdenticalUpdates()
        self._influence = InfluenceWatch()

    def prepare(self, peers: int, shard_elements: Sequence[int], ready: Callable[[], None]) -> None:
        """Prepare the rule and the judge for a model. When both are prepared, call ``ready``."""
        self._judge.prepare(shard_elements)

        def prepared(how: dict[str, Any]) -> None:
            if how:
                self._journal.event("kernels", **how)
            ready()

        self._reducer.prepare(peers, max(shard_elements), prepared)

    def aggregate(self, effect: events.Aggregate) -> None:
        # The rows of a mix are parameters. They are equal at the start of a run, which is no error.
        if not effect.mix and (identical := self._identical.find_identical(effect.rows)):
            self._journal.event("identical_updates", round=effect.round_id, peers=identical)
        if effect.step in ("whole", "measure"):
            self._clock.asked(effect.round_id, effect.shard)
        if not effect.rows:
            self._emit(events.Aggregated(effect.ticket, None, reason=events.NO_ROWS))
        elif self._rule.needs_trainer:
            self._judge.reduce(effect)
        else:
            self._reducer.reduce(effect)

    def record_commit(self, effect: events.Committed) -> None:
        commit = effect.commit
        rule_s = self._clock.rule_time_s(commit.round_id, commit.shard) if effect.made else None
        self._journal.commit(effect, rule_s)
        for peer, share in self._influence.observe_commit(commit):
            self._journal.event("low_influence", subject=peer, round=commit.round_id, share=share)
