"""Records of a run as numeric columns: the commits, and the values that scripts have logged.

A hundred thousand commits of eight peers have a million values. As parsed JSON they would need a
gigabyte of memory.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossip.launch.report import history
from gossip.observe import CommitRow, ContributionRow, Event, Row, events
from gossip.run import real, shown

from .downsampling import Floats

NAMES_MAX = 6
WARNINGS_MAX = 40
"""Maximum numbers of names of logged values that are drawn, not counting ``FIRST``, and of
different warnings."""
NOT_LOGGED = ("t", "wall", "peer", "round", "step", "event", "epoch")
FIRST = ("loss", "accuracy")
OF_COMMIT = ("t", "round", "server", "shard", "stage", "made_at", "chain", "parent", "rule_ms")


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
        """Largest y value of all peers, or 0.0 if that is larger."""
        return max([0.0, *(float(self.y(peer).max()) for peer in self.peers)])

    def x(self, peer: int) -> Floats:
        return np.frombuffer(self._x[peer]) if peer in self._x else np.empty(0)

    def y(self, peer: int) -> Floats:
        return np.frombuffer(self._y[peer]) if peer in self._y else np.empty(0)

    def all_x(self) -> Floats:
        """Return the x values of all peers, grouped by peer."""
        return np.concatenate([np.empty(0), *map(self.x, self.peers)])

    def foremost(self) -> tuple[Floats, Floats]:
        """Return all x values, ascending, and for each the largest y value so far. If a peer later
        has a smaller value, its earlier values are lowered to that value."""
        kept = [np.minimum.accumulate(self.y(peer)[::-1])[::-1] for peer in self.peers]
        x, y = self.all_x(), np.concatenate([np.empty(0), *kept])
        order = np.argsort(x)
        return x[order], np.maximum.accumulate(y[order])


class Metric:
    """Logged values with one name, by time and by round."""

    def __init__(self) -> None:
        self.by_time, self.by_round = Points(), Points()

    def add(self, peer: int, t: float, round_id: int | None, value: float) -> None:
        self.by_time.add(peer, t, value)
        if round_id is not None:
            self.by_round.add(peer, round_id, value)


class Logged:
    """Values that scripts have logged, by name: the first ``NAMES_MAX`` names, and those in
    ``FIRST``. ``lost``: number of values that were not finite, by name. ``warnings``: time, round
    and peer of each warning, by the text of the warning."""

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
            if name == "warning" and isinstance(value, str):
                text = shown(value)
                if text in self.warnings or len(self.warnings) < WARNINGS_MAX:
                    self.warnings[text].append((t, round_id, peer))
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
        steps: Completed steps of each peer's script. With local steps, a round has several steps.
        losses: Losses that events of rounds report.
        consensus: Consensus distances that peers have measured in each round.
        trust: Trust in each peer, by trusted peer, if rounds have no server.
        load: Load of each peer's machine.
        logged: Values that scripts logged.
    """

    def __init__(self) -> None:
        self.steps, self.consensus, self.trust, self.load = (Points() for _ in range(4))
        self.losses = Metric()
        self.logged = Logged()

    def record(self, event: Event, local_steps: int) -> None:
        """Record an event if it is about a round or the use of resources."""
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
        """Metrics by name: the loss first, then the accuracy. If scripts log no loss, the loss is
        the one that rounds report."""
        found = {"loss": self.losses} if self.losses.by_time.peers else {}
        found |= self.logged.found
        first = {name: found[name] for name in FIRST if name in found}
        return first | dict(sorted(found.items()))


class CommitColumns:
    """Commits of all branches; after ``settle``, only the commits of the history.

    Each commit is one row of ``t``, ``round`` and so on. Each contributor of a commit is one row of
    ``who``, ``took_s`` and so on, which belongs to commit ``of``. In a pipeline the rows are the
    commits of the last stage, and the contributors of all stages to the same round. ``makers``:
    server of each commit, of all stages. ``lasted_s``: time from the previous commit to each
    commit; NaN for the first commit. ``usual_s``: median of these times.
    """

    def __init__(self) -> None:
        self._commits: list[CommitRow] = []  # with only the fields that ``history`` needs
        self._updates: list[Floats] = []  # by commit: rows of (peer, time, weight, outlyingness)
        self._groups: dict[tuple[int, ...], tuple[ContributionRow, ...]] = {}
        self.trust = Points()
        self._trust: Any = None
        self.given_up: tuple[history.Branch, ...] = ()

    def add(self, commit: CommitRow) -> None:
        updates = [
            (each.peer, each.took_us or None, each.weight, each.outlyingness)
            for each in commit.contributors
        ]
        who = tuple([peer for peer, *_ in updates])
        if who not in self._groups:
            self._groups[who] = tuple([ContributionRow(peer=peer) for peer in who])
        known = {name: getattr(commit, name) for name in OF_COMMIT}
        self._commits.append(CommitRow.wrap({**known, "contributors": self._groups[who]}))
        self._updates.append(np.array(updates, np.float64).reshape(-1, 4))
        if commit.trust and commit.trust != self._trust:  # Usually all peers are trusted.
            self._trust = commit.trust
            for peer, score in commit.scores.items():
                self.trust.add(peer, commit.t, score)

    def settle(self) -> None:
        """Compute the columns. Drop the commits of abandoned branches, and of shards other than the
        first."""
        stages = sorted({commit.stage for commit in self._commits}) or [0]
        pasts = [
            history.read(commit for commit in self._commits if commit.stage == stage)
            for stage in stages
        ]
        self.given_up = tuple(branch for past in pasts for branch in past.given_up)
        kept = [commit for past in pasts for commit in past.true if not commit.shard]
        last = [commit for commit in kept if commit.stage == stages[-1]]
        self.t = np.array([commit.t for commit in last], np.float64)
        self.lasted_s: Floats = np.concatenate([[np.nan], np.diff(self.t)])[: len(last)]
        known = self.lasted_s[np.isfinite(self.lasted_s)]
        self.usual_s = float(np.median(known)) if len(known) else None
        self.rule_s = np.array([commit.rule_s for commit in last], np.float64)
        self.round = np.array([commit.round for commit in last], np.int64)
        self.attempt = np.array([commit.made_at for commit in last], np.int64)
        self.makers = np.array([commit.server for commit in kept], np.int64)
        place = {commit.round: number for number, commit in enumerate(last)}
        at = {id(commit): number for number, commit in enumerate(self._commits)}
        found = [
            (place[commit.round], self._updates[at[id(commit)]])
            for commit in kept
            if commit.round in place
        ]
        counts = [len(updates) for _, updates in found]
        self.of = np.repeat(np.array([number for number, _ in found], np.int64), counts)
        rows = np.concatenate([np.empty((0, 4)), *(updates for _, updates in found)])
        self.who, self.took_s = rows[:, 0].astype(np.int64), rows[:, 1] / 1e6
        self.weight, self.outlyingness = rows[:, 2], rows[:, 3]
        self._commits, self._updates = [], []

    def __len__(self) -> int:
        return len(self.t)

    def handed_on(self) -> Iterator[tuple[int, int]]:
        """Return (round, attempt) of each round that a server other than the round's first server
        has committed."""
        handed = self.attempt > 0
        return zip(self.round[handed].tolist(), self.attempt[handed].tolist(), strict=True)

    def contributors(self) -> Floats:
        """Return the number of updates in each commit, ``(rounds,)``."""
        return np.bincount(self.of, minlength=len(self)).astype(np.float64)

    def slowest(self) -> tuple[NDArray[np.int64], Floats]:
        """Return for each round the peer that needed the longest time for its update (-1 if not
        known), and this time in seconds."""
        who, longest = np.full(len(self), -1, np.int64), np.full(len(self), np.nan)
        np.fmax.at(longest, self.of, self.took_s)
        is_slowest = self.took_s == longest[self.of]
        who[self.of[is_slowest]] = self.who[is_slowest]
        return who, longest
