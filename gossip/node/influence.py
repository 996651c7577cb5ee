"""Detects peers with little weight in the results. A low weight may mean that the peer has rare
data."""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import fmean

from gossip.core import Commit, PeerId

ROUNDS, LOW, LEFT_OUT_MOST = 20, 0.5, 0.25
"""``ROUNDS``: number of updates over which a peer's weight is averaged. ``LOW``: limit of this
mean, as a multiple of an equal weight, below which the peer is reported. ``LEFT_OUT_MOST``: rounds
are ignored if more than this share of their updates are below ``LOW``, because the rule then
excludes peers at random."""


class InfluenceWatch:
    """Mean weight of each peer's recent updates, as a multiple of an equal weight. If there are
    several shards, only the first shard is observed."""

    def __init__(self) -> None:
        self._weights: defaultdict[PeerId, deque[float]] = defaultdict(lambda: deque(maxlen=ROUNDS))
        self._low: set[PeerId] = set()

    def observe_commit(self, commit: Commit) -> list[tuple[PeerId, float]]:
        """Record the weights in a commit. Return the peers with a mean weight that has become low,
        each with its mean weight."""
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
