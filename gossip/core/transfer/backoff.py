"""Backoff for peers that did not deliver. Such a peer receives no request for some time. Its
replies do not shorten this time."""

from __future__ import annotations

from collections import Counter

from gossip.core.messages import PeerId
from gossip.core.settings import REST_TIMES_MAX


class Backoff:
    """Backoff times of the peers that have failed. The first backoff time of a peer is ``first_s``.
    Each later backoff time is twice as long, up to ``REST_TIMES_MAX`` times the first."""

    def __init__(self, first_s: float) -> None:
        self.first_s = first_s
        self.failures: Counter[PeerId] = Counter()
        self._until: dict[PeerId, float] = {}

    def failed(self, peer: PeerId, now: float) -> None:
        self.failures[peer] += 1
        times = min(2 ** (self.failures[peer] - 1), REST_TIMES_MAX)
        self._until[peer] = now + times * self.first_s

    def delivered(self, peer: PeerId) -> None:
        """End the backoff of the peer at once. The number of its failures stays stored."""
        self._until.pop(peer, None)

    def is_resting(self, peer: PeerId, now: float) -> bool:
        return now < self._until.get(peer, now)

    def clear(self) -> None:
        self.failures.clear()
        self._until.clear()
