"""Makes tables of published results that the playground reproduces, of the effects of data
policies, and of the differences between both engines.

    python benchmarks/playground_anchors.py data --mnist path/to/mnist.npz
    for name in epidemic_learning d_cliques policies orders \\
            slow slow_sorted slow_attack crashes crashes_attack; do
        gossip sweep benchmarks/worlds/$name.toml --into runs/$name
    done
    python benchmarks/playground_anchors.py tables

``data`` writes MNIST with 1,000 random test images, because evaluating many models on all 10,000
takes longer than training them. ``tables`` prints Markdown. A stopped sweep continues with the same
command, and ``tables`` counts the available seeds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np

from gossip_lab import data_sets
from gossip_lab.playground import World
from gossip_lab.playground.engines import SweepSettings
from gossip_lab.playground.grids import Grid
from gossip_lab.playground.played import PlayedRun
from gossip_lab.playground.sweeps import mean_text, read_sweep

Runs: TypeAlias = dict[tuple[str, ...], dict[int, tuple[World, PlayedRun]]]
"""World and run for each setting and seed. The outer key is the varied values, the inner key the
seed."""
WORLDS = Path(__file__).parent / "worlds"
TEST_IMAGES = 1000
TARGETS = (0.85, 0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("data", "tables"))
    parser.add_argument("--mnist", type=Path, default=Path("data/mnist.npz"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    options = parser.parse_args()
    if options.what == "data":
        print(write_data(options.mnist))
        return
    for lines in (epidemic_lines, clique_lines, policy_lines, engine_lines):
        print("\n".join(lines(options.runs)) + "\n")


def write_data(mnist: Path) -> Path:
    """Write MNIST with fewer test images. Return the file."""
    data = data_sets.load(str(mnist))
    chosen = np.random.default_rng(0).permutation(len(data.test_labels))[:TEST_IMAGES]
    path = Path("data/mnist_1000.npz")
    path.parent.mkdir(exist_ok=True)
    np.savez(
        path,
        x_train=(data.images * 255).round().byte().numpy(),
        y_train=data.labels.numpy(),
        x_test=(data.test_images[chosen] * 255).round().byte().numpy(),
        y_test=data.test_labels[chosen].numpy(),
    )
    return path


def read_runs(name: str, folder: Path) -> Runs:
    """Return the finished runs of a grid."""
    sweep = read_sweep(Grid.from_toml(WORLDS / f"{name}.toml"), SweepSettings(folder / name))
    found: Runs = {}
    for cell, result in sweep.results.items():
        if isinstance(cell.world, World) and not result.error:
            seeds = found.setdefault(sweep.setting_of(cell), {})
            seeds[cell.world.seed] = cell.world, result.run
    return found


def epidemic_lines(folder: Path) -> Iterator[str]:
    """Yield the table of Epidemic Learning: the ratio of the rounds that the static and the random
    graph need, paired by seed. As in the paper, each topology uses its best learning rate.
    """
    runs = read_runs("epidemic_learning", folder)
    yield "| accuracy | seeds | random: rate, rounds | static: rate, rounds | static / random |"
    yield "|---|---|---|---|---|"
    for target in TARGETS:
        (one, random), (other, static) = (
            find_fastest(runs, name, target) for name in ("random-k:k=7", "static-regular:k=7")
        )
        pairs = [(random[seed], static[seed]) for seed in sorted(random.keys() & static.keys())]
        reached = [pair for pair in pairs if max(pair) < math.inf]
        if reached:
            a, b, ratio = (
                mean_text(list(column), 2)
                for column in (*zip(*reached, strict=True), [b / a for a, b in reached])
            )
            counts = f"{len(reached)} of {len(pairs)}"
            yield f"| {target} | {counts} | {one}, {a} | {other}, {b} | {ratio} |"


def find_fastest(runs: Runs, topology: str, target: float) -> tuple[str, dict[int, float]]:
    """Return the learning rate with which a topology needs the fewest rounds on average, and its
    rounds for each seed."""
    found = [("-", dict[int, float]())]
    for (rate, name), seeds in runs.items():
        if name == topology:
            found.append(
                (rate, {seed: run.reach(target, by="round") for seed, (_, run) in seeds.items()})
            )
    return min(found, key=lambda each: np.mean([*each[1].values()]) if each[1] else math.inf)


def clique_lines(folder: Path) -> Iterator[str]:
    """Yield the table of D-Cliques. For rolling rounds the table shows the number of messages in a
    full graph."""
    yield "| split | topology | seeds | mean | worst | consensus distance | messages a round |"
    yield "|---|---|---|---|---|---|---|"
    for (split, topology), seeds in read_runs("d_cliques", folder).items():
        texts = [
            mean_text([end(run, metric) for _, run in seeds.values()], 4)
            for metric in ("mean", "worst", "consensus_distance")
        ]
        world, run = next(iter(seeds.values()))
        # A push has an update and parameters: 2 * 4 bytes for each of d elements.
        pushes = run.bytes / run.rows[-1].round / (8 * world.build().task.cohort.d)
        sent = world.peers * (world.peers - 1) if topology == "rolling" else pushes
        name = "full (rolling)" if topology == "rolling" else topology
        yield f"| {split} | {name} | {len(seeds)} | {' | '.join(texts)} | {sent:,.0f} |"


def policy_lines(folder: Path) -> Iterator[str]:
    """Yield the table of policies. The cosine is the mean over pairs of peers. It compares their
    updates of the first round, at the initial parameters."""
    yield "| topology | data | policy | seeds | rounds to 0.9 | mean | cosine | moved, kB |"
    yield "|---|---|---|---|---|---|---|---|"
    own = read_runs("policies", folder)
    orders = read_runs("orders", folder).items()
    shared: Runs = {(topology, "shared", assign): seeds for (topology, assign), seeds in orders}
    for (topology, data, assign), seeds in sorted({**own, **shared}.items()):
        if (data, assign) == ("shared", ""):
            continue  # the same as iid
        rounds = [run.reach(TARGETS[-1], by="round") for _, run in seeds.values()]
        reached = [each for each in rounds if each < math.inf]
        text = mean_text(reached, 1) if reached else "-"
        if len(reached) < len(rounds):
            text += f" ({len(reached)} of {len(rounds)})"
        without = own.get((topology, data, ""), {})
        moved = [
            (run.bytes - without[seed][1].bytes) / 1e3
            for seed, (_, run) in seeds.items()
            if data != "shared" and seed in without
        ]
        yield " | ".join(
            (
                f"| {topology} | {data} | {assign or 'none'} | {len(seeds)} | {text}",
                mean_text([end(run, "mean") for _, run in seeds.values()], 3),
                mean_text([mean_cosine(world) for world, _ in seeds.values()], 2),
                f"{np.mean(moved):.0f} |" if moved else "0 |",
            )
        )


def engine_lines(folder: Path) -> Iterator[str]:
    """Yield the table of both engines: differences of accuracies, paired by seed."""
    yield "| grid | seeds | mean accuracy, fast - exact | worst | time, fast / exact |"
    yield "|---|---|---|---|---|"
    for name in ("slow", "slow_sorted", "slow_attack", "crashes", "crashes_attack"):
        runs = read_runs(name, folder)
        for (*setting, engine), fast in runs.items():
            exact = runs.get((*setting, "exact"), {}) if engine == "fast" else {}
            pairs = [(fast[seed][1], exact[seed][1]) for seed in fast.keys() & exact.keys()]
            if pairs:
                texts = [
                    mean_text([end(a, metric) - end(b, metric) for a, b in pairs], 3)
                    for metric in ("mean", "worst")
                ]
                ends = [
                    sum(run.rows[-1].virtual_s for run in each) for each in zip(*pairs, strict=True)
                ]
                named = " ".join((name, *setting))
                yield f"| {named} | {len(pairs)} | {' | '.join(texts)} | {ends[0] / ends[1]:.2f} |"


def end(run: PlayedRun, metric: str) -> float:
    """Return a metric after the last round."""
    return run.curve(metric)[-1][1]


def mean_cosine(world: World) -> float:
    """Return the mean cosine over pairs of peers between their updates at the initial
    parameters."""
    task, peers = world.build().task, np.arange(world.peers)
    updates = task.compute_updates(task.cohort.initial.expand(len(peers), -1), peers, 0)
    directions = updates / updates.norm(dim=1, keepdim=True)
    pairs = len(peers) * (len(peers) - 1)
    return (float((directions @ directions.T).sum()) - len(peers)) / pairs


if __name__ == "__main__":
    main()
