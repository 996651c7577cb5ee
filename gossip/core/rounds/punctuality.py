"""Lateness of peers. A server waits longer for a peer that is late for the first time than for a
peer that is always late.

All peers have the contributors of each commit, but only a server can measure the lateness of an
update. The server also records updates that arrive after the end of their attempt, because
otherwise the recorded lags could only shrink.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gossip.core.latest import Latest
from gossip.core.messages import PeerId, Update
from gossip.core.settings import (
    AMENDS_ROUNDS,
    MISSED_ROUNDS,
    NOT_SLOW_ROUNDS,
    NOT_SLOW_S,
    PEER_TIMES,
    PEER_TIMES_MIN,
    RETRY_ROUNDS,
    SERVED_KEPT,
)

from .timeouts import Deadline, RecentMedian


class LatenessTracker:
    """Missed rounds and lags of each peer. All lags are also passed to ``deadline``."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._missed: dict[PeerId, int] = {}
        self._absent: dict[PeerId, int] = {}  # consecutive rounds without an update of the peer
        self._lags: dict[PeerId, RecentMedian] = {}
        # arrival time of the first update, by (round, shard, attempt)
        self._began: Latest[tuple[int, int, int], float] = Latest(SERVED_KEPT)

    def committed(
        self,
        roster: Iterable[PeerId],
        expected: Collection[PeerId],
        contributors: Collection[PeerId],
    ) -> None:
        """Record a finished round.

        Args:
            expected: Peers that could send an update. A peer outside this set counts as missed
                until it takes part again.
            contributors: Peers with an update in the commits of all shards. A round without
                contributors is ignored.
        """
        if not (self._missed or self._absent) and set(roster).issubset(contributors):
            return
        for peer in roster if contributors else ():
            missed = self._missed.pop(peer, 0)
            if peer not in contributors and peer not in expected:
                self._missed[peer] = max(missed, MISSED_ROUNDS)
                continue
            absent = 0 if peer in contributors else self._absent.get(peer, 0) + 1
            if peer in contributors:
                missed -= 1
            elif missed < MISSED_ROUNDS:
                missed = missed + 1 if missed + 1 < MISSED_ROUNDS else MISSED_ROUNDS + AMENDS_ROUNDS
            elif absent >= RETRY_ROUNDS:
                missed, absent = MISSED_ROUNDS - 1, 0
            self._absent.pop(peer, None)
            if absent:
                self._absent[peer] = absent
            if missed > 0:
                self._missed[peer] = missed

    def is_missed(self, peer: PeerId) -> bool:
        """Whether the most recent rounds were closed without ``peer``."""
        return self._missed.get(peer, 0) >= MISSED_ROUNDS

    def is_slow(self, peer: PeerId) -> bool:
        """Whether ``peer`` is usually late, or was missed in the most recent rounds.

        A peer is usually late if its median lag exceeds the grace period, and the median lag of at
        least one other peer does not. So the lags never make all peers slow.
        """
        others = (lags for other, lags in self._lags.items() if other != peer)
        late = self._is_late(self._lags.get(peer)) and any(
            len(lags) >= PEER_TIMES_MIN and not self._is_late(lags) for lags in others
        )
        return late or self.is_missed(peer)

    def _is_late(self, lags: RecentMedian | None) -> bool:
        return (
            lags is not None
            and len(lags) >= PEER_TIMES_MIN
            and lags.median() > self._deadline.grace_s()
        )

    def patience_s(self, missing: Iterable[PeerId]) -> float:
        """Return how long after the first update a server waits for the ``missing`` peers, in
        seconds."""
        if all(self.is_slow(peer) for peer in missing):
            return self._deadline.grace_s()
        return max(
            self._deadline.grace_s(),
            NOT_SLOW_S + NOT_SLOW_ROUNDS * self._deadline.typical_round_s(),
        )

    def came(self, sender: PeerId, update: Update, first_at: float, now: float) -> None:
        """Record an update of another peer that arrived in time."""
        self._began[update.round_id, update.shard, update.attempt] = first_at
        self._observe(sender, now - first_at)

    def record_late_update(self, sender: PeerId, update: Update, now: float) -> None:
        """Record an update of an attempt that has ended. The lags of missed peers are not recorded,
        because these lags would extend the grace period of all peers."""
        first_at = self._began.get((update.round_id, update.shard, update.attempt))
        if first_at is not None and not self.is_missed(sender):
            self._observe(sender, min(now - first_at, self._deadline.cap_s))

    def _observe(self, sender: PeerId, lag_s: float) -> None:
        self._deadline.observe(lag_s)
        lags = self._lags.get(sender)
        if lags is None:
            lags = self._lags[sender] = RecentMedian(PEER_TIMES)
        lags.add(lag_s)
