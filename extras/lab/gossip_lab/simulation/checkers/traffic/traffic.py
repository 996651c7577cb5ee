"""S15: nobody says more than it has to. News are told so often and no more, and each kind of
message has its measure."""

from __future__ import annotations

from collections import Counter, deque

from gossip.core import (
    Ack,
    CommitRequest,
    Gossip,
    PeerId,
    Ping,
    PingRequest,
    Send,
    retransmit_limit,
)
from gossip_lab.simulation.checkers.base import Checker, Life, PerLife, keep_latest
from gossip_lab.simulation.checkers.watching import on_effect

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
    needs = ""

    def make_records(self) -> None:
        self._told: Counter[News] = Counter()

    @on_effect
    def judge(self, send: Send, message: Ping | PingRequest | Ack | Gossip) -> None:
        if not message.rumors:
            return
        most = AGAIN * retransmit_limit(len(self.swarm.hosts), self.membership.settings)
        self.judged += 1
        for rumor in message.rumors:
            if rumor.peer in (send.peer, self.peer):
                continue  # one that others accuse of old answers each time
            news = self.life, rumor.peer, rumor.status, rumor.incarnation, rumor.origin
            self._told[news] += 1
            if self._told[news] > most:
                raise self.violated(
                    f"says for the {self._told[news]}th time that peer {rumor.peer} is "
                    f"{rumor.status} with standing {rumor.incarnation}; {most} times are enough"
                )
            keep_latest(self._told, KEPT)


class AsksInMeasure(Checker):
    """S15: who is behind asks for the commits that it lacks a dozen times in a second at most, and
    hardly ever in the next two: each answer is all of them,
    and is on its way for as long as the network takes."""

    invariant = "S15"
    needs = "rolling"
    _asked = PerLife(lambda: deque[float](maxlen=max(most for most, _ in REQUESTS)))

    @on_effect
    def judge(self, send: Send, ask: CommitRequest) -> None:
        if self.rolling.mode != "active":
            return  # one that follows the rounds asks for the next
        asked = self._asked
        self.judged += 1
        for most, within_s in REQUESTS:
            if len(asked) >= most and (took_s := self.now - asked[-most]) < within_s:
                raise self.violated(
                    f"asks for the commits from round {ask.first} on {most + 1} times in "
                    f"{took_s:.2f} s"
                )
        asked.append(self.now)
