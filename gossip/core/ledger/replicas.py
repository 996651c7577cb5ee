"""Whether replicas are equal, as the rules of a rolling round have them.

In some rounds each trainer sends, with its update, digests of its replica as it was before the
round. The commit carries the digests that most peers have, and names the peers that have others. A
peer that differs takes over the state of one that does not. If a peer differs again, and has missed
no round in between, its script makes the replicas different (or its machine does): a state of
others cannot help it, and with more such peers than f the run ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gossip.core.messages import Commit, PeerId

FIRST_STEPS = 3
"""Steps from the beginning of a run after each of which replicas are compared."""
UNDECIDED = b"?"
"""Digests of a commit if too few peers have sent any: all compare in the next round."""
RETURNS_MAX = 2
"""Comparisons in which a peer differs, with no missed round between them, before it stops."""


def compare(digests: Mapping[PeerId, bytes], n: int, f: int) -> tuple[bytes, tuple[PeerId, ...]]:
    """Return the digests that most of ``n`` peers have sent, and the peers that have sent others,
    ascending. Empty digests are none.

    Without a majority of the ``n`` nothing follows, (``UNDECIDED``, ()), unless all of them have
    sent digests and more than 2 ``f`` did: honest ones differ then. Of equally many peers those
    with the lowest id are right.
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
    """Comparisons in which one peer has differed since it last missed a round."""

    servers: set[PeerId] = field(default_factory=set)  # that have said so
    count: int = 0
    is_away: bool = True  # it takes over a state, and misses rounds by that


class DivergenceWatch:
    """Peers whose replicas differ again and again, by what commits say.

    Attributes:
        struck: Peers that have differed ``RETURNS_MAX`` times without a missed round, as more than
            f servers have committed.
        round_id: The last round that was observed.
        contributors: Peers whose updates are in the last step.
        is_active: Whether the next commit is to be observed though its contributors are the same.
        compares_next: Whether the replicas are to be compared in the next round: in the first
            steps, once a peer has returned, and if too few have compared theirs in the last one.
    """

    def __init__(self, f: int) -> None:
        self._f = f
        self._divergences: dict[PeerId, _Divergence] = {}
        self.round_id = -1
        self.contributors: Sequence[PeerId] = ()
        self.struck: frozenset[PeerId] = frozenset()
        self.compares_next, self.is_active = False, True

    def observe(self, commit: Commit, contributors: Sequence[PeerId], step: int) -> None:
        """Take in the first shard's commit of a round, behind which ``step`` steps are made, and
        its contributors."""
        if commit.round_id <= self.round_id:
            return
        self.round_id = commit.round_id
        if not contributors:
            return  # a collective operation, or a lost round: nobody has missed anything
        returned = bool(self.contributors) and set(contributors).difference(self.contributors)
        undecided = commit.replica == UNDECIDED
        self.compares_next = bool(returned) or undecided or step <= FIRST_STEPS
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
