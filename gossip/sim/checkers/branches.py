"""L5: who finds out that more peers are on another branch of history than on its own does not stay on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gossip.core.events import Event, Received
from gossip.core.messages import NotMe, PeerId, Update

from .base import Checker, peer_core
from .rounds import rolling_of

if TYPE_CHECKING:
    from gossip.sim.driver import Swarm


class JoinsTheLarger(Checker):
    """L5: where only one side of a partition can go on, the smaller side of a fork takes over the larger one's state at once: as
    soon as those who say that they are on another branch of the present round are more than those on the own one, and more than
    f, who may lie. It does not wait until the others have gone on, which they may not be able to. Who has asked them for a
    state in vain has the time of a round before it asks again."""

    invariant = "L5"
    afters = (Update, NotMe)

    def after_event(self, swarm: Swarm[Any], peer: PeerId, event: Event) -> None:
        core = peer_core(swarm, peer)
        rounds = rolling_of(core)
        if core is None or rounds is None or not isinstance(event, Received) or not isinstance(event.message, Update | NotMe):
            return
        if core.phase != "running" or rounds.mode != "active" or rounds.astray.sides.may_differ:
            return
        message, seen = event.message, rounds.astray._branches
        theirs = message.parent if isinstance(message, Update) else message.chain
        if message.round_id != rounds.round_id or theirs == rounds.chain or seen.get(event.sender) != theirs:
            return
        there = [other for other, branch in seen.items() if branch == theirs]
        here = [peer, *[other for other, branch in seen.items() if branch == rounds.chain]]
        if rounds.astray.is_back(swarm.hosts[peer].machine.clock_s(swarm.now_ns)):
            return  # it has asked in vain
        text = f"stays in round {rounds.round_id} with {sorted(here)}, having heard that {sorted(there)} are on another branch"
        self.demand(len(there) <= max(len(here), core.settings.f), swarm, peer, text)


__all__ = ["JoinsTheLarger"]
