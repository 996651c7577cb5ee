"""Detection of peers that have little weight in the rule, which may indicate rare data."""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import fmean

from gossip.core import Commit, PeerId

ROUNDS, LOW, LEFT_OUT_MOST = 20, 0.5, 0.25
"""Three limits. The weight of a peer is averaged over the first number of updates. A peer is
reported if its weight is below the second multiple of an equal weight. The third is the largest
share of updates in a round that may be below this multiple: if a rule excludes more, its choice is
random."""


class InfluenceWatch:
    """Mean weight of each peer's recent updates, in multiples of an equal weight. With several
    shards, only the first one is observed."""

    def __init__(self) -> None:
        self._weights: defaultdict[PeerId, deque[float]] = defaultdict(lambda: deque(maxlen=ROUNDS))
        self._low: set[PeerId] = set()

    def observe_commit(self, commit: Commit) -> list[tuple[PeerId, float]]:
        """Record a round. Return the peers with a weight that has become low, each with its mean
        weight."""
        n = len(commit.contributors)
        weights = {each.peer: each.weight * n for each in commit.contributors}
        if commit.shard or sum(weight < LOW for weight in weights.values()) > LEFT_OUT_MOST * n:
            return []
        found = []
        for peer, weight in weights.items():
            recent = self._weights[peer]
            recent.append(weight)
            if len(recent) < ROUNDS or (mean := fmean(recent)) >= LOW:
                self._low.discard(peer)
            elif peer not in self._low:
                self._low.add(peer)
                found.append((peer, round(mean, 3)))
        return found
