"""Scenarios in which a disturbed world eventually converges. Each scenario has a twin world that
lacks a condition for convergence, and must not converge.

All faults of a scenario end within its rounds. A world converges if two bounds hold at the end:

1. The consensus distance of every seed is at most ``CONSENSUS_MAX`` of the norm of the mean
   parameters. 2. On average over the seeds, the loss is at most ``WITHIN_ERRORS`` standard errors
   above the loss of the undisturbed world after the same number of used samples.

A twin exceeds bound 1 on average over the seeds, or its loss is more than ``TWIN_ERRORS`` standard
errors above.

    verdict = judge(SCENARIOS["partition"], range(50), store_of(Path("runs/convergence")), jobs=2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gossip.errors import ConfigError
from gossip.topologies import Plan, Roster, load, topology
from gossip_lab import estimates
from gossip_lab.cells import CellStore, run_cells

from .grids import CellResult, WorldCell, play_cell
from .mishaps import read_mishaps
from .played import PlayedRun
from .world import World

CONSENSUS_MAX = 0.1
"""Critical consensus distance, divided by the norm of the mean parameters (Kong et al. 2021,
"Consensus Control for Decentralized Deep Learning", arXiv:2102.04828)."""
WITHIN_ERRORS, TWIN_ERRORS = 2.0, 5.0
_RANDOM_K = load("random-k")


@topology
def parted(roster: Roster, round_id: int, seed: int, *, until: int = 0, k: int = 3) -> Plan:
    """Split the peers with even and with odd id into two groups, and apply random-k within each
    group. From the round ``until`` on, apply random-k to all peers. With ``until=0`` the split
    never ends."""
    if until and round_id >= until:
        return _RANDOM_K(roster, round_id, seed, k=k)
    groups = [Roster(roster.peers[part::2], roster.lineage) for part in (0, 1)]
    pushes = [_RANDOM_K(each, round_id, seed, k=k).pushes for each in groups if len(each)]
    return Plan(pushes={peer: to for some in pushes for peer, to in (some or {}).items()})


@topology
def by_turns(roster: Roster, round_id: int, seed: int, *, gap: bool = False) -> Plan:
    """Connect four groups of a ring in pairs: in even rounds the groups 0 and 1, and 2 and 3; in
    odd rounds the groups 1 and 2, and 3 and 0. The graph of a single round is not connected, but
    the union of two rounds is. With ``gap`` all rounds have the pairs of even rounds, so that the
    union is not connected either."""
    shift = 0 if gap else round_id % 2
    pushes: dict[int, tuple[int, ...]] = {}
    for pair in (0, 2):
        groups = {(pair + shift) % 4, (pair + shift + 1) % 4}
        members = tuple([peer for at, peer in enumerate(roster.peers) if at % 4 in groups])
        if members:
            both = Roster(members, roster.lineage)
            pushes |= _RANDOM_K(both, round_id, seed, k=3).pushes or {}
    return Plan(pushes=pushes)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A disturbed world that converges, and a twin that does not.

    Attributes:
        condition: Condition that the twin lacks.
        source: Source of the condition.
        calm: The world without the disturbance.
        world: The world with the disturbance.
        twin: The world with the disturbance, but without the condition.
        rounds: Number of rounds within which the world has to converge.
    """

    condition: str
    source: str
    calm: World
    world: World
    twin: World
    rounds: int = 120


_HERE = __name__
_BASE = World(
    peers=12, topology="random-k:k=3", lr=0.5, mix_every=1, split="sorted", model="mlp:16"
)
_LIED_TO = _BASE.replace(split="iid", aggregator="trimmed_mean", f=2, topology="random-k:k=7")
_MIXED = _BASE.replace(split="dirichlet:1.0")
_LOCAL = _BASE.replace(split="dirichlet:1.0", local_steps=30, lr=0.05)
_RETURNING = tuple(f"restart:{peer}@20+1s" for peer in range(4))
SCENARIOS = {
    "kill and return": Scenario(
        "no class of samples is only on peers that are gone",
        "each minimum of the mean loss needs the loss of every peer",
        _BASE,
        _BASE.replace(faults=_RETURNING),
        _BASE.replace(faults=("crash:0-3@20",)),
    ),
    "partition": Scenario(
        "the partition heals",
        "B-connectivity: Nedic and Olshevsky 2015",
        _BASE,
        _BASE.replace(topology=f"{_HERE}:parted:until=60"),
        _BASE.replace(topology=f"{_HERE}:parted"),
        rounds=200,
    ),
    "graph by turns": Scenario(
        "the union of the graphs of some rounds mixes",
        "Koloskova et al. 2020, arXiv:2003.10422",
        _MIXED,
        _MIXED.replace(topology=f"{_HERE}:by_turns"),
        _MIXED.replace(topology=f"{_HERE}:by_turns:gap=true"),
    ),
    "liars": Scenario(
        "at most f peers are Byzantine",
        "He et al. 2022, arXiv:2202.01545",
        _LIED_TO,
        _LIED_TO.replace(faults=("sign_flip:10,11*10",)),
        _LIED_TO.replace(faults=("sign_flip:7-11*10",)),
    ),
    "liars that come and go": Scenario(
        "at most f peers are Byzantine",
        "He et al. 2022, arXiv:2202.01545",
        _LIED_TO,
        _LIED_TO.replace(faults=("every_second:10,11*10",)),
        _LIED_TO.replace(faults=("every_second:7-11*10",)),
    ),
    "pauses": Scenario(
        "the step size is below the bound of stability",
        "Koloskova et al. 2020, arXiv:2003.10422",
        _BASE,
        _BASE.replace(faults=tuple(f"hang:{peer}@20+1s" for peer in range(4))),
        _BASE.replace(faults=tuple(f"hang:{peer}@20+1s" for peer in range(4)), lr=20.0),
    ),
    "staleness": Scenario(
        "updates are at most staleness_max rounds old",
        "Lian et al. 2018, arXiv:1710.06952",
        _BASE,
        _BASE.replace(faults=("slow:0-3*20@1s+2s",)),
        _BASE.replace(faults=("slow:0-3*20@1s",)),
    ),
    "slow links": Scenario(
        "updates are at most staleness_max rounds old",
        "Assran et al. 2019, arXiv:1811.10792",
        _MIXED,
        _MIXED.replace(links="delay:1ms,bytes:2420"),  # a push takes 4 s
        # A push takes 60 s, but peers wait at most 10 s.
        _MIXED.replace(links="delay:1ms,bytes:161"),
    ),
    "joiners": Scenario(
        "peers with a class of their own join",
        "each minimum of the mean loss needs the loss of every peer",
        _BASE,
        _BASE.replace(faults=tuple(f"restart:{peer}@0+2s" for peer in range(4))),
        _BASE.replace(faults=("crash:0-3@0",)),
    ),
    "local steps": Scenario(
        "the partition heals",
        "B-connectivity: Nedic and Olshevsky 2015",
        _LOCAL,
        _LOCAL.replace(topology=f"{_HERE}:parted:until=40", faults=_RETURNING),
        _LOCAL.replace(topology=f"{_HERE}:parted", faults=_RETURNING),
    ),
}
EVERY = 5


class Behind(NamedTuple):
    """How far a world is from convergence, with one value per seed.

    Attributes:
        distance: Consensus distance at the end.
        excess: Difference of the loss at the end and the loss of the undisturbed world after the
            same number of used samples.
    """

    distance: estimates.Estimate
    excess: estimates.Estimate

    @property
    def errors(self) -> float:
        """Mean ``excess`` divided by its standard error; infinity if a loss is not finite."""
        excess = self.excess
        return excess.mean / excess.error if np.isfinite(excess.mean) else np.inf


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a scenario over some seeds."""

    world: Behind
    twin: Behind

    @property
    def converges(self) -> bool:
        """Whether the world converges."""
        world = self.world
        return max(world.distance.values) <= CONSENSUS_MAX and world.errors <= WITHIN_ERRORS

    @property
    def twin_misses(self) -> bool:
        """Whether the twin does not converge."""
        return self.twin.distance.mean > CONSENSUS_MAX or self.twin.errors > TWIN_ERRORS


def judge(
    scenario: Scenario,
    seeds: Sequence[int],
    store: CellStore[WorldCell, CellResult],
    jobs: int,
) -> Verdict:
    """Play a scenario and its twin with each seed, and return the verdict.

    Raises: ConfigError: A world cannot be played.
    """
    kinds = scenario.calm, scenario.world, scenario.twin
    cells = [
        [WorldCell(world.replace(seed=seed), scenario.rounds, EVERY) for seed in seeds]
        for world in kinds
    ]
    found = run_cells([cell for each in cells for cell in each], play_cell, store, jobs)
    for result in found.values():
        if result.error:
            raise ConfigError(f"a world of the suite failed: {result.error}")
    calm, world, twin = [[found[cell].run for cell in each] for each in cells]
    return Verdict(
        _behind(world, calm, _honest_share(scenario.world)),
        _behind(twin, calm, _honest_share(scenario.twin)),
    )


def _honest_share(world: World) -> float:
    return 1 - len(read_mishaps(world.faults, world.peers).byzantine) / world.peers


def _behind(runs: Sequence[PlayedRun], calm: Sequence[PlayedRun], honest: float) -> Behind:
    """Return how far these runs are from convergence, compared with the undisturbed runs ``calm``.
    Only the share ``honest`` of the samples is used, because samples of Byzantine peers are
    useless."""
    distances = tuple(run.curve("consensus_distance")[-1][1] for run in runs)
    excess = []
    for run, undisturbed in zip(runs, calm, strict=True):
        used = honest * run.curve("samples")[-1][1]
        samples, losses = (
            [value for _, value in undisturbed.curve(metric)] for metric in ("samples", "loss")
        )
        excess.append(run.curve("loss")[-1][1] - float(np.interp(used, samples, losses)))
    return Behind(estimates.Estimate(distances), estimates.Estimate(tuple(excess)))
