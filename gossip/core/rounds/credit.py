"""Credit of each peer: the limit on the delay that it can cause by claims that no other peer can
check."""

from __future__ import annotations

from math import inf

from gossip.core.messages import PeerId
from gossip.core.settings import CREDIT_REGAINED


class TokenBucket:
    """Amount that each peer has spent on waits without a result.

    Without credit, the claims of a peer do not count. ``CREDIT_REGAINED`` of the elapsed time
    returns. So a Byzantine peer can delay by its credit once, and then by a hundredth of the time.
    Amounts
    are in units of ``unit_s``: seconds, or round timeouts, which change.
    """

    def __init__(self) -> None:
        self.by_peer: dict[PeerId, tuple[float, float]] = {}  # amount spent, and as of when

    def spent(self, peer: PeerId, now: float, unit_s: float = 1.0) -> float:
        amount, as_of = self.by_peer.get(peer, (0.0, now))
        return max(0.0, amount - CREDIT_REGAINED * (now - as_of) / unit_s)

    def spend(
        self, peer: PeerId, amount: float, now: float, unit_s: float = 1.0, most: float = inf
    ) -> None:
        """Add to the amount that a peer has spent, which is at most ``most`` then."""
        self.by_peer[peer] = min(self.spent(peer, now, unit_s) + amount, most), now

    def refund(self, peer: PeerId, amount: float, now: float, unit_s: float) -> None:
        if peer in self.by_peer:
            self.spend(peer, -amount, now, unit_s)

    def spend_wait(self, peer: PeerId, since: float, now: float) -> None:
        """Charge the seconds since ``since`` waited for a peer that did not send. A wait in several
        shards at once is charged once."""
        self.spend(peer, self._uncharged_s(peer, since, now), now)

    def is_left(self, peer: PeerId, since: float, now: float, most_s: float) -> bool:
        """Whether a peer has spent less than ``most_s`` seconds, with the wait since ``since``."""
        return self.spent(peer, now) + self._uncharged_s(peer, since, now) < most_s

    def _uncharged_s(self, peer: PeerId, since: float, now: float) -> float:
        _, as_of = self.by_peer.get(peer, (0.0, since))
        return now - max(since, as_of)
