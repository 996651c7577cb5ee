"""Grace periods of many peers at once. The core's ``Deadline`` computes the grace period of one
peer."""

from __future__ import annotations

import numpy as np

from gossip.core import ESTIMATE_MIN, CoreSettings, timeouts

from .presence import Peers, Times

WINDOW = 64
"""Number of a peer's latest lags from which its grace is computed."""


class Graces:
    """Lags of the pushes that each of n peers has received. The grace of a peer follows from its
    lags."""

    def __init__(self, settings: CoreSettings) -> None:
        n = len(settings.peers)
        self._rounds = settings.rounds
        self._lags = np.full((n, WINDOW), np.inf)
        self._next = np.zeros(n, np.int64)  # column in which the next lag is stored
        self._counts = np.zeros(n, np.int64)

    def observe(self, peers: Peers, lags_s: Times) -> None:
        """Record lags.

        Args:
            peers: ``(e,)``, ascending: the receiver of each push.
            lags_s: ``(e,)``: time from the receiver's own update to the arrival of the push, in
                seconds; negative lags become 0.
        """
        firsts = np.searchsorted(peers, peers)
        at = (self._next[peers] + np.arange(len(peers)) - firsts) % WINDOW
        self._lags[peers, at] = np.maximum(lags_s, 0.0)
        added = np.bincount(peers, minlength=len(self._next))
        self._next += added
        self._counts = np.minimum(self._counts + added, WINDOW)

    def reset(self, peers: Peers) -> None:
        """Drop the lags of restarted peers."""
        self._lags[peers], self._next[peers], self._counts[peers] = np.inf, 0, 0

    def grace_s(self) -> Times:
        """Return the grace of each peer, ``(n,)``, in seconds."""
        rounds, each = self._rounds, np.arange(len(self._counts))
        middle = np.minimum(self._counts // 2, WINDOW - 1)
        median = np.sort(self._lags, axis=1)[each, middle]
        with np.errstate(invalid="ignore"):  # inf - inf for a peer without lags
            apart = np.abs(self._lags - median[:, None])
        deviation = np.sort(apart, axis=1)[each, middle]
        adaptive = median + rounds.grace_mads * timeouts.MAD_SCALE * deviation
        bounded = np.clip(adaptive, rounds.grace_floor_s, rounds.round_timeout_s)
        return np.where(self._counts < ESTIMATE_MIN, rounds.round_timeout_s, bounded)
