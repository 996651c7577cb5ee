"""Payloads that are on their way here: how much has come,
and when the rest will be here if it goes on like that.

Whoever waits for a payload that moves does not wait for silence. One that trickles would take so
long that it is as good as silent: nobody waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossip.core.events import Arriving, Received
from gossip.core.messages import Message, PeerId

from .timeouts import RecentMedian

WINDOW_S = 0.5
"""The speed is that of the last window: one that began fast and trickles now is
found out after it."""
TRANSFER_FACTOR = 6.0
"""Of the most that a round may wait without anything that moves: so long, at most,
while something does."""
TELL_EVERY_S = 0.3
"""How often the others hear that payloads come here."""
BUSY_S = 2.0
"""For how long that counts: payloads come one after the other, with pauses in between."""
FORGOTTEN_S = 4.0
"""A word that is older says nothing of the speed."""


FAIR_FACTOR, FAIR_S = 8.0, 2.0
"""A payload that takes so many times as long as those of its sender usually do, and so long at
least, trickles."""
KEPT, ENOUGH = 8, 4
"""Payloads of each peer that say what is usual, and of how many it can be told."""
CHANGED = 3
"""Payloads in a row that trickle, from most peers: it is the network that has become slower, and
that is usual now."""
AT_ONCE_S = 0.1
"""What nobody told of on its way took no longer."""


CREDIT_REGAINED = 0.01
"""Of the time that passes, what is given back of a credit that was spent."""


class WordCredit:
    """For how long others are still waited for on their word that they are being sent payloads,
    which nobody can check.

    Waiting in vain spends it: with none left the word of that peer counts no more. A peer that lies
    costs as much once, and then a hundredth of the time.
    """

    def __init__(self) -> None:
        self.most_s = float("inf")
        self._spent: dict[PeerId, tuple[float, float]] = {}  # how much (s), and as of when

    def limit(self, most_s: float) -> None:
        """So long somebody is waited for in vain at most."""
        self.most_s = most_s

    def spent_s(self, peer: PeerId, now: float) -> float:
        spent, as_of = self._spent.get(peer, (0.0, now))
        return max(0.0, spent - CREDIT_REGAINED * (now - as_of))

    def spend(self, peer: PeerId, seconds: float, now: float) -> None:
        self._spent[peer] = (self.spent_s(peer, now) + seconds, now)

    def is_left(self, peer: PeerId, waited_s: float, now: float) -> bool:
        """``waited_s``: for how long it is being waited for, which is spent if that is in vain."""
        return self.spent_s(peer, now) + waited_s < self.most_s


@dataclass(slots=True)
class Transfer:
    """One payload. ``grew`` tells of its bytes as they come."""

    nbytes: int
    received: int
    at: float  # of the last growth
    since: float
    _before: tuple[float, int] | None = None  # a moment before, and what had come by then
    _mark: tuple[float, int] = (0.0, 0)  # the moment that the next window is measured from

    @classmethod
    def begun(cls, nbytes: int, received: int, now: float) -> Transfer:
        return cls(nbytes, received, now, now, None, (now, received))

    def grew(self, received: int, now: float) -> None:
        if received <= self.received:
            return
        self.received, self.at = received, now
        if now - self._mark[0] >= WINDOW_S:
            self._before, self._mark = self._mark, (now, received)

    def ends_at(self, now: float) -> float:
        """When it will be complete, at the speed of the last window or two. As if it moved while it
        is younger than one."""
        since, had = self._before or self._mark
        elapsed = now - since
        if elapsed < WINDOW_S:
            return now
        came = self.received - had
        return now + (self.nbytes - self.received) * elapsed / came if came else float("inf")


class TransferTimes:
    """How long payloads of rounds take from each peer. One that trickles does not make that usual,
    however often it does."""

    def __init__(self) -> None:
        self._took: dict[PeerId, RecentMedian] = {}
        self._slow: dict[PeerId, list[float]] = {}  # what trickled last, in a row

    def most_s(self, peer: PeerId) -> float:
        """What takes longer trickles."""
        # what is usual of others says nothing: they may be on the same host
        own = self._took.get(peer)
        return (
            max(FAIR_S, FAIR_FACTOR * own.median())
            if own is not None and len(own) >= ENOUGH
            else float("inf")
        )

    def took(self, peer: PeerId, seconds: float) -> None:
        """A payload of this peer is complete."""
        if seconds <= self.most_s(peer):
            self._slow.pop(peer, None)
            self._took.setdefault(peer, RecentMedian(KEPT)).add(seconds)
            return
        self._slow[peer] = [*self._slow.get(peer, ()), seconds][-CHANGED:]
        slow = [other for other, times in self._slow.items() if len(times) == CHANGED]
        if 2 * len(slow) > len(self._took.keys() | self._slow.keys()):
            for other in slow:
                self._took[other] = RecentMedian(KEPT)
                for each in self._slow.pop(other):
                    self._took[other].add(each)


class TransferTracker:
    """Who sends us payloads of rounds just now, and who says that it is being sent some.

    Attributes:
        total: Bytes of such payloads that have come here.
        takes_time: Some came so slowly that they were told of on their way.
        fair_bytes_per_s: Who receives less does not move: at that speed a payload is not here when
            all patience is at its end.
    """

    def __init__(self) -> None:
        self.total = 0
        self.takes_time = False
        self._came = False
        self.fair_bytes_per_s = 0.0
        self._usual = TransferTimes()
        # a peer sends us one after the other
        self._last: dict[PeerId, tuple[Message, Transfer]] = {}
        self._came_at: dict[PeerId, float] = {}
        self._tell_at = float("-inf")
        # how much others have received, and when they said so
        self._told: dict[PeerId, tuple[float, int]] = {}
        self._busy_at: dict[PeerId, float] = {}
        self.credit = WordCredit()

    def begin_round(self, payload_bytes: int, most_s: float) -> None:
        """``most_s``: when all patience is at its end."""
        self.fair_bytes_per_s = payload_bytes / most_s
        self.credit.limit(most_s)

    def grew(self, event: Arriving, now: float) -> None:
        self.takes_time = True
        known = self._last.get(event.sender)
        if known is not None and known[0] == event.message and event.received >= known[1].received:
            self.total += (
                event.received - known[1].received
                if self._is_fair(event.sender, known[1], now)
                else 0
            )
            known[1].grew(event.received, now)
        else:
            self.total += event.received
            self._last[event.sender] = (
                event.message,
                Transfer.begun(event.nbytes, event.received, now),
            )

    def came(self, event: Received, now: float) -> None:
        """A payload is complete. Of the next one nothing may be known yet."""
        if event.payload is None:
            return
        self._came = True
        _, known = self._last.pop(event.sender, (None, None))
        self.total += event.payload.nbytes - (known.received if known is not None else 0)
        if known is not None:
            self._usual.took(event.sender, AT_ONCE_S + now - known.since)
        elif event.sender not in self._came_at:
            # else it was kept for its round, and had come before
            self._usual.took(event.sender, AT_ONCE_S)
        if known is not None:
            self._came_at[event.sender] = now  # a small one says nothing of what is behind it

    @property
    def may_take_time(self) -> bool:
        """Whether what we send now may be on its way for a while: until one has come,
        nothing is known of that."""
        return self.takes_time or not self._came

    def is_sending(self, peer: PeerId, until: float, now: float) -> bool:
        """Whether a large payload of this peer will be complete by ``until``,
        or was a moment ago."""
        if (known := self._last.get(peer)) is not None:
            return self._is_fair(peer, known[1], now) and known[1].ends_at(now) <= until
        return now - self._came_at.get(peer, float("-inf")) <= WINDOW_S

    def _is_fair(self, peer: PeerId, transfer: Transfer, now: float) -> bool:
        return max(now, transfer.ends_at(now)) - transfer.since <= self._usual.most_s(peer)

    def tell_now(self, now: float) -> bool:
        """Whether the others have not been told lately that payloads come here."""
        if now < self._tell_at:
            return False
        self._tell_at = now + TELL_EVERY_S
        return True

    def told(self, peer: PeerId, received: int, now: float) -> None:
        """``peer``, or this one, has received so much. Trickles count for nothing."""
        at, before = self._told.get(peer, (float("-inf"), 0))
        if received <= before and peer in self._told:
            return
        fair = now - at > FORGOTTEN_S or received - before >= self.fair_bytes_per_s * (now - at)
        self._told[peer] = now, received
        if fair:
            self._busy_at[peer] = now

    def is_busy(self, peer: PeerId, now: float) -> bool:
        """Whether it is being sent payloads."""
        return now - self._busy_at.get(peer, float("-inf")) <= BUSY_S
