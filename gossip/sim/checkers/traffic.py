"""S15: nobody says more than it has to. News are told so often and no more, and each kind of message has its measure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from gossip.core.dissemination import retransmit_limit
from gossip.core.events import Effect, Send
from gossip.core.messages import Ack, Gossip, PeerId, Ping, PingRequest

from .base import Checker, Circumstances, Life, life_of, membership_of

if TYPE_CHECKING:
    from gossip.sim.driver import Swarm

AGAIN = 3
"""Times that one may have to begin with the same news again: an accusation, say, of one that was away meanwhile."""
KEPT = 4096

News = tuple[Life, PeerId, str, int, PeerId]


class NewsGrowOld(Checker):
    """S15: a peer tells one piece of news a few times as often as the logarithm of their number, and then never again; what the
    accused is told about itself does not count, nor what it answers."""

    invariant = "S15"
    effects = (Ping, PingRequest, Ack, Gossip)

    def __init__(self, circumstances: Circumstances | None = None) -> None:
        super().__init__(circumstances)
        self._told: Counter[News] = Counter()

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if type(effect) is not Send:
            return
        rumours = effect.message.rumours  # type: ignore[union-attr]
        if not rumours:
            return
        membership, life = membership_of(swarm.hosts[peer].core), life_of(swarm, peer)
        if membership is None:
            return
        most = AGAIN * retransmit_limit(len(swarm.hosts), membership.settings)
        self.judged += 1
        for rumour in rumours:
            if rumour.peer in (effect.peer, peer):
                continue  # one that others accuse of old answers each time
            news = life, rumour.peer, rumour.status, rumour.incarnation, rumour.origin
            self._told[news] += 1
            if self._told[news] > most:
                text = f"says for the {self._told[news]}th time that peer {rumour.peer} is {rumour.status}"
                raise self.violated(swarm, peer, f"{text} with standing {rumour.incarnation}; {most} times are enough")
        while len(self._told) > KEPT:
            del self._told[next(iter(self._told))]
