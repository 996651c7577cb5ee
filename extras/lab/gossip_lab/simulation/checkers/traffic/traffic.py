"""S15: nobody says more than it has to. News are told so often and no more, and each kind of
message has its measure."""

from __future__ import annotations

from collections import Counter, deque

from gossip.core import (
    Ack,
    CommitRequest,
    Effect,
    Gossip,
    PeerId,
    Ping,
    PingRequest,
    Send,
    retransmit_limit,
)
from gossip_lab.simulation.checkers.base import (
    Checker,
    Life,
    life_of,
)
from gossip_lab.simulation.checkers.safety import rolling_of
from gossip_lab.simulation.world import AnySwarm

AGAIN = 3
"""Times that one may have to begin with the same news again: an accusation, say,
of one that was away meanwhile."""
KEPT = 4096

REQUESTS = ((12, 1.0), (15, 3.0))
"""For commits: at most so many in so many seconds. The first ones come soon after each other; then
each answer has its time."""

News = tuple[Life, PeerId, str, int, PeerId]


class NewsGrowOld(Checker):
    """S15: a peer tells one piece of news a few times as often as the logarithm of their number,
    and then never again; what the accused is told about itself does not count,
    nor what it answers."""

    invariant = "S15"
    effects = (Ping, PingRequest, Ack, Gossip)

    def make_records(self) -> None:
        self._told: Counter[News] = Counter()

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if type(effect) is not Send or type(effect.message) not in self.effects:
            return
        rumors = effect.message.rumors  # type: ignore[union-attr]
        if not rumors:
            return
        membership, life = swarm.hosts[peer].membership, life_of(swarm, peer)
        if membership is None:
            return
        most = AGAIN * retransmit_limit(len(swarm.hosts), membership.settings)
        self.judged += 1
        for rumor in rumors:
            if rumor.peer in (effect.peer, peer):
                continue  # one that others accuse of old answers each time
            news = life, rumor.peer, rumor.status, rumor.incarnation, rumor.origin
            self._told[news] += 1
            if self._told[news] > most:
                text = (
                    f"says for the {self._told[news]}th time that peer {rumor.peer} is "
                    f"{rumor.status}"
                )
                raise self.violated(
                    swarm,
                    peer,
                    f"{text} with standing {rumor.incarnation}; {most} times are enough",
                )
        while len(self._told) > KEPT:
            del self._told[next(iter(self._told))]


class AsksInMeasure(Checker):
    """S15: who is behind asks for the commits that it lacks a dozen times in a second at most, and
    hardly ever in the next two: each answer is all of them,
    and is on its way for as long as the network takes."""

    invariant = "S15"
    effects = (CommitRequest,)

    def make_records(self) -> None:
        self._asked: dict[PeerId, deque[float]] = {}

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._asked[peer] = deque(maxlen=max(most for most, _ in REQUESTS))

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if type(effect) is not Send or type(effect.message) is not CommitRequest:
            return
        rounds = rolling_of(swarm.inspections.get(peer))
        if rounds is None or rounds.mode != "active":
            return  # one that follows the rounds asks for the next
        asked = self._asked[peer]
        self.judged += 1
        for most, within_s in REQUESTS:
            if len(asked) >= most and swarm.now - asked[-most] < within_s:
                text = f"asks for the commits from round {effect.message.first} on {most + 1} times"
                raise self.violated(swarm, peer, f"{text} in {swarm.now - asked[-most]:.2f} s")
        asked.append(swarm.now)
