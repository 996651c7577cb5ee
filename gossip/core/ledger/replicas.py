"""Comparison of replicas in rolling rounds.

In some rounds each trainer sends digests of its replica before the round, together with its update.
The commit contains the digests that most peers have sent, and lists the peers with other digests. A
peer with other digests requests the state of a peer with the digests of most peers. If its replica
then differs again without a missed round in between, its script or its machine causes the
difference, and a state transfer does not help. If this happens to more than f peers, the run ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gossip.core.messages import Commit, PeerId
from gossip.core.settings import COMPARED_STEPS, RETURNS_MAX

UNDECIDED = b"?"
"""Value of ``Commit.replica`` if too few peers have sent digests. All peers then send digests in
the next round."""


def compare(digests: Mapping[PeerId, bytes], n: int, f: int) -> tuple[bytes, tuple[PeerId, ...]]:
    """Return the digests that most of ``n`` peers have sent, and the peers with other digests,
    ascending. Empty digests are ignored.

    If no digests have a majority of the ``n`` peers, the result is (``UNDECIDED``, ()). There is
    one exception: if all ``n`` peers have sent digests and ``n`` exceeds 2 ``f``, honest peers
    differ, and the most frequent digests are returned. In a tie, the group with the lowest peer id
    wins.
    """
    sent = {peer: digest for peer, digest in digests.items() if digest}
    count = Counter(sent.values())
    most = max(count, key=lambda d: (count[d], -min(p for p in sent if sent[p] == d)), default=b"")
    agrees = 2 * count[most] > n and count[most] > f
    if len(sent) < 2 or not (agrees or n <= len(sent) > 2 * f):
        return UNDECIDED if sent else b"", ()
    return most, tuple(sorted([peer for peer in sent if sent[peer] != most]))


@dataclass(slots=True)
class _Divergence:
    """Comparisons in which one peer has differed since the last round that it missed."""

    servers: set[PeerId] = field(default_factory=set)  # servers of the commits that list the peer
    count: int = 0
    is_away: bool = True  # whether the peer may be missing rounds because of a state transfer


class DivergenceWatch:
    """Peers that diverge repeatedly, according to the commits.

    Attributes:
        struck: Peers that have differed ``RETURNS_MAX`` times without a missed round, according to
            commits of more than f servers.
        round_id: The last observed round.
        contributors: Contributors to the last step that was observed.
        is_active: Whether to observe the next commit even if its contributors are unchanged.
        compares_next: Whether to compare the replicas in the next round: in the first steps, after
            the return of a peer, and if too few peers have sent digests in the last round.
    """

    def __init__(self, f: int) -> None:
        self._f = f
        self._divergences: dict[PeerId, _Divergence] = {}
        self.round_id = -1
        self.contributors: Sequence[PeerId] = ()
        self.struck: frozenset[PeerId] = frozenset()
        self.compares_next, self.is_active = False, True

    def observe(self, commit: Commit, contributors: Sequence[PeerId], step: int) -> None:
        """Record the commit of the first shard of a round, and the contributors of the round.
        ``step``: number of steps of the run up to and including this round."""
        if commit.round_id <= self.round_id:
            return
        self.round_id = commit.round_id
        if not contributors:
            return  # a collective operation or a lost round: no peer has missed a step
        returned = bool(self.contributors) and set(contributors).difference(self.contributors)
        undecided = commit.replica == UNDECIDED
        self.compares_next = bool(returned) or undecided or step <= COMPARED_STEPS
        self.contributors = contributors
        if self._divergences or commit.diverged:
            self._count(commit, contributors)
        self.is_active = self.compares_next or bool(self._divergences)

    def _count(self, commit: Commit, contributors: Collection[PeerId]) -> None:
        for peer in commit.diverged:
            found = self._divergences.setdefault(peer, _Divergence())
            found.servers.add(commit.server)
            found.count, found.is_away = found.count + 1, True
        for peer, found in tuple(self._divergences.items()):
            if peer in commit.diverged:
                continue
            if peer in contributors:
                found.is_away = False
            elif not found.is_away:
                del self._divergences[peer]
        self.struck = frozenset(
            [
                peer
                for peer, found in self._divergences.items()
                if found.count >= RETURNS_MAX and len(found.servers) > self._f
            ]
        )
