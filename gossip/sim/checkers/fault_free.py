"""L8: where nothing is wrong, nothing goes wrong, however large payloads are and however slow links and processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gossip.core.events import Committed, Contributed, Effect, Event, Report
from gossip.core.messages import PeerId

from .base import Checker, Circumstances

if TYPE_CHECKING:
    from gossip.sim.driver import Swarm

WRONG = ("attempt", "late", "suspect", "dead", "recovering", "fork", "paused")
"""What a peer reports of others, or of its rounds, that comes of faults only."""


class NothingGoesWrong(Checker):
    """L8: without a fault every commit has the updates of all who had samples, nothing is handed on, nobody is suspected,
    late, or in need of the state of another."""

    invariant = "L8"
    events = (Contributed,)
    effects = (Committed, Report)

    def __init__(self, circumstances: Circumstances | None = None) -> None:
        super().__init__(circumstances)
        self._idle: set[tuple[int, PeerId]] = set()  # who had no samples in which round

    def on_event(self, swarm: Swarm[Any], peer: PeerId, event: Event) -> None:
        if isinstance(event, Contributed) and not event.samples:
            self._idle.add((event.round_id, peer))

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if not self.circumstances.faultless:
            return
        if isinstance(effect, Report):
            text = f"reports {effect.event} {effect.fields}, and nothing is wrong"
            refused = effect.event == "attempt" and "is refused" in effect.fields["reason"]  # near the optimum, now and then
            self.demand(effect.event not in WRONG or refused, swarm, peer, text)
        elif isinstance(effect, Committed):
            commit = effect.commit
            there = {contribution.peer for contribution in commit.contributors}
            lacking = [p for p in commit.roster if p not in there and (commit.round_id, p) not in self._idle]
            text = f"commits round {commit.round_id}, shard {commit.shard} without {lacking}, and nothing is wrong"
            self.demand(not lacking, swarm, peer, text)
