"""Whatever finite numbers come: compiled and plain kernels agree, keep within their inputs, and do
not care about order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from effort import effort
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from gossip.aggregators.kernels import (
    Rows,
    between,
    gram,
    majority,
    nearest,
    squared_distances_to,
    weighted_sum,
)

Array = np.ndarray
MANY = settings(max_examples=effort(50, 150))
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
tame = st.floats(min_value=-1e6, max_value=1e6, width=32)


@contextmanager
def through(which: str) -> Iterator[None]:
    before = os.environ.get("GOSSIP_KERNELS")
    os.environ["GOSSIP_KERNELS"] = which
    try:
        yield
    finally:
        if before is None:
            del os.environ["GOSSIP_KERNELS"]
        else:
            os.environ["GOSSIP_KERNELS"] = before


@st.composite
def updates(draw: st.DrawFn, numbers: st.SearchStrategy[float] = finite) -> Array:
    n, d = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    small = draw(
        arrays(np.float32, (n, d), elements=numbers, fill=st.sampled_from([0.0, -0.0, 1.0, -1e-45]))
    )
    # at times more columns than a block has
    return np.tile(small, draw(st.sampled_from([1, 1, 5])))


@MANY
@given(updates(), st.data())
def test_ranks_are_the_same_bits_compiled_and_plain_and_within_the_values_they_are_of(
    x: Array, data: st.DataObject
) -> None:
    n = len(x)
    low = data.draw(st.integers(0, n - 1))
    high = data.draw(st.integers(low, n - 1))
    count = data.draw(st.integers(1, n))
    order = np.array(data.draw(st.permutations(range(n))))
    found = []
    for which, these in (("fast", x), ("plain", x), ("fast", x[order])):
        with through(which):
            rows = Rows.of(these)
            found.append(
                (
                    between(rows, low, high, True),
                    nearest(rows, count, (low, high), True),
                    majority(rows, True),
                )
            )
    for compiled, plain, permuted in zip(*found, strict=True):
        assert torch.equal(compiled[0], plain[0])
        np.testing.assert_array_equal(compiled[1], plain[1])
        assert torch.equal(compiled[0], permuted[0])
        np.testing.assert_array_equal(compiled[1][order], permuted[1])
    mean, _ = found[0][0]
    ordered = np.sort(x.astype(np.float64), axis=0)
    slack = 4e-6 * abs(ordered[low : high + 1]).max(axis=0) + 1e-44
    assert (ordered[low] - slack <= mean.double().numpy()).all()
    assert (mean.double().numpy() <= ordered[high] + slack).all()
    np.testing.assert_array_less(
        abs(mean.double().numpy() - ordered[low : high + 1].mean(axis=0)), slack + 1e-300
    )
    if high == low:
        np.testing.assert_array_equal(mean.numpy(), ordered[low].astype(np.float32))


@MANY
@given(updates(), st.data())
def test_sums_of_finite_rows_are_finite_and_those_of_float64(x: Array, data: st.DataObject) -> None:
    n = len(x)
    reference = x[data.draw(st.integers(0, n - 1))]
    weights = np.array(
        data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)), dtype=np.float64
    )
    weights /= max(1.0, weights.sum())
    apart = x.astype(np.float64) - reference
    expected, squares = apart @ apart.T, (apart**2).sum(axis=1)
    size = np.sqrt(np.outer(squares, squares))
    for which in ("fast", "plain"):
        with through(which):
            rows, middle = Rows.of(x), torch.from_numpy(reference)
            products = gram(rows, middle)
            distances = squared_distances_to(rows, middle)
            total = weighted_sum(rows, weights)
        # Differences are rounded to float32, so each is off by half a unit of the larger of
        # its two numbers.
        off = 2.4e-7 * np.sqrt(
            (np.maximum(abs(x), abs(reference)).astype(np.float64) ** 2).sum(axis=1)
        )
        slack = (
            np.outer(off, np.sqrt(squares))
            + np.outer(np.sqrt(squares), off)
            + np.outer(off, off)
            + 2e-6 * size
        )
        assert np.isfinite(products).all()
        assert (abs(products - expected) <= slack).all()
        assert np.isfinite(distances).all()
        assert (abs(distances - squares) <= slack.diagonal()).all()
        assert total.isfinite().all()
        largest = (weights[:, None] * abs(x.astype(np.float64))).sum(axis=0)
        assert (
            abs(total.double().numpy() - weights @ x.astype(np.float64)) <= 3e-6 * largest + 1e-43
        ).all()


@MANY
@given(updates(tame), st.data())
def test_ranks_of_weighted_sums_are_those_of_the_sums(x: Array, data: st.DataObject) -> None:
    n, m = len(x), data.draw(st.integers(1, 12))
    seed = data.draw(st.integers(0, 2**32 - 1))
    matrix = np.random.default_rng(seed).dirichlet(np.ones(n), m)
    low = data.draw(st.integers(0, m - 1))
    high = data.draw(st.integers(low, m - 1))
    made = np.sort(matrix.astype(np.float32).astype(np.float64) @ x.astype(np.float64), axis=0)
    for which in ("fast", "plain"):
        with through(which):
            found, _ = between(Rows.of(x), low, high, matrix=matrix)
        slack = 1e-5 * abs(x.astype(np.float64)).max(axis=0) + 1e-43
        assert (abs(found.double().numpy() - made[low : high + 1].mean(axis=0)) <= slack).all()
