"""Credit of each peer: a limit on the delay that the peer can cause by claims that no other peer
can check."""

from __future__ import annotations

from math import inf

from gossip.core.messages import PeerId
from gossip.core.settings import CREDIT_REGAINED


class TokenBucket:
    """Credit that each peer has spent on waits without a result.

    Claims of a peer without credit do not count. Spent credit recovers by the fraction
    ``CREDIT_REGAINED`` of the elapsed time. So a Byzantine peer can delay a run once by its credit,
    and afterwards by a hundredth of the time. Amounts are in units of ``unit_s``: seconds, or round
    timeouts, which change in length.
    """

    def __init__(self) -> None:
        self.by_peer: dict[PeerId, tuple[float, float]] = {}  # spent amount, and time of the entry

    def spent(self, peer: PeerId, now: float, unit_s: float = 1.0) -> float:
        amount, as_of = self.by_peer.get(peer, (0.0, now))
        return max(0.0, amount - CREDIT_REGAINED * (now - as_of) / unit_s)

    def spend(
        self, peer: PeerId, amount: float, now: float, unit_s: float = 1.0, most: float = inf
    ) -> None:
        """Add to the amount that a peer has spent. The sum is capped at ``most``."""
        self.by_peer[peer] = min(self.spent(peer, now, unit_s) + amount, most), now

    def refund(self, peer: PeerId, amount: float, now: float, unit_s: float) -> None:
        if peer in self.by_peer:
            self.spend(peer, -amount, now, unit_s)

    def spend_wait(self, peer: PeerId, since: float, now: float) -> None:
        """Charge the seconds since ``since``, in which the local peer waited for ``peer`` without a
        result. Simultaneous waits in several shards are charged only once."""
        self.spend(peer, self._uncharged_s(peer, since, now), now)

    def is_left(self, peer: PeerId, since: float, now: float, most_s: float) -> bool:
        """Whether a peer has credit left: including the wait since ``since``, it has spent less
        than ``most_s`` seconds."""
        return self.spent(peer, now) + self._uncharged_s(peer, since, now) < most_s

    def _uncharged_s(self, peer: PeerId, since: float, now: float) -> float:
        _, as_of = self.by_peer.get(peer, (0.0, since))
        return now - max(since, as_of)
