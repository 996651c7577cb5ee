"""Planning in figures: how fast the exact cuts are, how near the differentiable search comes, and
what it is worth where peers may go anywhere.

    python benchmarks/plan_tables.py            # 200 instances a table, some minutes of a processor
    python benchmarks/plan_tables.py --instances 20

Times are processor time. Instances are drawn from seeds (tests/pipeline_instances.py).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # instances of the tests
from pipeline_instances import WORK, alike, drawn_stages, try_every_cut, uneven

from gossip_pipelines.planning import (
    Costs,
    Cut,
    Placement,
    StageCosts,
    best_cut,
    best_placement,
    every_assignment,
    improved,
    played_step_s,
    search_placement,
)

ORIGIN = {(36, 8): "7.2 s", (24, 12): "1.8 s", (48, 24): "55 s", (64, 12): "97 s"}
"""Layers and stages -> what the origin's dynamic programming in Python took."""
Groups = tuple[tuple[int, ...], ...]
EVERY_ORDER_PEERS = 5
EVERY_CUT_MAX = (36, 8)
"""The origin's brute force took 109 s for it; the larger ones have 10^12 cuts and more."""
T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def solve(costs: Costs, groups: Groups) -> Cut | None:
    return best_cut(StageCosts(costs, WORK).tables(groups))


def sizes(instances: int) -> None:
    """The sizes of the origin, the tables of costs included."""
    print(
        "exact cuts: ms of processor time for tables and cuts, the median and the most of", end=" "
    )
    print(f"{instances} instances\n")
    print("| layers, stages | equal peers | unequal peers | every cut | the origin |")
    print("|---|---|---|---|---|")
    for (layers, stages), origin in ORIGIN.items():
        cells = []
        for make in (alike, uneven):
            groups = tuple((peer,) for peer in range(stages))
            taken = []
            for seed in range(instances):
                costs = make(seed, layers, stages)
                seconds, found = timed(partial(solve, costs, groups))
                assert found is not None
                taken.append(1e3 * seconds)
            cells.append(f"{statistics.median(taken):.1f} ({max(taken):.1f})")
        every = "-"
        if (layers, stages) == EVERY_CUT_MAX:
            tables = StageCosts(costs, WORK).tables(groups)
            seconds, oracle = timed(partial(try_every_cut, tables))
            assert oracle is not None
            assert found is not None
            assert abs(oracle.step_s / found.step_s - 1) < 1e-12
            every = f"{seconds:.1f} s"
        print(f"| {layers}, {stages} | {' | '.join(cells)} | {every} | {origin} |", flush=True)


def fixed_order(instances: int) -> None:
    """The search for cuts alone, where the optimum is known."""
    print(f"\ncuts for groups in a fixed order, {instances} instances of up to 12 layers\n")
    taken: dict[str, list[float]] = {name: [] for name in ("exact", "every cut", "search")}
    ratios: dict[str, list[float]] = {"rounded": [], "polished": []}
    for seed in range(instances):
        stage_costs, groups = drawn_stages(seed)
        tables = stage_costs.tables(groups)
        seconds, best = timed(partial(best_cut, tables))
        taken["exact"].append(seconds)
        taken["every cut"].append(timed(partial(try_every_cut, tables))[0])
        search = partial(search_placement, stage_costs, len(groups), seed, groups)
        seconds, searched = timed(search)
        taken["search"].append(seconds)
        if best is not None:
            ratios["rounded"].append(searched.rounded.step_s / best.step_s)
            ratios["polished"].append(searched.found.step_s / best.step_s)
    print("| | within 2 % of the optimum | worst | ms |")
    print("|---|---|---|---|")
    for name in ("exact", "every cut"):
        print(f"| {name} | all | 1.000 | {1e3 * statistics.mean(taken[name]):.2f} |")
    for name, of_name in ratios.items():
        near = sum(ratio <= 1.02 for ratio in of_name)
        ms = f"{1e3 * statistics.mean(taken['search']):.0f}" if name == "polished" else ""
        print(f"| search, {name} | {near} of {len(of_name)} | {max(of_name):.3f} | {ms} |")


def ways_to_place(
    stage_costs: StageCosts, given: Groups, seed: int
) -> dict[str, Callable[[], Placement | None]]:
    """Each looks for places of all peers."""
    count = len(given)

    def search() -> Placement:
        return search_placement(stage_costs, count, seed).found

    ways: dict[str, Callable[[], Placement | None]] = {
        "exact cuts, given order": partial(best_placement, stage_costs, iter([given])),
        "exact cuts, local moves of peers": partial(improved, stage_costs, given, seed),
        "differentiable search": search,
    }
    if count <= EVERY_ORDER_PEERS:
        every = every_assignment(count, count, 1)
        ways["exact cuts, every order"] = partial(best_placement, stage_costs, every)
    return ways


def free_peers(instances: int, peers: Sequence[int]) -> None:
    """Peers with unequal links go anywhere, one a stage."""
    for count in peers:
        print(f"\n{count} peers in {count} stages, unequal links, {instances} instances")
        print("\n| | shorter than the exact cuts in the given order | as long | longer |", end="")
        print(" over the best known: median, worst | ms |\n|---|---|---|---|---|---|")
        found: dict[str, list[float]] = {}
        taken: dict[str, list[float]] = {}
        for seed in range(instances):
            stage_costs = StageCosts(uneven(seed + 5000, 6 + seed % 7 + count, count), WORK)
            given = tuple((peer,) for peer in range(count))
            for name, way in ways_to_place(stage_costs, given, seed).items():
                seconds, placement = timed(way)
                assert placement is not None
                found.setdefault(name, []).append(placement.step_s)
                taken.setdefault(name, []).append(seconds)
        best = [min(steps) for steps in zip(*found.values(), strict=True)]
        for name, steps in found.items():
            in_order = found["exact cuts, given order"]
            ratios = [step / given_s for step, given_s in zip(steps, in_order, strict=True)]
            outcome = Counter(
                "longer" if ratio > 1.001 else "shorter" if ratio < 0.999 else "same"
                for ratio in ratios
            )
            of_best = [step / least for step, least in zip(steps, best, strict=True)]
            print(
                f"| {name} | {outcome['shorter']} | {outcome['same']} | {outcome['longer']} | "
                f"{statistics.median(of_best):.3f}, {max(of_best):.3f} | "
                f"{1e3 * statistics.mean(taken[name]):.1f} |",
                flush=True,
            )


def formula(instances: int) -> None:
    """The formula that is minimised against the step played out in 1F1B order."""
    ratios: dict[str, list[float]] = {"one peer a stage": [], "groups": []}
    for seed in range(instances):
        stage_costs, groups = drawn_stages(seed)
        best = best_placement(stage_costs, iter([groups]))
        if best is not None:
            kind = "groups" if any(len(group) > 1 for group in groups) else "one peer a stage"
            ratios[kind].append(best.step_s / played_step_s(stage_costs, best))
    print("\nthe formula over the step played out\n\n| | least | 5 % | median | 95 % | most |")
    print("|---|---|---|---|---|---|")
    for kind, of_kind in ratios.items():
        figures = np.quantile(of_kind, [0.0, 0.05, 0.5, 0.95, 1.0])
        print(f"| {kind} | {' | '.join(f'{figure:.2f}' for figure in figures)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--peers", type=int, nargs="*", default=[4, 5, 8])
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes(min(20, options.instances))
    fixed_order(options.instances)
    formula(options.instances)
    free_peers(options.instances, options.peers)


if __name__ == "__main__":
    main()
