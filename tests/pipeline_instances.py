"""Random peers and layers for tests and benchmarks of planning: drawn from a seed."""

from __future__ import annotations

import math
from itertools import combinations, islice
from typing import Any

import numpy as np

from gossip_pipelines.planning import Costs, Cut, StageCosts, TrainingStep, cut_at

AT_ONCE = 200_000
"""Cuts that are tried in one array."""


def uneven(seed: int, layers: int, peers: int, *, tight: bool = False) -> Costs:
    """Peers whose speeds differ by up to 8 and whose links have 20 to 1,000 Mbit/s and 0.1 to 5 ms.
    ``tight``: each has memory for its largest layer and one to four times its part of the others;
    else for all."""
    draw = np.random.default_rng(seed)
    work_s = 10 ** draw.uniform(-3, -1.5, layers)  # of a sample on a peer of speed 1
    speed = 2 ** draw.uniform(0, 3, peers)
    forward = work_s / speed[:, None]
    fixed = 10 ** draw.uniform(-4.5, -3.5, (2, peers, layers))
    parameters = 10 ** draw.uniform(4, 7, layers)
    rate = 10 ** draw.uniform(np.log10(20e6 / 8), np.log10(1000e6 / 8), (peers, peers))
    delay = 10 ** draw.uniform(-4, -2.3, (peers, peers))
    memory = np.full(peers, 1e13)
    if tight:
        part = 4 * parameters.sum() / peers
        memory = part * draw.uniform(1.0, 4.0, peers) + 4 * parameters.max()
    return Costs(
        tuple(f"peer-{number}" for number in range(peers)),
        tuple(f"{number}" for number in range(layers)),
        "0" * 16,
        fixed,
        np.stack([forward, 2 * forward]),
        parameters,
        10 ** draw.uniform(2, 5, layers),
        10 ** draw.uniform(3, 6, layers),
        memory,
        (delay + delay.T) / 2 * (1 - np.eye(peers)),
        1 / ((rate + rate.T) / 2) * (1 - np.eye(peers)),
    )


def alike(seed: int, layers: int, stages: int) -> Costs:
    """As the origin drew its instances: equal peers, layers of 1 to 10 ms."""
    draw = np.random.default_rng(seed)
    each = draw.uniform(1e-3, 10e-3, layers)
    zeros = np.zeros((stages, stages))
    times = np.repeat(each[None] / 3, stages, axis=0)
    none = np.zeros(layers)
    return Costs(
        tuple(f"peer-{number}" for number in range(stages)),
        tuple(f"{number}" for number in range(layers)),
        "0" * 16,
        np.zeros((2, stages, layers)),
        np.stack([times, 2 * times]),
        none,
        none,
        none,
        np.full(stages, 1e13),
        zeros,
        zeros,
    )


WORK = TrainingStep(micro_batches=8, samples=4)


def drawn_stages(seed: int) -> tuple[StageCosts, tuple[tuple[int, ...], ...]]:
    """An instance of up to 12 layers, and groups in a fixed order: of odd seeds some of several
    members, and with limits of memory."""
    draw = np.random.default_rng(seed + 1000)
    layers = int(draw.integers(4, 13))
    stages = int(draw.integers(2, min(layers, 6) + 1))
    peers = stages + (int(draw.integers(0, 4)) if seed % 2 else 0)
    step = TrainingStep(int(draw.integers(1, 17)), int(draw.integers(1, 9)))
    places = [*range(stages), *map(int, draw.integers(0, stages, peers - stages))]
    groups = tuple(
        tuple(peer for peer, place in enumerate(places) if place == stage)
        for stage in range(stages)
    )
    return StageCosts(uneven(seed, layers, peers, tight=bool(seed % 2)), step), groups


def try_every_cut(tables: Any) -> Cut | None:
    """The best of all cuts, each of which is tried: what ``best_cut`` is compared with. There are
    ``(L - 1)! / (S - 1)! / (L - S)!`` of them."""
    stages, ends, _ = tables.fill.shape
    every = combinations(range(1, ends - 1), stages - 1)
    best: Cut | None = None
    while some := list(islice(every, AT_ONCE)):
        inner = np.array(some, dtype=np.intp).reshape(len(some), stages - 1)
        bounds = np.pad(inner, ((0, 0), (1, 1)))
        bounds[:, -1] = ends - 1
        at = np.arange(stages), bounds[:, 1:], bounds[:, :-1]
        steps = tables.fill[at].sum(1) + tables.hold[at].max(1) + tables.exchange[at].max(1)
        found = cut_at(tables, tuple(map(int, bounds[steps.argmin()])))
        if found.step_s < (best.step_s if best else math.inf):
            best = found
    return best
