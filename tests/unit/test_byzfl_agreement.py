"""Where byzfl is right we agree with it, within the rounding of float32.

Right means: finite float32 updates and, for rules that look at distances, no more than 25 of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from byzfl_rules import byzfl, cloud, relative
from torch import Tensor

from gossip.aggregators import centered_clipping, geometric_median, krum, load, mda, multi_krum, rfa

theirs = byzfl()
ROUNDING = 2e-6
SIZES = [(7, 40, 2), (10, 1000, 3), (20, 257, 4), (25, 64, 5), (6, 5, 0)]

Rule = Callable[[Tensor], Tensor]


def after(*stages: Any) -> Rule:
    return lambda updates: functools.reduce(lambda rows, stage: stage(rows), stages, updates)


# Rule of ours by name, byzfl's with the same f.
SAME: dict[str, Callable[[int], Rule]] = {
    "mean": lambda f: theirs.Average(),
    "median": lambda f: theirs.Median(),
    "trimmed_mean": lambda f: theirs.TrMean(f=f),
    "meamed": lambda f: theirs.Meamed(f=f),
    "nnm+mean": lambda f: after(theirs.NNM(f=f), theirs.Average()),
    "nnm+median": lambda f: after(theirs.NNM(f=f), theirs.Median()),
    "nnm+trimmed_mean": lambda f: after(theirs.NNM(f=f), theirs.TrMean(f=f)),
    # a clone: it writes to what it is given
    "arc+mean": lambda f: after(torch.clone, theirs.ARC(f=f), theirs.Average()),
    "clipping:radius=5+mean": lambda f: after(
        torch.clone, theirs.Clipping(c=5.0), theirs.Average()
    ),
}


@pytest.mark.parametrize(("n", "d", "f"), SIZES)
@pytest.mark.parametrize("spec", SAME)
def test_rules_of_one_definition_agree(spec: str, n: int, d: int, f: int) -> None:
    updates = cloud(n, d, seed=n + d)
    ours = load(spec)(updates.clone(), f=f)
    assert relative(ours, SAME[spec](f)(updates)) <= ROUNDING


@pytest.mark.parametrize(("n", "d", "f"), [size for size in SIZES if size[2] > 0])
def test_krum_agrees_when_both_count_as_many_neighbours(n: int, d: int, f: int) -> None:
    """byzfl takes the n - f - 1 nearest, the paper and we the n - f - 2 nearest:
    ours for f - 1 is byzfl's for f."""
    updates = cloud(n, d, seed=n + d)
    assert torch.equal(krum(updates, f=f - 1), theirs.Krum(f=f)(updates))
    assert (
        relative(multi_krum(updates, f=f - 1, m=n - f), theirs.MultiKrum(f=f)(updates)) <= ROUNDING
    )


def test_krum_of_byzfl_is_not_that_of_the_paper() -> None:
    """Four clouds of different width, where one neighbour more or less changes who is chosen."""
    found = False
    for seed in range(200):
        updates = cloud(9, 3, seed)
        squares = torch.cdist(updates.double(), updates.double()).square().numpy()
        paper = int(np.argmin([np.sort(row)[1 : 9 - 2 - 1].sum() for row in squares]))
        assert torch.equal(krum(updates, f=2), updates[paper])
        found = found or not torch.equal(theirs.Krum(f=2)(updates), updates[paper])
    assert found


@pytest.mark.parametrize(("n", "d"), [(7, 40), (20, 257), (25, 64)])
def test_the_geometric_median_agrees_where_it_has_converged(n: int, d: int) -> None:
    """byzfl stops after T steps from zero; ours runs until it stands still. As published, from
    zero, it is called ``rfa``."""
    updates = cloud(n, d, seed=n)
    converged = theirs.GeometricMedian(nu=1e-6, T=2000)(updates)
    assert relative(geometric_median(updates), converged) <= 2e-5
    assert (
        relative(rfa(updates, nu=0.1, steps=3), theirs.GeometricMedian(nu=0.1, T=3)(updates))
        <= ROUNDING
    )


@pytest.mark.parametrize(("tau", "steps"), [(1.0, 1), (3.0, 5), (1000.0, 2)])
def test_centered_clipping_agrees_round_after_round(tau: float, steps: int) -> None:
    """byzfl keeps the last aggregate inside the rule, ours is given it."""
    rule = theirs.CenteredClipping(L=steps, tau=tau)
    previous = None
    for seed in range(4):
        updates = cloud(20, 100, seed)
        previous = centered_clipping(updates, f=4, previous=previous, tau=tau, steps=steps)
        assert relative(previous, rule(updates)) <= ROUNDING


@pytest.mark.parametrize(("n", "f"), [(7, 2), (10, 3)])
def test_the_smallest_diameter_agrees(n: int, f: int) -> None:
    updates = cloud(n, 50, seed=n)
    assert relative(mda(updates, f=f), theirs.MDA(f=f)(updates)) <= ROUNDING


def test_nearest_to_ones_own_agrees() -> None:
    updates = cloud(12, 50)
    ours = load("monna")(updates, f=3, center=updates[4])
    assert relative(ours, theirs.MoNNA(f=3, idx=4)(updates)) <= ROUNDING
