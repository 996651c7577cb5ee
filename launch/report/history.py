"""Division of a run's commits into its history and the branches that were given up. One branch of a
fork counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Row: TypeAlias = Mapping[str, Any]
RECENT_ROUNDS = 8  # as the core weighs a branch
# a commit that nothing was built on may have been applied by nobody:
# its maker died before it sent it
BRANCH_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Branch:
    """Rounds that were given up, first to last."""

    rows: tuple[Row, ...]

    @property
    def first(self) -> int:
        return int(self.rows[0]["round"])

    @property
    def rounds(self) -> int:
        return len({row["round"] for row in self.rows})

    @property
    def t(self) -> float:
        """When its first commit was made; monotonic seconds."""
        return float(self.rows[0].get("t") or 0.0)

    @property
    def peers(self) -> list[int]:
        """Peers that contributed to its last rounds. The first rounds of a branch may still have
        updates of other peers."""
        last = self.rows[-1]["round"]
        recent = [row for row in self.rows if row["round"] > last - RECENT_ROUNDS]
        return sorted({c["peer"] for row in recent for c in row.get("contributors") or ()})


@dataclass(frozen=True, slots=True)
class History:
    """``true``: one commit for each (round, shard), in order. ``given_up``: branches of at least
    ``BRANCH_ROUNDS`` rounds."""

    true: tuple[Row, ...]
    given_up: tuple[Branch, ...]


class _BranchRound:
    """The commits of one round on one branch."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}  # by shard

    def add(self, row: Row) -> None:
        shard = row.get("shard") or 0
        known = self.rows.get(shard)
        if known is None or (row.get("made_at") or 0) > (known.get("made_at") or 0):
            self.rows[shard] = row

    @property
    def made_at(self) -> int:
        return max(int(row.get("made_at") or 0) for row in self.rows.values())

    @property
    def parent(self) -> Any:
        return next(iter(self.rows.values())).get("parent")

    @property
    def contributors(self) -> set[int]:
        return {c["peer"] for row in self.rows.values() for c in row.get("contributors") or ()}


Key: TypeAlias = tuple[int, Any]  # round, chain


def read(rows: Iterable[Row]) -> History:
    """The history that the commits in ``rows`` make, in whatever order they come.

    The next round names the chain that it builds on. Where a run ends on several branches, or a
    commit is missing because its maker was killed before it could write it down, the branch with
    the most contributors in its last rounds counts, then the longest, then the one whose last
    commit was made at the latest attempt: it was made because the earlier was not heard of.

    In a pipeline each stage has commits of its own, of the same rounds. Those of the last count:
    they have the losses.
    """
    rounds: dict[Key, _BranchRound] = defaultdict(_BranchRound)
    kept = [row for row in rows if row.get("round") is not None]
    last = max((row.get("stage") or 0 for row in kept), default=0)
    for row in kept:
        if (row.get("stage") or 0) == last:
            rounds[row["round"], row.get("chain")].add(row)
    children = Counter((number - 1, found.parent) for (number, _), found in rounds.items())
    heads = set(rounds) - set(children)
    bridges = _bridges(rounds, heads)
    heads -= set(bridges.values())
    true: dict[int, Key] = {}
    below = max((number for number, _ in rounds), default=-1)
    while heads:
        candidates = [key for key in heads if key[0] <= below]
        if not candidates:
            break
        # After a gap: the nearest that there is.
        if true:
            nearest = max(number for number, _ in candidates)
            candidates = [key for key in candidates if key[0] == nearest]
        key: Key | None = max(
            candidates,
            key=lambda key: (_weight(rounds, key, children), key[0], rounds[key].made_at),
        )
        while key in rounds:
            assert key is not None
            true[key[0]] = key
            heads.discard(key)
            below = key[0] - 1
            parent = (key[0] - 1, rounds[key].parent)
            key = parent if parent in rounds else bridges.get(key)
    chosen = set(true.values())
    branches = [Branch(tuple(_path(rounds, head, chosen))) for head in heads]
    given_up = sorted(
        (branch for branch in branches if branch.rounds >= BRANCH_ROUNDS),
        key=lambda branch: branch.t,
    )
    ordered = tuple(
        row for number in sorted(true) for _, row in sorted(rounds[true[number]].rows.items())
    )
    return History(ordered, tuple(given_up))


def _bridges(rounds: Mapping[Key, _BranchRound], heads: set[Key]) -> dict[Key, Key]:
    """Return bridges over one missing commit in the midst of a branch: round after it -> head at
    which the branch continues.

    A Byzantine server records the commit that it made, not the one that it sent. That record is a
    head of its own in the round of the missing commit, and has the contributors. If the maker of a
    commit was killed before it recorded the commit, only the rounds before it are there.
    """
    found: dict[Key, Key] = {}
    for key, here in rounds.items():
        if (key[0] - 1, here.parent) not in rounds:
            before = [head for head in heads if key[0] - 2 <= head[0] < key[0]]
            if before:
                found[key] = max(
                    before,
                    key=lambda head: (head[0], len(rounds[head].contributors & here.contributors)),
                )
    return found


def _path(rounds: Mapping[Key, _BranchRound], head: Key, chosen: set[Key]) -> list[Row]:
    """The rows from where it left the true chain to its head."""
    path: list[Row] = []
    key = head
    while key in rounds and key not in chosen:
        path[:0] = [row for _, row in sorted(rounds[key].rows.items())]
        key = (key[0] - 1, rounds[key].parent)
    return path


def _weight(rounds: Mapping[Key, _BranchRound], head: Key, children: Mapping[Key, int]) -> int:
    """Distinct contributors of the last rounds up to ``head``, as far as they are not those of
    another branch, too. To the first round of a branch those have contributed, too, who have
    followed another since."""
    seen: set[int] = set()
    key = head
    for _ in range(RECENT_ROUNDS):
        if key not in rounds:
            break
        parent = (key[0] - 1, rounds[key].parent)
        if children.get(parent, 0) > 1:
            break
        seen |= rounds[key].contributors
        key = parent
    return len(seen)


def used(rows: Iterable[Row]) -> dict[int, NDArray[np.int64]]:
    """By epoch: how often each of its samples was used in a round of ``rows``, also in one of a
    later epoch. A sample counts if it went into the commits of all shards: others are given out
    again."""
    counts: dict[int, NDArray[np.int64]] = {}
    rows = [row for row in rows if row.get("epoch") is not None and row.get("samples_total")]
    shares: dict[tuple[str, str], dict[int, int]] = {}
    for row in rows:
        given = {c["peer"]: c["samples"] for c in row.get("contributors") or ()}
        share = shares.setdefault((str(row.get("lineage")), str(row.get("round"))), given)
        for peer in tuple(share):
            share[peer] = min(share[peer], given.get(peer, 0))
    for row in rows:
        if row.get("shard"):
            continue
        total = row["samples_total"]
        counts.setdefault(row["epoch"], np.zeros(total, np.int64))
        left = dict(shares[str(row.get("lineage")), str(row.get("round"))])
        for peer, ranges in (row.get("slices") or {}).items():
            for start, stop in ranges:
                end = min(stop, start + left.get(int(peer), 0))
                left[int(peer)] = left.get(int(peer), 0) - (end - start)
                _count(counts, total, max(0, start), end, row["epoch"])
    return counts


def _count(
    counts: dict[int, NDArray[np.int64]], total: int, start: int, stop: int, last: int
) -> None:
    """A slice of the line of all epochs up to the ``last``."""
    while start < min(stop, total * (last + 1)):
        epoch, at = divmod(start, total)
        here = min(total - at, stop - start)
        counts.setdefault(epoch, np.zeros(total, np.int64))[at : at + here] += 1
        start += here


def cost(branch: Branch, true: Sequence[Row]) -> dict[str, int]:
    """Return the cost of giving up a branch: the number of samples that were given back, and how
    many of these the others also read."""
    ours, theirs = used(true), used(branch.rows)
    given_back = sum(int(count.sum()) for count in theirs.values())
    both = sum(
        int(((count > 0) & (ours[epoch] > 0)).sum())
        for epoch, count in theirs.items()
        if epoch in ours
    )
    return {"samples_given_back": given_back, "samples_read_twice": both}
