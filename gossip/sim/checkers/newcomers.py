"""L9: a newcomer counts when it keeps up, and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gossip.core.events import Committed, Effect
from gossip.core.messages import PeerId
from gossip.core.rolling import BEHIND_MAX, BEHIND_S

from .base import Checker, Circumstances, peer_core
from .rounds import rolling_of

if TYPE_CHECKING:
    from gossip.sim.driver import Swarm

SLACK = 2
"""Rounds that may end between its word that it is ready and the commit that names it."""


class CountsWhenItKeepsUp(Checker):
    """L9: whom a commit takes into the roster is no more rounds behind than pass while its word travels: the others would wait
    for its update, and for its turn to serve, over a link that may carry less than the rounds need."""

    invariant = "L9"
    effects = (Committed,)

    def __init__(self, circumstances: Circumstances | None = None) -> None:
        super().__init__(circumstances)
        self._roster: dict[PeerId, frozenset[PeerId]] = {}  # of the last commit at each peer

    def on_start(self, swarm: Swarm[Any], peer: PeerId) -> None:
        self._roster.pop(peer, None)

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if not isinstance(effect, Committed):
            return
        now, before = frozenset(effect.commit.roster), self._roster.get(peer)
        self._roster[peer] = now
        rounds = rolling_of(peer_core(swarm, peer))
        if before is None or not effect.made or rounds is None or self.circumstances.lies:
            return
        usual_s = rounds.deadline.usual_round_s()
        most = max(BEHIND_MAX, BEHIND_S / usual_s if usual_s else 0.0) + SLACK
        for newcomer in now - before:
            other = rolling_of(peer_core(swarm, newcomer)) if newcomer in swarm.up else None
            if other is None or other.mode == "off":
                continue
            behind = effect.commit.round_id - other.round_id
            text = f"lets peer {newcomer} into the roster, which is {behind} rounds behind; {most:.0f} at most"
            self.demand(behind <= most, swarm, peer, text)
