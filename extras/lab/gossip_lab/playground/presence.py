"""Presence of peers in a world without messages: which peers have crashed, hang or are slow, and
when the other peers detect it."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossip.core import shortest_s
from gossip.faults import Hang, Restart

from .parts import Parts

Times: TypeAlias = NDArray[np.float64]
Peers: TypeAlias = NDArray[np.int64]

ENDED_S = 0.002
"""Time until the other peers detect that a process has ended, because its connections close. All
times here are in seconds, and were measured in the exact engine with 8 peers."""
SILENT_S = 0.35
"""Time until the other peers no longer wait for a peer that hangs, because its links time out."""
ACCUSED_S = 0.08
"""Time from the timeout of the links (``SILENT_S``) until a probe of the peer fails."""
RESTORED_S = 0.02
"""Time until a started process has restored the state of another peer."""
RESUMED_S, REFUTED_S = 0.06, 1.25
"""Time from the end of a hang until the peer takes part again. The second value applies if the peer
has to rejoin the roster, because it was declared dead."""


class Presence:
    """Presence of each peer. The caller passes the virtual time to each call.

    Attributes:
        runs: ``(n,)`` bool: peers that take part.
        noticed_s: ``(n,)``: time after which no peer waits for an absent peer; infinity for a peer
            that takes part.
        dead_s: ``(n,)``: time at which an absent peer is declared dead; infinity for a peer that
            takes part.
    """

    def __init__(self, parts: Parts) -> None:
        n, mishaps = parts.peers, parts.mishaps
        self._rolling, self._availability = parts.topology.rolling, parts.availability
        self.runs = self._availability.present_peers(n, 0.0)
        self._changes_s = np.array([self._availability.next_change(peer, 0.0) for peer in range(n)])
        away = ~self.runs
        self.noticed_s, self.dead_s = (np.where(away, 0.0, np.inf) for _ in range(2))
        self._back_s = np.where(away, self._changes_s + RESTORED_S, np.inf)
        self._lost_state = away.copy()
        self._slow = mishaps.slow
        self._pending = list(mishaps.blows)
        self._refute_s = shortest_s(n, parts.settings.membership)

    def slowness(self, now_s: float) -> Times:
        """Return the factor by which each peer computes more slowly, ``(n,)``."""
        factors = np.ones(len(self.runs))
        for fault in self._slow:
            if fault.is_on(now_s):
                factors[fault.peer] *= fault.factor
        return factors

    @property
    def present(self) -> NDArray[np.bool_]:
        """Whether each peer has a running process with its state, ``(n,)``. Peers that hang are
        included."""
        return self.runs | ((self._back_s < np.inf) & ~self._lost_state)

    def return_peers(self, now_s: float) -> Peers:
        """Let the peers that have returned by ``now_s`` take part again. Return those returned
        peers that have lost their state."""
        back = ~self.runs & (self._back_s <= now_s)
        lost = np.flatnonzero(back & self._lost_state)
        for peer in np.flatnonzero(back).tolist():
            self._changes_s[peer] = self._availability.next_change(peer, self._back_s[peer])
        self.runs |= back
        for times in (self.noticed_s, self.dead_s, self._back_s):
            times[back] = np.inf
        self._lost_state[back] = False
        return lost

    def next_return_s(self) -> float:
        """Return the time at which the next absent peer returns, or infinity if no peer returns."""
        return float(self._back_s.min(initial=np.inf))

    def strike(self, rounds: Peers, begin_s: Times, finish_s: Times) -> None:
        """Inject the faults and departures that are due. They set ``runs`` to False, but a short
        hang only delays the peer's update.

        Args:
            rounds: ``(n,)``: round of each peer.
            begin_s: ``(n,)``: time at which each peer begins the round; infinity if the peer does
                not begin it.
            finish_s: ``(n,)``: time at which each peer's update is ready. A short hang changes it
                in place.
        """
        for fault in tuple(self._pending):
            peer = fault.peer
            assert peer != "server", "read_mishaps refuses it"
            if not self.runs[peer] or begin_s[peer] == np.inf:
                continue
            if fault.round is not None and fault.round <= rounds[peer]:
                at_s = float(begin_s[peer])
            elif fault.at_s is not None and fault.at_s <= finish_s[peer]:
                at_s = max(fault.at_s, float(begin_s[peer]))
            else:
                continue
            self._pending.remove(fault)
            if isinstance(fault, Hang):
                self._hang(peer, at_s, fault.for_s, finish_s)
            else:
                after_s = fault.after_s if isinstance(fault, Restart) else np.inf
                self._end(peer, at_s, at_s + after_s)
        begun = self.runs & np.isfinite(begin_s)
        for peer in np.flatnonzero(begun & (self._changes_s <= finish_s)).tolist():
            at_s = float(self._changes_s[peer])
            self._end(peer, at_s, self._availability.next_change(peer, at_s))

    def _end(self, peer: int, at_s: float, starts_s: float) -> None:
        """End the process of a peer. The peer restarts at ``starts_s``, or later when its
        availability allows it."""
        if starts_s < np.inf and not self._availability.present(peer, starts_s):
            starts_s = self._availability.next_change(peer, starts_s)
        noticed_s = at_s + ENDED_S
        self._stop(peer, noticed_s, noticed_s + self._refute_s, starts_s + RESTORED_S)
        self._lost_state[peer] = True

    def _hang(self, peer: int, at_s: float, for_s: float, finish_s: Times) -> None:
        if for_s <= SILENT_S:
            finish_s[peer] += for_s
            return
        noticed_s = at_s + SILENT_S
        dead_s = noticed_s + ACCUSED_S + self._refute_s
        resumed_s = at_s + for_s
        returns_s = REFUTED_S if self._rolling and resumed_s >= dead_s else RESUMED_S
        self._stop(peer, noticed_s, dead_s, resumed_s + returns_s)

    def _stop(self, peer: int, noticed_s: float, dead_s: float, back_s: float) -> None:
        self.runs[peer] = False
        self.noticed_s[peer], self.dead_s[peer], self._back_s[peer] = noticed_s, dead_s, back_s


def slice_of(peers: Peers) -> slice | Peers:
    """Return an index for these ascending rows: a slice if the rows are consecutive, because
    indexing with a slice copies nothing."""
    if len(peers) and int(peers[-1]) - int(peers[0]) == len(peers) - 1:
        return slice(int(peers[0]), int(peers[-1]) + 1)
    return peers
