"""Payloads that are on their way here: how much has come,
and when the rest will be here if it goes on like that.

Whoever waits for a payload that moves does not wait for silence. One that trickles would take so
long that it is as good as silent: nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gossip.core.events import Arriving, Received
from gossip.core.messages import Commit, Message, PeerId

from .timeouts import RecentMedian

WINDOW_S = 0.5
"""The speed is that of the last window: one that began fast and trickles now is
found out after it."""
TRANSFER_FACTOR = 6.0
"""Longest wait while payloads still arrive, as a multiple of the longest wait without. Links that
are known to need longer get longer."""
LINK_FACTOR = 3.0
"""Wait over slow links, as a multiple of what such a link needs for a payload, or for all that it
carries in a round one after the other."""
TELL_EVERY_S = 0.3
"""How often the others hear that payloads come here."""
BUSY_S = 2.0
"""For how long that counts, at least: payloads come one after the other, with pauses in between."""
GAPS = 3.0
"""Over slow links the chunks of a payload come seldom, and more of it is heard of with the second:
so many times as long as between two of them counts, too."""
PAUSE_MAX_S = 12.0
"""And no longer, whatever others say of their links."""
FORGOTTEN_S = 4.0
"""A word that is older says nothing of the speed."""


FAIR_FACTOR, FAIR_S = 8.0, 2.0
"""A payload that takes so many times as long as those of its sender usually do, and so long at
least, trickles."""
COMPUTES = 2.0
"""Times as long as this peer another may need for its update."""
KEPT, ENOUGH = 8, 4
"""Payloads of each peer that say what is usual, and of how many it is known well. Of each one fewer
a payload may take as long again."""
CHANGED = 3
"""Payloads in a row that trickle, from most peers: it is the network that has become slower, and
that is usual now."""
AT_ONCE_S = 0.1
"""Longest time in seconds that a payload without reports on its way can have taken."""


CREDIT_REGAINED = 0.01
"""Share of the elapsed time by which a spent credit recovers."""


class WordCredit:
    """For how long others are still waited for on their word that they are being sent payloads,
    which nobody can check.

    Waiting in vain spends it: with none left the word of that peer counts no more. A peer that lies
    costs as much once, and then a hundredth of the time. Who is waited for in several shards at
    once spends that time once.
    """

    def __init__(self) -> None:
        # how much (s), and as of when: what was spent before is in it
        self._spent: dict[PeerId, tuple[float, float]] = {}

    def spent_s(self, peer: PeerId, now: float) -> float:
        spent, as_of = self._spent.get(peer, (0.0, now))
        return max(0.0, spent - CREDIT_REGAINED * (now - as_of))

    def spend(self, peer: PeerId, since: float, now: float) -> None:
        """It was waited for in vain since then."""
        self._spent[peer] = (self.spent_s(peer, now) + self._waited_s(peer, since, now), now)

    def is_left(self, peer: PeerId, since: float, now: float, most_s: float) -> bool:
        """``since``: from when on it is being waited for, which is spent if that is in vain.
        ``most_s``: so long somebody is waited for in vain at most."""
        return self.spent_s(peer, now) + self._waited_s(peer, since, now) < most_s

    def _waited_s(self, peer: PeerId, since: float, now: float) -> float:
        _, as_of = self._spent.get(peer, (0.0, since))
        return now - max(since, as_of)


@dataclass(slots=True)
class Transfer:
    """One payload. ``grew`` tells of its bytes as they come."""

    nbytes: int
    received: int
    at: float  # of the last growth
    since: float
    _growths: int = 0
    _before: tuple[float, int] | None = None  # a moment before, and what had come by then
    _mark: tuple[float, int] = (0.0, 0)  # the moment that the next window is measured from

    @classmethod
    def begun(cls, nbytes: int, received: int, now: float) -> Transfer:
        return cls(nbytes, received, now, now, _mark=(now, received))

    def grew(self, received: int, now: float) -> None:
        if received <= self.received:
            return
        self.received, self.at, self._growths = received, now, self._growths + 1
        if now - self._mark[0] >= WINDOW_S:
            self._before, self._mark = self._mark, (now, received)

    def moves(self, now: float) -> bool:
        """Whether more of it has come of late."""
        return now - self.at <= max(BUSY_S, self.pause_s())

    def pause_s(self) -> float:
        """For so long nothing need be heard of what comes over this link."""
        return GAPS * (self.at - self.since) / self._growths if self._growths else 0.0

    def ends_at(self, now: float) -> float:
        """When it will be complete, at the speed of the last window or two. As if it moved while it
        is younger than one, or the second word of it is to come yet."""
        since, had = self._before or self._mark
        elapsed, came = now - since, self.received - had
        if elapsed < WINDOW_S or (not self._growths and self.moves(now)):
            return now
        return now + (self.nbytes - self.received) * elapsed / came if came else float("inf")


class TransferTimes:
    """How long payloads of rounds take from each peer. One that trickles does not make that usual,
    however often it does."""

    def __init__(self) -> None:
        self._took: dict[PeerId, RecentMedian] = {}
        self._largest: dict[PeerId, int] = {}  # bytes
        self._slow: dict[PeerId, list[float]] = {}  # what trickled last, in a row

    def usual_s(self, peer: PeerId) -> float | None:
        """None: none has come."""
        return own.median() if (own := self._took.get(peer)) is not None else None

    @property
    def senders(self) -> set[PeerId]:
        """Peers of which a payload has come."""
        return set(self._took)

    def most_s(self, peer: PeerId, nbytes: int) -> float:
        """Return the time in seconds after which a payload of ``nbytes`` counts as trickling. A
        result may be many times as large as an update."""
        # what is usual of others says nothing: they may be on the same host
        own = self._took.get(peer)
        if own is None:
            return float("inf")
        larger = max(1.0, nbytes / max(1, self._largest[peer]))
        unknown = 1 + max(0, ENOUGH - len(own))
        return unknown * larger * max(FAIR_S, FAIR_FACTOR * own.median())

    def record_arrival(self, peer: PeerId, seconds: float, nbytes: int) -> None:
        """A payload of this peer is complete."""
        is_fair = seconds <= FAIR_S or seconds <= self.most_s(peer, nbytes)
        self._largest[peer] = max(nbytes, self._largest.get(peer, 0))
        if is_fair:
            self._slow.pop(peer, None)
            usual = self._took.get(peer)
            if usual is None:
                usual = self._took[peer] = RecentMedian(KEPT)
            usual.add(seconds)
            return
        self._slow[peer] = [*self._slow.get(peer, ()), seconds][-CHANGED:]
        slow = [other for other, times in self._slow.items() if len(times) == CHANGED]
        if 2 * len(slow) > len(self._took.keys() | self._slow.keys()):
            for other in slow:
                self._took[other] = RecentMedian(KEPT)
                for each in self._slow.pop(other):
                    self._took[other].add(each)


class TransferTracker:
    """Payloads of rounds that peers are sending to this one, and reports of peers that receive
    some.

    Attributes:
        total: Bytes of payloads of rounds that have come here.
        takes_time: Whether some came so slowly that they were reported on their way.

    Args:
        f: Number of peers that may trickle on purpose.
    """

    def __init__(self, f: int = 0) -> None:
        self.f, self.total = f, 0
        self.takes_time, self._computes_s = False, 0.0
        self._came = False
        # of this round: bytes of a payload, how long is waited while something moves, at least, and
        # how many payloads a link carries one after the other
        self._payload_bytes, self._least_s, self._in_a_row = 0, 0.0, 0
        self._usual = TransferTimes()
        # a peer sends us one after the other
        self._last: dict[PeerId, tuple[Message, Transfer]] = {}
        # until when the next one counts as on its way, once one was complete
        self._next_until: dict[PeerId, float] = {}
        self._pauses_s: dict[PeerId, float] = {}  # of what it sends, as it came last
        self._tell_at = float("-inf")
        # how much others have received, and when they said so
        self._told: dict[PeerId, tuple[float, int]] = {}
        self._busy_until: dict[PeerId, float] = {}
        # until when nothing need be heard of payloads that still come to it
        self._last_word_until: dict[PeerId, float] = {}
        self.credit = WordCredit()

    def begin_round(self, payload_bytes: int, least_s: float, in_a_row: int) -> None:
        """``least_s``: so long is waited, at least, while something moves. ``in_a_row``: payloads
        that one link carries in it, one after the other."""
        self._payload_bytes, self._least_s, self._in_a_row = payload_bytes, least_s, in_a_row

    def contributed(self, took_s: float) -> None:
        """Record the time from the begin of the round to this peer's update, in seconds. Other
        peers need about as long."""
        self._computes_s = took_s

    def most_s(self, now: float) -> float:
        """When all patience is at its end, though something moves. Slow links get longer."""
        return max(self._least_s, self._in_a_row * self.payload_s(now))

    def payload_s(self, now: float) -> float:
        """Return how long to wait for a payload of which nothing is here yet, in seconds: the links
        may carry others first. More than ``f`` peers needed a third of that."""
        senders = self._usual.senders | self._last.keys()
        return LINK_FACTOR * self._credible([self._transfer_time_s(peer, now) for peer in senders])

    def _credible(self, seconds: Iterable[float]) -> float:
        """Return the time that more than ``f`` peers need. Each peer needs one of ``seconds``."""
        longest = sorted(seconds, reverse=True)
        return longest[self.f] if len(longest) > self.f else 0.0

    def _transfer_time_s(self, peer: PeerId, now: float) -> float:
        """A payload of this peer: the first one while it is on its way."""
        if (usual_s := self._usual.usual_s(peer)) is not None:
            return usual_s
        transfer = self._last[peer][1]
        ends_at = transfer.ends_at(now)
        return (ends_at if ends_at < float("inf") else now) - transfer.since

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

    def came(self, event: Received, now: float) -> bool:
        """A payload is complete. Of the next one nothing may be known yet. Returns whether this is
        the first one, and has come at once."""
        if event.payload is None:
            return False
        is_first, self._came = not self._came, True
        _, known = self._last.pop(event.sender, (None, None))
        self.total += event.payload.nbytes - (known.received if known is not None else 0)
        if known is not None:
            took_s = AT_ONCE_S + now - known.since
            self._usual.record_arrival(event.sender, took_s, event.payload.nbytes)
        elif event.sender not in self._next_until:
            # else it was kept for its round, and had come before
            self._usual.record_arrival(event.sender, AT_ONCE_S, event.payload.nbytes)
        if known is not None:
            # a small one says nothing of what is behind it
            self._pauses_s[event.sender] = known.pause_s()
            self._next_until[event.sender] = now + max(WINDOW_S, known.pause_s())
        return is_first and not self.takes_time

    @property
    def may_be_slow(self) -> bool:
        """Whether what we send now may be on its way for a while: until one has come,
        nothing is known of that."""
        return self.takes_time or not self._came

    def is_sending(self, peer: PeerId, until: float, now: float) -> bool:
        """Whether a large payload of this peer will be complete by ``until``,
        or was a moment ago."""
        if (known := self._last.get(peer)) is not None:
            return self._is_fair(peer, known[1], now) and known[1].ends_at(now) <= until
        return now <= self._next_until.get(peer, float("-inf"))

    def brings_result(self, round_id: int, shard: int, until: float, now: float) -> bool:
        """Whether a result of that shard comes here, and will be complete by ``until``."""
        return any(
            isinstance(message, Commit)
            and (message.round_id, message.shard) == (round_id, shard)
            and transfer.moves(now)
            and self._is_fair(peer, transfer, now)
            and transfer.ends_at(now) <= until
            for peer, (message, transfer) in self._last.items()
        )

    def _is_fair(self, peer: PeerId, transfer: Transfer, now: float) -> bool:
        most_s = self._usual.most_s(peer, transfer.nbytes)
        return max(now, transfer.ends_at(now)) - transfer.since <= most_s

    def begin_report(self, now: float) -> bool:
        """Whether the others have not been told lately that payloads come here."""
        if now < self._tell_at:
            return False
        self._tell_at = now + TELL_EVERY_S
        return True

    def pause_s(self, now: float) -> float:
        """For so long nothing need come here of the payloads that are on their way. What passes
        between two payloads says nothing of that: nobody may have had anything to send."""
        pauses_s = [
            transfer.pause_s() or self._pauses_s.get(peer, 0.0)
            for peer, (_, transfer) in self._last.items()
            if transfer.moves(now) and self._is_fair(peer, transfer, now)
        ]
        return max(pauses_s, default=0.0)

    def on_disconnect(self, peer: PeerId) -> None:
        """The link to it broke. What was on its way begins anew, if it comes at all."""
        self._last.pop(peer, None)

    def record_progress(self, peer: PeerId, received: int, pause_s: float, now: float) -> None:
        """``peer``, or this one, has received so much, and for ``pause_s`` nothing more need come.
        Trickles count for nothing."""
        at, before = self._told.get(peer, (float("-inf"), 0))
        if received <= before and peer in self._told:
            return
        gap_s = now - at
        fair_bytes_per_s = self._payload_bytes / self.most_s(now) if self._payload_bytes else 0.0
        fair = gap_s > FORGOTTEN_S or received - before >= fair_bytes_per_s * gap_s
        self._told[peer] = now, received
        if fair:
            pause_s = min(pause_s, PAUSE_MAX_S)
            self._last_word_until[peer] = now + pause_s
            self._busy_until[peer] = now + max(BUSY_S, pause_s)

    def is_busy(self, peer: PeerId, now: float) -> bool:
        """Whether it is being sent payloads."""
        return now <= self._busy_until.get(peer, float("-inf"))

    def is_at_work(self, peer: PeerId, now: float) -> bool:
        """The same, or it was so lately that nothing can be heard yet of what it makes of them: it
        computes, and the beginning of that is on its way."""
        computes_s = min(COMPUTES * self._computes_s, self._least_s / TRANSFER_FACTOR)
        lead_s = computes_s + self._credible(self._pauses_s.values())
        last_word_until = self._last_word_until.get(peer, float("-inf"))
        return self.is_busy(peer, now) or now <= last_word_until + lead_s
