"""Aggregations of a node: who computes them, and what the journal records about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gossip.aggregators import BoundRule
from gossip.core import Event, events
from gossip.ipc import messages as control
from gossip.run import Journal
from gossip.transport import ResultRoom
from gossip.vectors import WireFormat

from .identical import IdenticalUpdates
from .influence import InfluenceWatch
from .reducer import Reducer, ResultWriter, TrainerJudge
from .usage import RuleClock
from .weighing import by_samples
from .worker import Worker


class Aggregation:
    """Carries out ``Aggregate`` and ``Committed`` effects. The rule runs in the node, or asks the
    trainer.

    Args:
        weighted: Whether updates are weighted by their samples, as among the members of a stage.
        emit: Receives the results for the core.
        room: Memory of the trainer for a result.
        wire: Format of results, once the trainer has its model.
        ask: Sends a question to the trainer.
    """

    # The node creates it in one place, with most arguments by name.
    def __init__(  # noqa: PLR0913
        self,
        rule: BoundRule,
        worker: Worker,
        journal: Journal,
        *,
        rolling: bool,
        weighted: bool,
        emit: Callable[[Event], None],
        room: ResultRoom,
        wire: Callable[[], WireFormat | None],
        ask: Callable[[control.JudgeCommand, int | None], None],
    ) -> None:
        self._rule, self._journal, self._emit = rule, journal, emit
        self._weighted = weighted
        # in gossip rounds a result is not sent
        results = ResultWriter(room, wire) if rolling else ResultWriter()
        self._reducer = Reducer(rule, worker, emit, centered=not rolling, results=results)
        judged = ResultWriter(wire=wire) if rolling else ResultWriter()
        self.judge = TrainerJudge(ask, worker, emit, self._reducer.reduce, judged)
        self._clock = RuleClock()
        self._identical = IdenticalUpdates()
        self._influence = InfluenceWatch()

    @property
    def only_adds_up(self) -> bool:
        """Whether the rule only adds up updates, so that they may stay in their owners' memory."""
        return self._reducer.only_adds_up

    def prepare(self, peers: int, shard_elements: Sequence[int], ready: Callable[[], None]) -> None:
        """Prepare the rule and the judge for a model, and then call ``ready``."""
        self.judge.prepare(shard_elements)

        def prepared(how: dict[str, Any]) -> None:
            if how:
                self._journal.event("kernels", **how)
            ready()

        self._reducer.prepare(peers, max(shard_elements), prepared)

    def aggregate(self, effect: events.Aggregate) -> None:
        if self._weighted:
            effect = by_samples(effect)
        # The rows of a mix are parameters, which are equal at the start.
        if not effect.mix and (identical := self._identical.find_identical(effect.rows)):
            self._journal.event("identical_updates", round=effect.round_id, peers=identical)
        if effect.step in ("whole", "measure"):
            self._clock.asked(effect.round_id, effect.shard)
        if not effect.rows:
            self._emit(events.Aggregated(effect.ticket, None, reason=events.NO_ROWS))
        elif self._rule.needs_trainer:
            self.judge.reduce(effect)
        else:
            self._reducer.reduce(effect)

    def record_commit(self, effect: events.Committed) -> None:
        commit = effect.commit
        rule_s = self._clock.rule_time_s(commit.round_id, commit.shard) if effect.made else None
        self._journal.commit(effect, rule_s)
        for peer, share in self._influence.observe_commit(commit):
            self._journal.event("low_influence", subject=peer, round=commit.round_id, share=share)

    def close(self) -> None:
        self.judge.close()
