"""Progress of payloads in transfer to this peer, and estimates of when they will be complete.

A peer waits longer for a payload while its bytes still arrive. It does not wait for a trickling
payload, which arrives too slowly to be useful.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from gossip.core.events import Arriving, Received
from gossip.core.messages import Commit, Message, PeerId
from gossip.core.settings import (
    AT_ONCE_S,
    BUSY_INTERVAL_S,
    BUSY_S,
    COMPUTE_FACTOR,
    FAIR_FACTOR,
    PEER_TIMES,
    PEER_TIMES_MIN,
    SLOWER_PAYLOADS,
    SPEED_KNOWN_S,
    SPEED_WINDOW_S,
    TRANSFER_FACTOR,
    TRANSFER_PAUSE_MAX_S,
    USUAL_FACTOR,
)

from .credit import TokenBucket
from .timeouts import RecentMedian


@dataclass(slots=True)
class Transfer:
    """Progress of one payload in transfer. ``grew`` updates the progress."""

    nbytes: int
    received: int
    at: float  # time of the last growth
    since: float
    _growths: int = 0
    # Start of the last window, and bytes received by then.
    _before: tuple[float, int] | None = None
    _mark: tuple[float, int] = (0.0, 0)  # Start of the next window, and bytes received by then.

    @classmethod
    def begun(cls, nbytes: int, received: int, now: float) -> Transfer:
        return cls(nbytes, received, now, now, _mark=(now, received))

    def grew(self, received: int, now: float) -> None:
        if received <= self.received:
            return
        self.received, self.at, self._growths = received, now, self._growths + 1
        if now - self._mark[0] >= SPEED_WINDOW_S:
            self._before, self._mark = self._mark, (now, received)

    def moves(self, now: float) -> bool:
        """Whether bytes of the payload have arrived recently."""
        return now - self.at <= max(BUSY_S, self.pause_s())

    def pause_s(self) -> float:
        """Return the longest expected time between two parts of the payload, in seconds."""
        return USUAL_FACTOR * (self.at - self.since) / self._growths if self._growths else 0.0

    def ends_at(self, now: float) -> float:
        """Estimate the time at which the payload will be complete, from its speed in the last one
        or two windows. Return ``now`` while no estimate is possible, because the payload is younger
        than a window or has only just begun."""
        since, had = self._before or self._mark
        elapsed, came = now - since, self.received - had
        if elapsed < SPEED_WINDOW_S or (not self._growths and self.moves(now)):
            return now
        return now + (self.nbytes - self.received) * elapsed / came if came else inf


class TransferTimes:
    """Typical transfer time of a payload from each peer. Trickling payloads raise this time only if
    more than half of the peers send them."""

    def __init__(self) -> None:
        self._took: dict[PeerId, RecentMedian] = {}
        self._largest: dict[PeerId, int] = {}  # Bytes of the largest payload, by peer.
        # Times of the last consecutive trickling payloads, by peer.
        self._slow: dict[PeerId, list[float]] = {}

    def usual_s(self, peer: PeerId) -> float | None:
        """Return the typical time of a payload from ``peer`` in seconds; None before the first
        payload."""
        return own.median() if (own := self._took.get(peer)) is not None else None

    @property
    def senders(self) -> set[PeerId]:
        """Peers that have sent a payload."""
        return set(self._took)

    def most_s(self, peer: PeerId, nbytes: int) -> float:
        """Return the time in seconds after which a payload of ``nbytes`` bytes counts as trickling.
        The limit is scaled by the size, because a result may be many times as large as an
        update."""
        # Do not compare with the times of other peers: these may run on the host of this peer and
        # be much faster.
        own = self._took.get(peer)
        if own is None:
            return inf
        larger = max(1.0, nbytes / max(1, self._largest[peer]))
        unknown = 1 + max(0, PEER_TIMES_MIN - len(own))
        return unknown * larger * max(BUSY_S, FAIR_FACTOR * own.median())

    def record_arrival(self, peer: PeerId, seconds: float, nbytes: int) -> None:
        """Record the time that a complete payload from ``peer`` took."""
        is_fair = seconds <= BUSY_S or seconds <= self.most_s(peer, nbytes)
        self._largest[peer] = max(nbytes, self._largest.get(peer, 0))
        if is_fair:
            self._slow.pop(peer, None)
            usual = self._took.get(peer)
            if usual is None:
                usual = self._took[peer] = RecentMedian(PEER_TIMES)
            usual.add(seconds)
            return
        self._slow[peer] = [*self._slow.get(peer, ()), seconds][-SLOWER_PAYLOADS:]
        slow = [other for other, times in self._slow.items() if len(times) == SLOWER_PAYLOADS]
        if 2 * len(slow) > len(self._took.keys() | self._slow.keys()):
            for other in slow:
                self._took[other] = RecentMedian(PEER_TIMES)
                for each in self._slow.pop(other):
                    self._took[other].add(each)


class TransferTracker:
    """Payloads of rounds that are in transfer to this peer. Also the reports in which other peers
    announce that they receive payloads.

    Attributes:
        total: Bytes of payloads of rounds that this peer has received.
        takes_time: Whether any payload was slow enough that its progress was reported.

    Args:
        f: Number of peers that may trickle deliberately.
    """

    def __init__(self, f: int = 0) -> None:
        self.f, self.total = f, 0
        self.takes_time, self._computes_s = False, 0.0
        self._came = False
        # last arguments of ``begin_round``
        self._payload_bytes, self._least_s, self._in_a_row = 0, 0.0, 0
        self._usual = TransferTimes()
        # Payload in transfer from each peer. A peer sends one payload at a time.
        self._last: dict[PeerId, tuple[Message, Transfer]] = {}
        # by peer: until this time, the payload after the last complete payload counts as in
        # transfer
        self._next_until: dict[PeerId, float] = {}
        self._pauses_s: dict[PeerId, float] = {}  # longest pause in the last payload, by peer
        self._next_report_at = -inf
        # time of the last report of each peer, and the number of received bytes that it announced
        self._reports: dict[PeerId, tuple[float, int]] = {}
        self._busy_until: dict[PeerId, float] = {}
        # end of the pause that each peer has announced
        self._pause_until: dict[PeerId, float] = {}
        self.credit = TokenBucket()

    def begin_round(self, payload_bytes: int, least_s: float, in_a_row: int) -> None:
        """Begin a round.

        Args:
            payload_bytes: Length of a payload in bytes.
            least_s: Lower bound of the longest wait while bytes arrive, in seconds.
            in_a_row: Number of payloads that one link carries in the round, one after another.
        """
        self._payload_bytes, self._least_s, self._in_a_row = payload_bytes, least_s, in_a_row

    def contributed(self, took_s: float) -> None:
        """Record the time from the start of the round to the local update, in seconds. Other peers
        are assumed to need about as long."""
        self._computes_s = took_s

    def most_s(self, now: float) -> float:
        """Return the longest wait while bytes arrive, in seconds. The wait is longer if the links
        are slow."""
        return max(self._least_s, self._in_a_row * self.payload_s(now))

    def payload_s(self, now: float) -> float:
        """Return the longest wait for the first byte of a payload, in seconds. The links may carry
        other payloads first, so the wait is ``USUAL_FACTOR`` times the largest payload time that
        more than ``f`` peers need."""
        senders = self._usual.senders | self._last.keys()
        return USUAL_FACTOR * self._credible([self._transfer_time_s(peer, now) for peer in senders])

    def _credible(self, seconds: Iterable[float]) -> float:
        """Return the largest time that more than ``f`` peers need. ``seconds`` contains the time of
        each peer."""
        longest = sorted(seconds, reverse=True)
        return longest[self.f] if len(longest) > self.f else 0.0

    def _transfer_time_s(self, peer: PeerId, now: float) -> float:
        """Return the typical time of a payload from ``peer`` in seconds. While its first payload
        arrives, return the expected time of that payload."""
        if (usual_s := self._usual.usual_s(peer)) is not None:
            return usual_s
        transfer = self._last[peer][1]
        ends_at = transfer.ends_at(now)
        return (ends_at if ends_at < inf else now) - transfer.since

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
        """Record a complete payload.

        Returns: True if this is the first complete payload, and the progress of no payload was
            reported before.
        """
        if event.payload is None:
            return False
        is_first, self._came = not self._came, True
        _, known = self._last.pop(event.sender, (None, None))
        self.total += event.payload.nbytes - (known.received if known is not None else 0)
        if known is not None:
            took_s = AT_ONCE_S + now - known.since
            self._usual.record_arrival(event.sender, took_s, event.payload.nbytes)
        elif event.sender not in self._next_until:
            # If the sender is in ``_next_until``, its payloads are slow. So this payload arrived
            # earlier and was stored for its round, and its time is unknown.
            self._usual.record_arrival(event.sender, AT_ONCE_S, event.payload.nbytes)
        if known is not None:
            # Set only here, because a payload without progress reports does not show how long the
            # pauses in the next payload will be.
            self._pauses_s[event.sender] = known.pause_s()
            self._next_until[event.sender] = now + max(SPEED_WINDOW_S, known.pause_s())
        return is_first and not self.takes_time

    @property
    def may_be_slow(self) -> bool:
        """Whether a payload that is sent now may take long. True until the first payload has
        arrived."""
        return self.takes_time or not self._came

    def is_sending(self, peer: PeerId, until: float, now: float) -> bool:
        """Whether a payload from ``peer`` will be complete by ``until``, or was completed so
        recently that the next payload may follow."""
        if (known := self._last.get(peer)) is not None:
            return self._is_fair(peer, known[1], now) and known[1].ends_at(now) <= until
        return now <= self._next_until.get(peer, -inf)

    def brings_result(self, round_id: int, shard: int, until: float, now: float) -> bool:
        """Whether a result of ``shard`` is in transfer and will be complete by ``until``."""
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
        """Whether this peer has to report now to the other peers that it receives payloads. If
        True, the next report is due after ``BUSY_INTERVAL_S``."""
        if now < self._next_report_at:
            return False
        self._next_report_at = now + BUSY_INTERVAL_S
        return True

    def pause_s(self, now: float) -> float:
        """Return the longest pause within the payloads in transfer, in seconds. Gaps between
        payloads do not count, because there may have been nothing to send."""
        pauses_s = [
            transfer.pause_s() or self._pauses_s.get(peer, 0.0)
            for peer, (_, transfer) in self._last.items()
            if transfer.moves(now) and self._is_fair(peer, transfer, now)
        ]
        return max(pauses_s, default=0.0)

    def on_disconnect(self, peer: PeerId) -> None:
        """Drop the progress of a payload from ``peer``. The link was lost, so the transfer starts
        again."""
        self._last.pop(peer, None)

    def record_progress(self, peer: PeerId, received: int, pause_s: float, now: float) -> None:
        """Record the report that ``peer`` has received ``received`` bytes so far and may receive no
        bytes in the next ``pause_s`` seconds. ``peer`` may be the local peer. A report that shows
        only trickling is ignored."""
        at, before = self._reports.get(peer, (-inf, 0))
        if received <= before and peer in self._reports:
            return
        gap_s = now - at
        fair_bytes_per_s = self._payload_bytes / self.most_s(now) if self._payload_bytes else 0.0
        fair = gap_s > SPEED_KNOWN_S or received - before >= fair_bytes_per_s * gap_s
        self._reports[peer] = now, received
        if fair:
            pause_s = min(pause_s, TRANSFER_PAUSE_MAX_S)
            self._pause_until[peer] = now + pause_s
            self._busy_until[peer] = now + max(BUSY_S, pause_s)

    def is_busy(self, peer: PeerId, now: float) -> bool:
        """Whether ``peer`` receives payloads at present."""
        return now <= self._busy_until.get(peer, -inf)

    def is_at_work(self, peer: PeerId, now: float) -> bool:
        """Whether ``peer`` receives payloads, or received them so recently that the update computed
        from them cannot have arrived yet."""
        computes_s = min(COMPUTE_FACTOR * self._computes_s, self._least_s / TRANSFER_FACTOR)
        lead_s = computes_s + self._credible(self._pauses_s.values())
        pause_until = self._pause_until.get(peer, -inf)
        return self.is_busy(peer, now) or now <= pause_until + lead_s
