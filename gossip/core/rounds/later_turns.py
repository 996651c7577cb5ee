"""Claims about later attempts: messages of peers about an attempt that the local peer has not
reached.

An honest peer moves to the next attempt when the server has timed out, is skipped, or does not
serve. In these cases the local peer follows a claim at once. In all other cases the claim is
unexplained: its sender may be Byzantine, or may have reasons that the local peer cannot see. The
local peer also follows an unexplained claim at once, because otherwise a round could have two
results. The delay by such claims is limited: the time lost in a claimed attempt is charged to the
credit of the claimant. If the credit is spent, further claims of the claimant are deferred until
the local peer leaves the present attempt for another reason.
"""

from __future__ import annotations

from gossip.core.messages import PeerId
from gossip.core.settings import (
    CLAIM_DOUBLINGS_MAX,
    CREDIT_TURNS,
    REFUND_TURNS,
    TURN_SHARE,
)

from .credit import TokenBucket
from .patience import Patience
from .shard import ShardRound


class LaterTurns:
    """Rules that decide which claims about later attempts are followed at once."""

    def __init__(self, f: int, patience: Patience) -> None:
        self.f, self.patience = f, patience
        self.credit = TokenBucket()  # Spent credit, in units of a round timeout.
        # Time of the last granted claim of all rounds, by peer and shard.
        self._granted_at: dict[tuple[PeerId, int], float] = {}

    def turn_s(self, shard: ShardRound) -> float:
        """Return the timeout of the server of the present attempt, in seconds."""
        return self.patience.deadline.round_timeout_s() * self.patience.timeout_factor(shard)

    def is_explained(self, shard: ShardRound, sender: PeerId, attempt: int, now: float) -> bool:
        """Whether the local peer sees a reason for which an honest peer could have reached
        ``attempt``."""
        if not self.f:
            return True
        passed = range(shard.attempt, min(attempt, shard.attempt + len(shard.order)))
        left = [each for each in passed if not self._is_out(shard.server_of(each))]
        if not left:
            return True
        server = shard.server_of(shard.attempt)
        if left != [shard.attempt]:
            return False
        if sender == server or shard.declined_attempt == shard.attempt:
            return True
        return self._waited(shard, now) >= TURN_SHARE and not self.patience.is_under_way(shard, now)

    def follow_claim(self, shard: ShardRound, sender: PeerId, attempt: int, now: float) -> bool:
        """Follow the claim of ``sender`` and end the present attempt, or defer the claim.

        Returns: Whether the claim is followed. If so, the caller sets ``shard.attempt``.
        """
        claims = shard.claims
        if self.defer_claim(shard, sender, attempt, now):
            return False
        is_unexplained = not self.is_explained(shard, sender, attempt, now)
        self.leave(shard, now)
        if is_unexplained:
            claims.led_here = sender
            claims.skipped += attempt - shard.attempt
        return True

    def defer_claim(self, shard: ShardRound, sender: PeerId, attempt: int, now: float) -> bool:
        """Store the claim of ``sender`` if it is unexplained and the credit of ``sender`` is spent.

        Returns: Whether the claim was stored.
        """
        if self._spent(shard, sender, now) < CREDIT_TURNS:
            return False
        if self.is_explained(shard, sender, attempt, now):
            return False
        shard.claims.deferred[sender] = max(attempt, shard.claims.deferred.get(sender, -1))
        return True

    def _spent(self, shard: ShardRound, sender: PeerId, now: float) -> float:
        """Return the credit that ``sender`` has spent, in round timeouts. If its claim led to the
        present attempt, the elapsed part of the attempt is included."""
        spent = self.credit.spent(sender, now, self.patience.deadline.round_timeout_s())
        return spent + (self._waited(shard, now) if shard.claims.led_here == sender else 0.0)

    def _waited(self, shard: ShardRound, now: float) -> float:
        """Return the elapsed fraction of the present server's timeout."""
        return (now - shard.claims.came_at) / self.turn_s(shard)

    def leave(self, shard: ShardRound, now: float) -> None:
        """End the present attempt. If an unexplained claim led to this attempt, charge the wait to
        the credit of the claimant."""
        claims = shard.claims
        if claims.led_here is not None:
            unit_s = self.patience.deadline.round_timeout_s()
            most = CREDIT_TURNS + 1
            self.credit.spend(claims.led_here, self._waited(shard, now), now, unit_s, most)
        claims.led_here, claims.came_at = None, now

    def end(self, shard: ShardRound, server: PeerId, now: float) -> None:
        """End the shard with a commit of ``server``, and refund a part of the credit that
        ``server`` has spent. If the commit arrived in time, no peer is charged."""
        claims = shard.claims
        if claims.led_here is not None and self._waited(shard, now) < TURN_SHARE:
            claims.led_here = None
        self.leave(shard, now)
        self.credit.refund(server, REFUND_TURNS, now, self.patience.deadline.round_timeout_s())

    def grant_claim(self, shard: ShardRound, serves: bool, now: float) -> int | None:
        """Grant the deferred claim with the latest attempt that may be followed now. Return this
        attempt, or None.

        After a claim of a peer is granted, the next claim of that peer waits for one pass through
        the order. Each further claim in the same round waits twice as long as the claim before.

        Args:
            serves: Whether the local peer may serve.
        """
        claims = shard.claims
        for peer, attempt in tuple(claims.deferred.items()):
            if attempt <= shard.attempt:
                del claims.deferred[peer]
        may_be = [
            (attempt, peer)
            for peer, attempt in claims.deferred.items()
            if now >= self._granted_again_at(shard, peer)
            and not self._is_out(shard.server_of(attempt))
            and (serves or shard.server_of(attempt) != self.patience.local)
        ]
        if not may_be:
            return None
        attempt, peer = max(may_be)
        del claims.deferred[peer]
        claims.granted[peer] = claims.granted.get(peer, 0) + 1
        claims.skipped += attempt - shard.attempt
        self._granted_at[peer, shard.index] = now
        return attempt

    def _is_out(self, server: PeerId) -> bool:
        """Whether ``server`` is a skipped peer. The local peer is never skipped."""
        return server != self.patience.local and bool(self.patience.skip_reason(server))

    def _granted_again_at(self, shard: ShardRound, peer: PeerId) -> float:
        last_at = self._granted_at.get((peer, shard.index), float("-inf"))
        times = min(max(1, shard.claims.granted.get(peer, 0)), CLAIM_DOUBLINGS_MAX)
        return last_at + len(shard.order) * self.turn_s(shard) * 2.0 ** (times - 1)
