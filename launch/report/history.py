"""Division of a run's commits into its history and the abandoned branches. Only one branch
of each fork is part of the history."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gossip.observe import CommitRow

RECENT_ROUNDS = 8  # as in the core
# At least two: a single commit at the end may exist only on a peer that died before it sent the
# commit.
BRANCH_ROUNDS = 2
EPOCHS_MAX = 1000
"""Maximum number of epochs that one slice of a round may span."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Abandoned branch: its commits, in order of their rounds."""

    commits: tuple[CommitRow, ...]

    @property
    def first(self) -> int:
        return self.commits[0].round

    @property
    def rounds(self) -> int:
        return len({commit.round for commit in self.commits})

    @property
    def t(self) -> float:
        """Time of its first commit, in seconds."""
        return self.commits[0].t

    @property
    def peers(self) -> list[int]:
        """Peers that contributed to the last rounds of the branch. Its first rounds may still
        contain updates of other peers."""
        last = self.commits[-1].round
        recent = [each.peers for each in self.commits if each.round > last - RECENT_ROUNDS]
        return sorted(set[int]().union(*recent))


@dataclass(frozen=True, slots=True)
class History:
    """History of a run. ``true``: the valid commit of each (round, shard), in order. ``given_up``:
    abandoned branches of at least ``BRANCH_ROUNDS`` rounds."""

    true: tuple[CommitRow, ...]
    given_up: tuple[Branch, ...]


class _BranchRound:
    """The commits of one round on one branch."""

    def __init__(self) -> None:
        self.shards: dict[int, CommitRow] = {}

    def add(self, commit: CommitRow) -> None:
        known = self.shards.get(commit.shard)
        if known is None or commit.made_at > known.made_at:
            self.shards[commit.shard] = commit

    @property
    def made_at(self) -> int:
        return max(commit.made_at for commit in self.shards.values())

    @property
    def parent(self) -> str:
        return next(iter(self.shards.values())).parent

    @property
    def peers(self) -> set[int]:
        return {peer for commit in self.shards.values() for peer in commit.peers}

    @property
    def by_shard(self) -> list[CommitRow]:
        return [commit for _, commit in sorted(self.shards.items())]


Key: TypeAlias = tuple[int, str]  # round, chain


def read(commits: Iterable[CommitRow]) -> History:
    """Return the history of the commits, which may be in any order.

    A commit names the chain that it extends. A run may end on several branches, or the server of a
    commit may have been killed before it recorded the commit. The branch with the most contributors
    in its last rounds is then the history. A tie goes to the longest branch, and then to the branch
    with the latest attempt in its last commit, because that server had received no earlier commit.

    In a pipeline each stage has its own commits for the same rounds. The history has the commits of
    the last stage, because they contain the losses.
    """
    rounds: dict[Key, _BranchRound] = defaultdict(_BranchRound)
    kept = list(commits)
    last = max((commit.stage for commit in kept), default=0)
    for commit in kept:
        if commit.stage == last:
            rounds[commit.round, commit.chain].add(commit)
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
        # After a gap, continue at the nearest earlier round.
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
    ordered = tuple(each for number in sorted(true) for each in rounds[true[number]].by_shard)
    return History(ordered, tuple(given_up))


def _bridges(rounds: Mapping[Key, _BranchRound], heads: set[Key]) -> dict[Key, Key]:
    """Return bridges over single missing commits inside a branch: for the round after a gap, the
    head at which the branch continues.

    A Byzantine server may record another commit than it sends. Its record is a separate head in the
    round of the missing commit, and contains the contributors. If the server of a commit was killed
    before it recorded the commit, the branch continues in the round before.
    """
    found: dict[Key, Key] = {}
    for key, here in rounds.items():
        if (key[0] - 1, here.parent) not in rounds:
            before = [head for head in heads if key[0] - 2 <= head[0] < key[0]]
            if before:
                found[key] = max(
                    before,
                    key=lambda head: (head[0], len(rounds[head].peers & here.peers)),
                )
    return found


def _path(rounds: Mapping[Key, _BranchRound], head: Key, chosen: set[Key]) -> list[CommitRow]:
    """Return the commits of a branch, from the first one after the fork to its head."""
    path: list[CommitRow] = []
    key = head
    while key in rounds and key not in chosen:
        path[:0] = rounds[key].by_shard
        key = (key[0] - 1, rounds[key].parent)
    return path


def _weight(rounds: Mapping[Key, _BranchRound], head: Key, children: Mapping[Key, int]) -> int:
    """Return the number of different contributors to the last rounds up to ``head``. Rounds that
    several branches share do not count. The first round of a branch does not count either, because
    peers that then followed another branch may have contributed to it."""
    seen: set[int] = set()
    key = head
    for _ in range(RECENT_ROUNDS):
        if key not in rounds:
            break
        parent = (key[0] - 1, rounds[key].parent)
        if children.get(parent, 0) > 1:
            break
        seen |= rounds[key].peers
        key = parent
    return len(seen)


Ranges: TypeAlias = list[tuple[int, int]]


def used(commits: Iterable[CommitRow]) -> tuple[int, dict[int, Ranges]]:
    """Return the number of samples of an epoch, and the ranges of samples that the rounds used, by
    epoch. A sample counts if the commits of all shards of its round contain it; other samples are
    assigned again.

    Memory and time depend only on the number of slices, not on their sizes, because the files are
    untrusted.
    """
    ranges: dict[int, Ranges] = {}
    sharded = [commit for commit in commits if commit.epoch is not None and commit.samples_total]
    total = sharded[0].samples_total if sharded else 0
    shares: dict[tuple[str, int], dict[int, int]] = {}
    for commit in sharded:
        given = {each.peer: each.samples for each in commit.contributors}
        share = shares.setdefault((commit.lineage, commit.round), given)
        for peer in tuple(share):
            share[peer] = min(share[peer], given.get(peer, 0))
    for commit in sharded:
        if commit.shard or commit.epoch is None or commit.samples_total != total:
            continue
        ranges.setdefault(commit.epoch, [])
        left = dict(shares[commit.lineage, commit.round])
        for name, slices in commit.slices.items():
            peer = int(name)
            for start, stop in slices:
                end = min(stop, start + left.get(peer, 0))
                left[peer] = left.get(peer, 0) - (end - start)
                _add_slice(ranges, total, (max(0, start), end), commit.epoch)
    return total, ranges


def _add_slice(ranges: dict[int, Ranges], total: int, of_line: tuple[int, int], last: int) -> None:
    """Add a slice of the samples of all epochs up to ``last``, cut at the ends of epochs."""
    start, stop = of_line[0], min(of_line[1], total * (last + 1))
    if stop - start > EPOCHS_MAX * total:
        return  # No round uses so many epochs: the file is invalid.
    while start < stop:
        epoch, at = divmod(start, total)
        here = min(total - at, stop - start)
        ranges.setdefault(epoch, []).append((at, at + here))
        start += here


def count_uses(ranges: Ranges, total: int) -> tuple[int, int, int]:
    """Return how many of the ``total`` samples are in none of the ranges, in exactly one, and in
    several."""
    found, depth, before = [0, 0, 0], 0, 0
    for at, change in sorted([*((a, 1) for a, _ in ranges), *((b, -1) for _, b in ranges)]):
        found[min(depth, 2)] += at - before
        depth, before = depth + change, at
    return found[0] + total - before, found[1], found[2]


def cost(branch: Branch, true: Sequence[CommitRow]) -> dict[str, int]:
    """Return the cost of an abandoned branch: the number of samples that it used for no result, and
    how many of them the history also used."""
    (total, ours), (_, theirs) = used(true), used(branch.commits)
    given_back = sum(stop - start for ranges in theirs.values() for start, stop in ranges)
    both = 0
    for epoch, ranges in theirs.items():
        others = ours.get(epoch, [])
        for sign, each in ((1, ranges), (1, others), (-1, ranges + others)):
            both += sign * (total - count_uses(each, total)[0])
    return {"samples_given_back": given_back, "samples_read_twice": both}
