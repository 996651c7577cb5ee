"""Waits of a peer in a round: the wait of a participant for the server of an attempt, and the wait
of a server for updates. Both waits are extended while bytes of a payload still arrive, or while the
trainer of a peer compiles."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from gossip.core.events import Effect
from gossip.core.messages import PeerId
from gossip.core.settings import CHECK_INTERVAL_S, CLOSE_SHARE, DOUBLINGS_MAX
from gossip.core.timers import Timers

from .arrivals import TransferTracker
from .compiling import CompileTracker
from .punctuality import LatenessTracker
from .quorum import Quorum
from .shard import NOBODY, RoundTimer, ShardRound
from .timeouts import Deadline


class Patience:
    """Timeouts of the present round, and their extensions."""

    def __init__(
        self,
        quorum: Quorum,
        timers: Timers[Any],
        deadline: Deadline,
        transfer_tracker: TransferTracker,
    ) -> None:
        self.local, self.settings, self.present = quorum.local, quorum.settings, quorum.present
        self.skip_reason, self.timers, self.deadline = quorum.skip_reason, timers, deadline
        self.lateness = LatenessTracker(deadline)
        self.transfer_tracker, self.compile_tracker = transfer_tracker, CompileTracker()
        self._required_peers = NOBODY

    def require_updates_of(self, peers: Iterable[PeerId]) -> None:
        """Set the peers that must send updates before a server may close an attempt early."""
        self._required_peers = frozenset(peers)

    def start_timeout(
        self, shard: ShardRound, now: float, collective: bool = False
    ) -> list[Effect]:
        """Start the timeout of the present server. The timeout of a ``collective`` operation is the
        longest possible timeout."""
        wait = shard.server_wait
        if wait.attempt != shard.attempt:
            # The wait for the previous server had no result, so charge the peers that extended this
            # wait by their reports. If that server is skipped now, charge no peer.
            if wait.attempt >= 0 and self.skip_reason(shard.server_of(wait.attempt)):
                wait.transfers.clear()
                wait.compiles.clear()
            self._spend(self.transfer_tracker, wait.transfers, now)
            self._spend(self.compile_tracker, wait.compiles, now)
            wait.attempt, wait.since = shard.attempt, now
        where = (self.present.round_id, shard.index, shard.attempt)
        time_s = self.deadline.cap_s if collective else self.deadline.round_timeout_s()
        timer = self.timers.set(
            now + time_s * self.timeout_factor(shard), RoundTimer("give_up", *where)
        )
        before, shard.give_up = shard.give_up, timer.token
        return [*self.timers.cancel(before), timer]

    def timeout_factor(self, shard: ShardRound) -> int:
        """Return the factor by which the server's timeout is multiplied; 1 unless the links are
        slow. The factor doubles with each timeout, or with each pass through the order of the
        servers, at most ``DOUBLINGS_MAX`` times."""
        if not self.transfer_tracker.takes_time:
            return 1
        turns = max(shard.timeouts, (shard.attempt - shard.claims.skipped) // len(shard.order))
        return int(2 ** min(turns, DOUBLINGS_MAX))

    def _ends_at(self, shard: ShardRound, now: float) -> float:
        """Return the time at which the wait for the present server ends, even if bytes still arrive
        then."""
        return shard.server_wait.since + self.transfer_tracker.most_s(now) * self.timeout_factor(
            shard
        )

    def is_transferring(self, shard: ShardRound, now: float) -> bool:
        """Whether a peer of this round reports that it compiles or receives payloads. In both cases
        a late result is not the server's fault. Reports about payloads are ignored after the end of
        the wait."""
        awaited = [p for p in self.present.roster if not self.lateness.is_missed(p)]
        if self._believe_busy_reports(
            self.compile_tracker, awaited, shard.server_wait.compiles, now
        ):
            return True
        if now > self._ends_at(shard, now):
            return False
        return self._believe_busy_reports(
            self.transfer_tracker, awaited, shard.server_wait.transfers, now
        )

    def _believe_busy_reports(
        self,
        tracker: TransferTracker | CompileTracker,
        peers: Iterable[PeerId],
        since: dict[PeerId, float],
        now: float,
    ) -> bool:
        """Whether ``tracker`` has a valid report that one of ``peers`` is busy.

        If more than max(f, 1) peers are busy, or if the local peer is busy, reports are always
        valid. Otherwise a report is valid only while its sender has credit left. This limits the
        time that a Byzantine sender can waste.

        Args:
            since: Start of the wait for each peer with a valid report. This call updates it.
        """
        busy = [p for p in peers if tracker.is_at_work(p, now)]
        if self.local in busy or len(busy) > max(self.settings.f, 1):
            since.clear()
            return True
        most_s = tracker.most_s(now)
        trusted = [p for p in busy if tracker.credit.is_left(p, since.get(p, now), now, most_s)]
        for peer in trusted:
            since.setdefault(peer, now)
        return bool(trusted)

    def _spend(
        self,
        tracker: TransferTracker | CompileTracker,
        since: dict[PeerId, float],
        now: float,
        came: Collection[PeerId] = (),
    ) -> None:
        """Charge the credit of each peer in ``since``, except those in ``came``, because the wait
        for these peers had no result."""
        for peer, at in since.items():
            if peer not in came:
                tracker.credit.spend_wait(peer, at, now)
        since.clear()

    def more_time(self, shard: ShardRound, now: float) -> list[Effect]:
        """Handle the timeout of the present server. If a result is in transfer, or if a peer
        reports that it compiles or receives payloads, return a further timer."""
        if not self.is_under_way(shard, now) and not self.is_transferring(shard, now):
            return []
        timer = self.timers.set(
            now + CHECK_INTERVAL_S,
            RoundTimer("give_up", self.present.round_id, shard.index, shard.attempt),
        )
        shard.give_up = timer.token
        return [timer]

    def is_under_way(self, shard: ShardRound, now: float) -> bool:
        """Whether a commit of this shard is in transfer and will be complete in time."""
        until = self._ends_at(shard, now) + self.deadline.cap_s
        return self.transfer_tracker.brings_result(self.present.round_id, shard.index, until, now)

    def are_coming(self, shard: ShardRound, missing: Sequence[PeerId], now: float) -> bool:
        """Whether one of the missing updates may still arrive in time, because its sender compiles,
        sends the update, or receives payloads. The update may also be queued behind other
        payloads."""
        transfer_tracker = self.transfer_tracker
        until = shard.served.first_at + transfer_tracker.most_s(now)
        awaited = [peer for peer in missing if not self.lateness.is_missed(peer)]
        if self._believe_busy_reports(self.compile_tracker, awaited, shard.update_compiles, now):
            return True
        if now >= until:
            return False
        if any(transfer_tracker.is_sending(peer, until, now) for peer in awaited):
            return True
        if self._believe_busy_reports(transfer_tracker, awaited, shard.update_transfers, now):
            return True
        links_are_full = now < shard.served.first_at + transfer_tracker.payload_s(now)
        return links_are_full and self._believe_busy_reports(
            transfer_tracker, self.present.roster, shard.update_transfers, now
        )

    def updates_s(self, shard: ShardRound, expected: int, missing: Sequence[PeerId]) -> float:
        """Return how long after the first update the server waits for the other updates, in
        seconds. The wait is longer while the rule has too few updates. It is longest for a
        collective operation, because the preceding part of the script, such as an evaluation, may
        take much longer on some peers."""
        served = shard.served
        if served.callers > self.settings.callers_too_few(len(self.present.roster)):
            return CLOSE_SHARE * self.deadline.cap_s
        timeout_s = CLOSE_SHARE * self.deadline.round_timeout_s()
        usable = sum(1 for update, _ in served.answers.values() if update.samples)
        enough = (
            usable >= min(self.settings.updates_min, expected)
            and self._required_peers <= served.answers.keys()
        )
        return min(self.lateness.patience_s(missing), timeout_s) if enough else timeout_s

    def end_wait(self, shard: ShardRound, now: float) -> None:
        """End the wait for updates, because the attempt closes. Charge the credit of the peers that
        extended the wait and sent no update."""
        came = shard.served.answers
        self._spend(self.transfer_tracker, shard.update_transfers, now, came)
        self._spend(self.compile_tracker, shard.update_compiles, now, came)
