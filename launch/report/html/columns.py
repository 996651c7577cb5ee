"""Rows of a run as columns of numbers: its commits, and values that its scripts logged.

A hundred thousand commits of eight peers have a million numbers. As parsed JSON they would take a
gigabyte.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossip.launch.report import history
from gossip.observe import CommitRow, ContributionRow, Event, Row, events
from gossip.run import real

from .downsampling import Floats

NAMES_MAX = 6
"""Maximum number of names of logged values that are drawn. Names in ``FIRST`` are always drawn."""
NOT_LOGGED = ("t", "wall", "peer", "round", "step", "event", "epoch")
FIRST = ("loss", "accuracy")


class Points:
    """Values of one kind, by peer, in the order of the file."""

    def __init__(self) -> None:
        self._x: dict[int, array[float]] = defaultdict(lambda: array("d"))
        self._y: dict[int, array[float]] = defaultdict(lambda: array("d"))

    def add(self, peer: int, x: float, y: float) -> None:
        self._x[peer].append(x)
        self._y[peer].append(y)

    @property
    def peers(self) -> list[int]:
        return sorted(self._x)

    @property
    def highest(self) -> float:
        """Largest value of any peer, at least 0.0."""
        return max([0.0, *(float(self.y(peer).max()) for peer in self.peers)])

    def x(self, peer: int) -> Floats:
        return np.frombuffer(self._x[peer]) if peer in self._x else np.empty(0)

    def y(self, peer: int) -> Floats:
        return np.frombuffer(self._y[peer]) if peer in self._y else np.empty(0)

    def all_x(self) -> Floats:
        """Return the x values of all peers, grouped by peer."""
        return np.concatenate([np.empty(0), *map(self.x, self.peers)])

    @cached_property
    def foremost(self) -> tuple[Floats, Floats]:
        """The x of all values, ascending, and the largest values up to each, ``(2, n)``: of all,
        and without those from which a peer went back later."""
        each = [self.y(peer) for peer in self.peers]
        kept = [np.minimum.accumulate(y[::-1])[::-1] for y in each]
        x, order = self.all_x(), np.argsort(self.all_x())
        both = np.stack([np.concatenate(each), np.concatenate(kept)])
        return x[order], np.maximum.accumulate(both[:, order], axis=1)


class Metric:
    """Values of one name, by time and by round."""

    def __init__(self) -> None:
        self.by_time, self.by_round = Points(), Points()

    def add(self, peer: int, t: float, round_id: int | None, value: float) -> None:
        self.by_time.add(peer, t, value)
        if round_id is not None:
            self.by_round.add(peer, round_id, value)


class Logged:
    """Values that scripts logged, by name: at most ``NAMES_MAX`` names, and those in ``FIRST``.
    ``lost``: number of values that were not finite, by name. ``warnings``: time, round and peer of
    each warning, by its text."""

    def __init__(self) -> None:
        self.found: dict[str, Metric] = {}
        self.lost: dict[str, int] = defaultdict(int)
        self.warnings: dict[str, list[tuple[float, int | None, int]]] = defaultdict(list)

    def add(self, row: Row) -> None:
        peer, t, round_id = row.get("peer"), row["t"], row.get("round")
        if peer is None:
            return
        for name, value in row.items():
            if name in NOT_LOGGED:
                continue
            found = real(value)
            if name == "warning":
                self.warnings[str(value)].append((t, round_id, peer))
            elif found is None:
                self.lost[name] += value is None
            elif self._wanted(name):
                self.found[name].add(peer, t, round_id, found)

    def _wanted(self, name: str) -> bool:
        if name not in self.found:
            if len(self.found) >= NAMES_MAX and name not in FIRST:
                return False
            self.found[name] = Metric()
        return True


class Series:
    """Values that peers reported, by peer and time.

    Attributes:
        steps: Completed steps of each peer's script; with local steps there are several a round.
        losses: Losses that rounds report.
        consensus: Consensus distances, as measured by peers in each round.
        trust: Trust in each peer, if rounds have no server.
        load: Load of the peer's machine.
        logged: Values that scripts logged.
    """

    def __init__(self) -> None:
        self.steps, self.consensus, self.trust, self.load = (Points() for _ in range(4))
        self.losses = Metric()
        self.logged = Logged()

    def record(self, event: Event, local_steps: int) -> None:
        """Record an event of a round, or about the use of resources."""
        match event:
            case events.Round() if event.round is not None:
                self._record_round(event, event.round, local_steps)
            case events.Usage() if event.load is not None:
                self.load.add(event.peer, event.t, event.load)

    def _record_round(self, event: events.Round, at: int, local_steps: int) -> None:
        self.steps.add(event.peer, event.t, (event.step or at + 1) * local_steps)
        if event.loss is not None:
            self.losses.add(event.peer, event.t, at, event.loss)
        if event.consensus_distance is not None:
            self.consensus.add(event.peer, event.t, event.consensus_distance)
        if event.server is None:
            for subject, score in event.scores.items():
                self.trust.add(subject, event.t, score)

    @property
    def metrics(self) -> dict[str, Metric]:
        """Metrics by name: the loss first, then the accuracy. If scripts log no loss, it is the
        loss that rounds report."""
        found = {"loss": self.losses} if self.losses.by_time.peers else {}
        found |= self.logged.found
        first = {name: found[name] for name in FIRST if name in found}
        return first | dict(sorted(found.items()))


class CommitColumns:
    """Commits of all branches; after ``settle``, only those of the history that counts.

    Each commit is one row of ``t``, ``round``, ``server`` and so on. Each contributor of a commit
    is one row of ``who``, ``took_s`` and so on, which belongs to commit ``of``. In a pipeline the
    rows are the commits of the last stage, with the contributors of all stages to the same round.
    ``makers``: the maker of each commit, of any stage.
    """

    def __init__(self) -> None:
        self._commits: list[CommitRow] = []  # with only the fields that their history needs
        self._groups: dict[tuple[int, ...], tuple[ContributionRow, ...]] = {}
        self._columns: dict[str, array[Any]] = {
            **{name: array("d") for name in ("t", "rule_s", "took_s", "weight", "outlyingness")},
            **{name: array("q") for name in ("round", "server", "attempt", "who", "of")},
        }
        self.trust = Points()
        self._trust: Any = None
        self.given_up: tuple[history.Branch, ...] = ()

    def add(self, commit: CommitRow) -> None:
        who = tuple([each.peer for each in commit.contributors])
        if who not in self._groups:
            self._groups[who] = tuple([ContributionRow(peer=peer) for peer in who])
        self._commits.append(
            CommitRow(
                t=commit.t,
                round=commit.round,
                server=commit.server,
                shard=commit.shard,
                stage=commit.stage,
                made_at=commit.made_at,
                chain=commit.chain,
                parent=commit.parent,
                contributors=self._groups[who],
            )
        )
        columns = self._columns
        at = len(columns["t"])
        columns["t"].append(commit.t)
        columns["round"].append(commit.round)
        columns["server"].append(commit.server)
        columns["attempt"].append(commit.made_at)
        columns["rule_s"].append(np.nan if commit.rule_s is None else commit.rule_s)
        for each in commit.contributors:
            columns["of"].append(at)
            columns["who"].append(each.peer)
            columns["took_s"].append((each.took_us or np.nan) / 1e6)
            columns["weight"].append(np.nan if each.weight is None else each.weight)
            columns["outlyingness"].append(each.outlyingness)
        self._note_trust(commit)

    def _note_trust(self, commit: CommitRow) -> None:
        """Record the trust of a commit if it has changed: usually all peers are trusted."""
        if commit.trust and commit.trust != self._trust:
            self._trust = commit.trust
            for peer, score in commit.scores.items():
                self.trust.add(peer, commit.t, score)

    def settle(self) -> None:
        """Drop abandoned branches, and shards beyond the first."""
        at = {id(commit): place for place, commit in enumerate(self._commits)}
        pasts = [history.read(commits) for commits in self._by_stage()]
        self.given_up = tuple(branch for past in pasts for branch in past.given_up)
        kept = [[commit for commit in past.true if not commit.shard] for past in pasts]
        keep = np.array([at[id(commit)] for commit in kept[-1]], np.int64)
        at_round = {commit.round: number for number, commit in enumerate(kept[-1])}
        place = np.full(len(self._commits), -1, np.int64)
        for commit in (commit for commits in kept for commit in commits):
            place[at[id(commit)]] = at_round.get(commit.round, -1)
        of_all = np.array([at[id(each)] for commits in kept for each in commits], np.int64)
        self.makers = self._whole("server")[of_all]
        of = place[self._whole("of")] if len(self._columns["of"]) else np.empty(0, np.int64)
        inside = of >= 0
        self.t, self.round = self._real("t")[keep], self._whole("round")[keep]
        self.server, self.attempt = self._whole("server")[keep], self._whole("attempt")[keep]
        self.rule_s = self._real("rule_s")[keep]
        self.of, self.who = of[inside], self._whole("who")[inside]
        self.outlyingness = self._real("outlyingness")[inside]
        self.took_s, self.weight = self._real("took_s")[inside], self._real("weight")[inside]
        self._commits, self._columns = [], {}

    def _by_stage(self) -> list[list[CommitRow]]:
        found: dict[int, list[CommitRow]] = {0: []}
        for commit in self._commits:
            found.setdefault(commit.stage, []).append(commit)
        return [found[stage] for stage in sorted(found)]

    def _real(self, name: str) -> Floats:
        return np.array(self._columns[name], np.float64)

    def _whole(self, name: str) -> NDArray[np.int64]:
        return np.array(self._columns[name], np.int64)

    def __len__(self) -> int:
        return len(self.t)

    @property
    def peers(self) -> list[int]:
        """Peers that contributed to any round."""
        return [int(peer) for peer in np.unique(self.who)]

    def lasted_s(self) -> Floats:
        """Return the time of each round since the commit before, ``(rounds,)``, in seconds; NaN for
        the first."""
        return np.concatenate([[np.nan], np.diff(self.t)])[: len(self.t)]

    def handed_on(self) -> Iterator[tuple[int, int]]:
        """Return the rounds that a server other than the first committed, with the attempt."""
        handed = self.attempt > 0
        return zip(self.round[handed].tolist(), self.attempt[handed].tolist(), strict=True)

    def contributors(self) -> Floats:
        """Return the number of updates in each result, ``(rounds,)``."""
        return np.bincount(self.of, minlength=len(self)).astype(np.float64)

    def slowest(self) -> tuple[NDArray[np.int64], Floats, Floats]:
        """Return for each round the peer with the longest time for its update (-1: not known), this
        time, and the median of all peers, in seconds."""
        who = np.full(len(self), -1, np.int64)
        longest, median = np.full(len(self), np.nan), np.full(len(self), np.nan)
        known = np.isfinite(self.took_s)
        of, took, peers = self.of[known], self.took_s[known], self.who[known]
        if not len(of):
            return who, longest, median
        order = np.lexsort((took, of))
        of, took, peers = of[order], took[order], peers[order]
        last = np.append(np.flatnonzero(np.diff(of)), len(of) - 1)
        first = np.concatenate([[0], last[:-1] + 1])
        who[of[last]], longest[of[last]] = peers[last], took[last]
        median[of[last]] = (took[(first + last) // 2] + took[(first + last + 1) // 2]) / 2
        return who, longest, median
