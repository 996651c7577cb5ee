"""Compares searches for the order of peers in a pipeline with unequal links and one peer per stage.
The searches are exact cuts, local moves, the differentiable search, and a Markov chain over cuts
and orders.

    python benchmarks/plan_searches.py                      # 200 instances of 5 peers, 40 of 8
    python benchmarks/plan_searches.py --evaluations 20000 --instances 20

All minimise the same predicted step. The chain is Metropolis-Hastings as in FlexFlow (Jia, Zaharia,
Aiken 2019, arXiv:1807.05358): each proposal moves one cut by a layer, or swaps two peers, and is
accepted with min(1, exp((now - proposed) / (TEMPERATURE * now))). The chain begins with equal cuts
and the given order, and its result is the best state that it has visited. Times are processor time.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # instances of the tests
from pipeline_instances import WORK, uneven

from gossip_lab.pages import markdown_table
from gossip_pipelines.planning import (
    Placement,
    StageCosts,
    best_placement,
    cut_at,
    every_assignment,
    improved,
    search_placement,
)

Groups = tuple[tuple[int, ...], ...]
Way = Callable[[], Placement | None]
INSTANCES = {5: 200, 8: 40}
EVERY_ORDER_PEERS = 5
EVALUATIONS = 2_000
TEMPERATURE = 0.02


def sample_placement(
    stage_costs: StageCosts, given: Groups, seed: int, evaluations: int
) -> Placement:
    """Return the best state that a chain visits in ``evaluations`` evaluations of the predicted
    step."""
    draw, stages = Random(seed), len(given)
    layers = len(stage_costs.costs.layers)
    groups, bounds = given, tuple(layers * stage // stages for stage in range(stages + 1))
    best = now = Placement(stage_costs, groups, cut_at(stage_costs.tables(groups), bounds))
    for _ in range(evaluations - 1):
        places, ends = list(now.groups), list(now.cut.bounds)
        if draw.random() < 0.5:
            one, other = draw.sample(range(stages), 2)
            places[one], places[other] = places[other], places[one]
        else:
            ends[draw.randrange(1, stages)] += draw.choice((-1, 1))
        if any(end <= begin for begin, end in pairwise(ends)):
            continue  # a stage has no layers; the attempt counts as evaluated
        proposed = Placement(
            stage_costs, tuple(places), cut_at(stage_costs.tables(places), tuple(ends))
        )
        longer = proposed.step_s - now.step_s
        if longer <= 0 or draw.random() < math.exp(-longer / (TEMPERATURE * now.step_s)):
            now = proposed
            best = min(best, now, key=lambda each: each.step_s)
    return best


def ways_of(stage_costs: StageCosts, given: Groups, seed: int, evaluations: int) -> dict[str, Way]:
    """Return the searches by name. The first search is the reference of the comparison."""
    count = len(given)
    chain = partial(sample_placement, stage_costs, given, seed, evaluations)
    ways: dict[str, Way] = {
        "exact cuts, given order": partial(best_placement, stage_costs, iter([given])),
        "exact cuts, local moves of peers": partial(improved, stage_costs, given, seed),
        "differentiable search": partial(search_placement, stage_costs, count, seed),
        f"Markov chain, {evaluations:,} steps": chain,
    }
    if count <= EVERY_ORDER_PEERS:
        every = every_assignment(count, count, 1)
        ways["exact cuts, every order"] = partial(best_placement, stage_costs, every)
    return ways


def rows_of(count: int, instances: int, evaluations: int) -> list[list[str]]:
    """Return the table rows for one number of peers."""
    found: dict[str, list[float]] = {}
    taken: dict[str, list[float]] = {}
    for seed in range(instances):
        costs = uneven(seed + 5000, 6 + seed % 7 + count, count)
        given = tuple((peer,) for peer in range(count))
        names = list(ways_of(StageCosts(costs, WORK), given, seed, evaluations))
        for name in names:
            way = ways_of(StageCosts(costs, WORK), given, seed, evaluations)[name]
            began = time.process_time()
            placement = way()
            taken.setdefault(name, []).append(time.process_time() - began)
            found.setdefault(name, []).append(placement.step_s if placement else math.inf)
    least = [min(steps) for steps in zip(*found.values(), strict=True)]
    if (every := found.get("exact cuts, every order")) is not None:
        pairs = zip(every, least, strict=True)
        assert all(step <= 1.000001 * best for step, best in pairs), "a search beats the optimum"
    in_order = found["exact cuts, given order"]
    rows = []
    for name, steps in found.items():
        ratios = [step / other for step, other in zip(steps, in_order, strict=True)]
        over = [step / best for step, best in zip(steps, least, strict=True)]
        rows.append(
            [
                f"{count}, {instances} instances",
                name,
                str(sum(ratio < 0.999 for ratio in ratios)),
                str(sum(ratio > 1.001 for ratio in ratios)),
                f"{statistics.median(over):.3f}, {max(over):.3f}",
                f"{1e3 * statistics.mean(taken[name]):.1f}",
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instances", type=int, help="for each number of peers")
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    head = ["peers", "search", "shorter than exact cuts in the given order", "longer"]
    head += ["over the best found: median, worst", "ms"]
    rows = [
        row
        for count, instances in INSTANCES.items()
        for row in rows_of(count, options.instances or instances, options.evaluations)
    ]
    print("\n".join(markdown_table(head, rows)))


if __name__ == "__main__":
    main()
