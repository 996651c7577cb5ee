"""Claims about later attempts: reports of a peer about an attempt that this peer has not reached.

An honest peer hands a shard on when the time of its server is over, or the server is skipped or
does not serve. This peer then follows a peer that names the next attempt at once. Any other peer
may be ahead for reasons that are not known here, or be Byzantine. This peer also follows it at
once, because otherwise a round could have two results. This has a limit: the time lost in these
attempts is charged to the peer's credit. Without credit, its claim is deferred until this peer
hands the shard on by itself.
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
    """Choice of the claims about later attempts that are followed at once."""

    def __init__(self, f: int, patience: Patience) -> None:
        self.f, self.patience = f, patience
        self.credit = TokenBucket()  # in turns: round timeouts
        self._granted_at: dict[tuple[PeerId, int], float] = {}  # by shard, over all rounds

    def turn_s(self, shard: ShardRound) -> float:
        """Return the time that this peer allows the server of the present attempt, in seconds."""
        return self.patience.deadline.round_timeout_s() * self.patience.timeout_factor(shard)

    def is_explained(self, shard: ShardRound, sender: PeerId, attempt: int, now: float) -> bool:
        """Whether an honest peer could be at ``attempt`` by now, in this peer's view."""
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
        """End the wait for the present attempt, or defer the claim of ``sender``.

        Returns: Whether the claim is followed. Then the caller sets ``shard.attempt``.
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
        """Store the claim of ``sender`` if it is unexplained and the credit is spent.

        Returns: Whether it was stored.
        """
        if self._spent(shard, sender, now) < CREDIT_TURNS:
            return False
        if self.is_explained(shard, sender, attempt, now):
            return False
        shard.claims.deferred[sender] = max(attempt, shard.claims.deferred.get(sender, -1))
        return True

    def _spent(self, shard: ShardRound, sender: PeerId, now: float) -> float:
        """Return the turns charged to ``sender``, including the present wait."""
        spent = self.credit.spent(sender, now, self.patience.deadline.round_timeout_s())
        return spent + (self._waited(shard, now) if shard.claims.led_here == sender else 0.0)

    def _waited(self, shard: ShardRound, now: float) -> float:
        """Return the elapsed fraction of the present server's time."""
        return (now - shard.claims.came_at) / self.turn_s(shard)

    def leave(self, shard: ShardRound, now: float) -> None:
        """End the present attempt. If only the claim of a peer led to it, charge the time waited to
        that peer's credit."""
        claims = shard.claims
        if claims.led_here is not None:
            unit_s = self.patience.deadline.round_timeout_s()
            most = CREDIT_TURNS + 1
            self.credit.spend(claims.led_here, self._waited(shard, now), now, unit_s, most)
        claims.led_here, claims.came_at = None, now

    def end(self, shard: ShardRound, server: PeerId, now: float) -> None:
        """End the shard with a commit of ``server``, and refund some of its credit. A commit in
        time charges no peer."""
        claims = shard.claims
        if claims.led_here is not None and self._waited(shard, now) < TURN_SHARE:
            claims.led_here = None
        self.leave(shard, now)
        self.credit.refund(server, REFUND_TURNS, now, self.patience.deadline.round_timeout_s())

    def grant_claim(self, shard: ShardRound, serves: bool, now: float) -> int | None:
        """Return the attempt of the latest deferred claim that may be followed now, or None.

        After a claim of a peer is granted, its next one waits for one pass through the order, and
        each further one in the same round for twice as long.

        Args:
            serves: Whether this peer may serve.
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
        """Whether ``server`` is another peer that is skipped."""
        return server != self.patience.local and bool(self.patience.skip_reason(server))

    def _granted_again_at(self, shard: ShardRound, peer: PeerId) -> float:
        last_at = self._granted_at.get((peer, shard.index), float("-inf"))
        times = min(max(1, shard.claims.granted.get(peer, 0)), CLAIM_DOUBLINGS_MAX)
        return last_at + len(shard.order) * self.turn_s(shard) * 2.0 ** (times - 1)
