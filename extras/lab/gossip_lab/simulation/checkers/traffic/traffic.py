"""S15: no peer sends more than needed. News are sent a limited number of times, and each kind of
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
"""Times that the same news may have to start again: for example an accusation of a peer that was
away."""
KEPT = 4096

REQUESTS = ((12, 1.0), (15, 3.0))
"""Requests for commits: at most this number in this many seconds. The first ones follow each other
closely; then each reply has its time."""

News = tuple[Life, PeerId, str, int, PeerId]


class NewsGrowOld(Checker):
    """S15: a peer sends one piece of news a few times the logarithm of the number of peers, and
    then never again. News about the receiver itself, and about the sender, do not count."""

    invariant = "S15"
    needs = ""

    def make_records(self) -> None:
        self._times_sent: Counter[News] = Counter()

    @on_effect
    def judge(self, send: Send, message: Ping | PingRequest | Ack | Gossip) -> None:
        if not message.rumors:
            return
        most = AGAIN * retransmit_limit(len(self.swarm.hosts), self.membership.settings)
        self.judged += 1
        for rumor in message.rumors:
            if rumor.peer in (send.peer, self.peer):
                continue  # an outdated accusation is refuted each time
            news = self.life, rumor.peer, rumor.status, rumor.incarnation, rumor.origin
            self._times_sent[news] += 1
            if self._times_sent[news] > most:
                raise self.violated(
                    f"sends for the {self._times_sent[news]}th time that peer {rumor.peer} is "
                    f"{rumor.status} with standing {rumor.incarnation}; {most} times are enough"
                )
            keep_latest(self._times_sent, KEPT)


class AsksInMeasure(Checker):
    """S15: a peer that is behind requests the commits that it lacks a dozen times in a second at
    most, and hardly ever in the next two. Each reply has all of them, and is on its way for as long
    as the network takes."""

    invariant = "S15"
    needs = "rolling"
    _asked = PerLife(lambda: deque[float](maxlen=max(most for most, _ in REQUESTS)))

    @on_effect
    def judge(self, send: Send, ask: CommitRequest) -> None:
        if self.rolling.mode != "active":
            return  # a peer that only follows the rounds requests the next
        asked = self._asked
        self.judged += 1
        for most, within_s in REQUESTS:
            if len(asked) >= most and (took_s := self.now - asked[-most]) < within_s:
                raise self.violated(
                    f"requests the commits from round {ask.first} on {most + 1} times in "
                    f"{took_s:.2f} s"
                )
        asked.append(self.now)
