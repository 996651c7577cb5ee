"""Lateness in rolling rounds: computes when a server closes a round, with the deadlines of the
core."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gossip.core import (
    CLOSE_SHARE,
    NOT_SLOW_ROUNDS,
    NOT_SLOW_S,
    PEER_TIMES,
    PEER_TIMES_MIN,
    CoreSettings,
    punctuality,
    timeouts,
)

from .presence import Peers, Times

LAGS_COUNTED = 64
"""Number of latest lags that a ``Deadline`` uses; older lags are not passed to it."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundTimes:
    """Times of a rolling round.

    Attributes:
        server: Peer that computes the result.
        begin_s, finish_s: ``(n,)``: time at which each peer begins the round, and time at which its
            update is ready.
        arrives_s: ``(n,)``: time at which each peer's update reaches the server; infinity means
            never.
        skipped_s: ``(n,)``: time after which the server no longer waits for a peer.
        expected: ``(n,)`` bool: peers that the server waits for.
    """

    server: int
    begin_s: Times
    finish_s: Times
    arrives_s: Times
    skipped_s: Times
    expected: NDArray[np.bool_]


class RollingPatience:
    """Decides how long the servers of a world wait for late updates.

    As in a run, each server knows the lags only of the rounds that it has served. The durations of
    rounds and the missed peers are the same for all servers.
    """

    def __init__(self, settings: CoreSettings) -> None:
        self._settings = settings
        self._pace = self._new_deadline()
        self._missed = punctuality.LatenessTracker(self._pace)
        self._deadlines: dict[int, timeouts.Deadline] = {}
        self._observed = np.zeros(len(settings.peers), bool)  # updates with a recorded lag
        # Server -> lags in the last rounds that it has served, ``(n,)`` each; NaN if an update did
        # not arrive.
        self._lags: dict[int, deque[Times]] = {}

    def close_s(self, times: RoundTimes, quorum: int) -> float:
        """Return the time at which the server closes the round; infinity if fewer than ``quorum``
        updates arrive."""
        came = np.sort(times.arrives_s[np.isfinite(times.arrives_s)])
        if len(came) < quorum:
            return float("inf")
        first = float(came[0])
        over = np.minimum(times.arrives_s, times.skipped_s)
        last = float(over[times.expected].max(initial=first))
        timeout_s = CLOSE_SHARE * self._pace.round_timeout_s()
        if times.server not in self._deadlines:
            self._deadlines[times.server] = self._new_deadline()
        deadline = self._deadlines[times.server]
        usual = times.expected & ~self._find_slow(times.server, deadline)
        usual_last = float(over[usual].max(initial=first))
        # As in the core, the lags of punctual updates are recorded before the grace for late
        # updates is computed.
        self._observed = usual & (times.arrives_s <= usual_last)
        self._observed[times.server] = False
        _observe(deadline, times.arrives_s[self._observed] - first)
        grace_s = min(deadline.grace_s(), timeout_s)
        typical_s = self._pace.typical_round_s()
        patience_s = NOT_SLOW_S + NOT_SLOW_ROUNDS * typical_s
        patience_s = min(max(grace_s, patience_s), timeout_s)
        only_slow = usual_last <= first + patience_s
        close = max(usual_last, first + grace_s) if only_slow else first + patience_s
        # The server waits longer if the rule needs more updates.
        usable = np.sort(times.arrives_s[times.expected & np.isfinite(times.arrives_s)])
        enough = min(self._settings.updates_min, len(usable))
        rule = min(float(usable[enough - 1]), first + timeout_s) if enough else first
        return max(float(came[quorum - 1]), min(last, max(close, rule)))

    def record_round(self, times: RoundTimes, lags_s: Times, duration_s: float) -> None:
        """Record the lags and the duration of a finished round.

        Args:
            lags_s: ``(n,)``: time from the arrival of the first update to that of each peer's
                update, in seconds; NaN if an update never reached the server.
        """
        late = ~self._observed & np.isfinite(lags_s)
        _observe(self._deadlines[times.server], lags_s[late])
        self._lags.setdefault(times.server, deque(maxlen=PEER_TIMES)).append(lags_s)
        self._pace.observe_round(duration_s)

    def record_contributors(
        self, roster: Peers, expected: NDArray[np.bool_], contributors: Peers
    ) -> None:
        """Record the peers that sent a used update in a round. ``expected``, ``(n,)`` bool: peers
        that could send an update."""
        waited_for = set(np.flatnonzero(expected).tolist())
        self._missed.committed(roster.tolist(), waited_for, set(contributors.tolist()))

    def _new_deadline(self) -> timeouts.Deadline:
        rounds = self._settings.rounds
        most_s = rounds.round_timeout_s
        return timeouts.Deadline(rounds.grace_mads, rounds.grace_floor_s, most_s, LAGS_COUNTED)

    def _find_slow(self, server: int, deadline: timeouts.Deadline) -> NDArray[np.bool_]:
        """Return which peers the server considers slow, ``(n,)`` bool, as ``LatenessTracker``
        does."""
        n = len(self._settings.peers)
        missed = np.fromiter(map(self._missed.is_missed, range(n)), bool, n)
        known = self._lags.get(server, ())
        if len(known) < PEER_TIMES_MIN:
            return missed
        lags = np.sort(np.stack(list(known)), axis=0)  # sorts NaN to the end
        counts = np.isfinite(lags).sum(axis=0)
        middle = np.minimum(counts // 2, len(lags) - 1)
        medians = lags[middle, np.arange(n)]
        judged = counts >= PEER_TIMES_MIN
        late = judged & (medians > deadline.grace_s())
        return missed | late if bool((judged & ~late).any()) else missed


def _observe(deadline: timeouts.Deadline, lags_s: Times) -> None:
    for lag_s in np.sort(lags_s)[-LAGS_COUNTED:].tolist():
        deadline.observe(min(lag_s, deadline.cap_s))
