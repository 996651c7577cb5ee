"""The kernels, compiled and plain, against a few lines of float64 numpy;
and where updates may lie."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zygote
from torch import Tensor

from gossip.aggregators import kernels
from gossip.aggregators.kernels import (
    Rows,
    between,
    cache_folder,
    gram,
    majority,
    middle,
    mixed,
    nearest,
    network as networks,
    squared_distances_to,
    weighted_sum,
)
from gossip.errors import AggregationError, ConfigError

SIZES = [
    (1, 1),
    (2, 7),
    (3, 130),
    (5, 128),
    (8, 33),
    (13, 515),
    (16, 64),
    (20, 1000),
    (33, 257),
    (64, 300),
    (65, 129),
]


@pytest.fixture(params=["fast", "plain"], autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GOSSIP_KERNELS", request.param)
    return str(request.param)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def cloud(n: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + 0.5).to(dtype)


def doubles(x: Tensor) -> np.ndarray:
    return x.to(torch.float64).numpy()


def nearest_oracle(
    x: np.ndarray, count: int, low: int, high: int, work: type = np.float32
) -> np.ndarray:
    ordered = np.sort(x, axis=0)
    # rounding says which of two neighbours of a midpoint is nearer
    center = ordered[low : high + 1].mean(axis=0).astype(work)
    order = np.argsort(abs(ordered.astype(work) - center), axis=0, kind="stable")[:count]
    return np.take_along_axis(ordered, order, axis=0).mean(axis=0)


def ranges(n: int) -> set[tuple[int, int]]:
    return {middle(n), (n // 5, n - 1 - n // 5), (0, n - 1), (0, 0), (n - 1, n - 1)}


# --- ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), SIZES)
def test_between_is_the_mean_of_the_sorted_values(n: int, d: int) -> None:
    x = cloud(n, d)
    ordered = np.sort(doubles(x), axis=0)
    for low, high in ranges(n):
        found, survived = between(Rows.of(x), low, high, count_survivors=True)
        np.testing.assert_allclose(doubles(found), ordered[low : high + 1].mean(axis=0), atol=2e-6)
        inside = (doubles(x) >= ordered[low]) & (doubles(x) <= ordered[high])
        np.testing.assert_array_equal(survived, inside.sum(axis=1))


@pytest.mark.parametrize(("n", "d"), SIZES)
def test_nearest_is_the_mean_of_the_values_nearest_to_the_center(n: int, d: int) -> None:
    x = cloud(n, d)
    for low, high in ranges(n):
        for count in {1, max(1, n // 3), n - n // 5, n}:
            found, survived = nearest(Rows.of(x), count, (low, high), count_survivors=True)
            np.testing.assert_allclose(
                doubles(found), nearest_oracle(doubles(x), count, low, high), atol=2e-6
            )
            assert survived.sum() == count * d


def test_of_two_values_equally_near_the_lesser_is_taken() -> None:
    x = torch.tensor([[3.0], [1.0], [2.0]])
    assert nearest(Rows.of(x), 2, middle(3))[0].tolist() == [1.5]


def test_majority_is_the_sign_that_more_rows_have() -> None:
    x = torch.tensor([[1.0, -2.0, 0.0, 1e-45], [5.0, -1e-45, -0.0, -1.0], [-3.0, 4.0, 0.0, 0.0]])
    found, survived = majority(Rows.of(x), count_survivors=True)
    assert found.tolist() == [1, -1, 0, 0]
    assert survived.tolist() == [3, 3, 2]


@pytest.mark.parametrize(("n", "d"), [(3, 5), (8, 1300), (40, 9001), (5, 9000)])
def test_survivors_of_each_part_of_the_columns_are_those_of_the_part_alone(n: int, d: int) -> None:
    x, parts = cloud(n, 3 * d).round(decimals=1), 3
    for kernel in (
        lambda x, count: between(Rows.of(x), 1, n - 2, count),
        lambda x, count: nearest(Rows.of(x), 2, middle(n), count),
        lambda x, count: majority(Rows.of(x), count),
    ):
        found, survived = kernel(x, parts)
        alone = [kernel(part, True) for part in x.chunk(parts, dim=1)]
        assert torch.equal(found, torch.cat([aggregate for aggregate, _ in alone]))
        np.testing.assert_array_equal(survived, [counts for _, counts in alone])


@pytest.mark.parametrize("n", range(1, 66))
def test_a_network_puts_the_wanted_ranks_in_place(n: int) -> None:
    # What sorts all zeros and ones sorts everything; here all 0-1 inputs of a random thousand, and
    # those of few values.
    x = np.random.default_rng(n).integers(0, 2 + n % 3, (n, 1000))
    for low, high in ranges(n):
        y = x.copy()
        for begin, length in networks.runs(n):
            y[begin : begin + length].sort(axis=0)
        for step in networks.table(n, low, high).tolist():
            a, b, c, d, kind = (
                step & 0xFFF,
                step >> 12 & 0xFFF,
                step >> 24 & 0xFFF,
                step >> 36 & 0xFFF,
                step >> 48,
            )
            for i, j in [(a, c), (b, d), (b, c)] if kind == networks.MERGE else [(a, b)]:
                lesser, greater = np.minimum(y[i], y[j]), np.maximum(y[i], y[j])
                if kind != networks.GREATER:
                    y[i] = lesser
                if kind != networks.LESSER:
                    y[j] = greater
        np.testing.assert_array_equal(y[low : high + 1], np.sort(x, axis=0)[low : high + 1])


def test_more_rows_than_a_table_holds_are_ranked_without(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, low, high = Rows.of(cloud(20, 300)), 4, 15
    expected = between(rows, low, high)[0]
    monkeypatch.setattr(networks, "ROWS_MAX", 19)
    monkeypatch.setattr(networks, "table", None)
    assert torch.equal(between(rows, low, high)[0], expected)
    assert nearest(rows, 16, middle(20))[0].isfinite().all()


def test_both_kernels_select_the_same_bits(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    for n, d in SIZES:
        x = cloud(n, d)
        x[:, : d // 3] = x[:, : d // 3].round()  # ties, zeros of both signs
        x[:, d // 2] *= 1e-42
        x[:, d // 2 + 1 : d // 2 + 3] = x[:, d // 2 + 1 : d // 2 + 3].sign() * 3e38
        for low, high in ranges(n):
            for count in (0, 1, max(1, n // 3), n - n // 5):
                found = []
                for which in ("fast", "plain"):
                    monkeypatch.setenv("GOSSIP_KERNELS", which)
                    rows = Rows.of(x)
                    found.append(
                        nearest(rows, count, (low, high), True)
                        if count
                        else between(rows, low, high, True)
                    )
                assert torch.equal(found[0][0], found[1][0]), (n, d, low, high, count)
                np.testing.assert_array_equal(found[0][1], found[1][1])
                assert found[0][0].isfinite().all()
                assert not (found[0][0].view(torch.int32) == -(2**31)).any(), "a zero has no sign"


# --- sums -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), SIZES)
def test_sums_are_those_of_float64(n: int, d: int) -> None:
    x = cloud(n, d) + 10  # as parameters are: much farther from zero than from each other
    rows, reference, point = Rows.of(x), x[n // 2], cloud(1, d, 1)[0]
    apart = np.concatenate([doubles(x), np.zeros((1, d)), doubles(point)[None]]) - doubles(
        reference
    )
    expected = apart @ apart.T
    size = np.sqrt(np.outer(expected.diagonal(), expected.diagonal()))
    assert (abs(gram(rows, reference, [None, point]) - expected) <= 1e-6 * size).all()
    np.testing.assert_allclose(
        squared_distances_to(rows, point),
        ((doubles(x) - doubles(point)) ** 2).sum(axis=1),
        rtol=1e-6,
    )
    np.testing.assert_allclose(squared_distances_to(rows), (doubles(x) ** 2).sum(axis=1), rtol=1e-6)
    weights = np.random.default_rng(0).random((n + 1, n)) / n
    np.testing.assert_allclose(
        doubles(weighted_sum(rows, weights[0])), weights[0] @ doubles(x), rtol=2e-6
    )
    np.testing.assert_allclose(doubles(mixed(rows, weights)), weights @ doubles(x), rtol=2e-6)


def test_products_of_parameters_keep_their_digits_around_one_of_them() -> None:
    x = 10 + 1e-3 * cloud(33, 5000)
    apart = doubles(x) - doubles(x[3])
    np.testing.assert_allclose(gram(Rows.of(x), x[3]).diagonal(), (apart**2).sum(axis=1), rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e-42, 1e25, 3e38])
def test_products_and_distances_of_any_size_are_finite_and_exact(scale: float) -> None:
    x = cloud(5, 300).sign() * torch.arange(1, 6)[:, None] / 5
    x[3:] *= scale
    expected = doubles(x) @ doubles(x).T
    np.testing.assert_allclose(
        gram(Rows.of(x)), expected, rtol=1e-5, atol=1e-6 * abs(expected).min()
    )
    np.testing.assert_allclose(squared_distances_to(Rows.of(x)), expected.diagonal(), rtol=1e-5)


def test_a_row_that_is_the_reference_has_products_of_zero_and_one_that_vanishes_has_not() -> None:
    x = cloud(4, 300)
    x[2] = x[1] + 1e-30
    x[1, :] = 0
    x[2, :] = 1e-25
    found = gram(Rows.of(x), x[1].clone())
    assert found[1].tolist() == [0] * 4
    assert found[2, 2] == pytest.approx(300 * 1e-50, rel=1e-5)


def test_a_weighted_sum_of_the_largest_numbers_is_finite() -> None:
    x = torch.full((7, 200), torch.finfo(torch.float32).max)
    x[3] *= -1
    for weights in ([1 / 7] * 7, [0.5, 0.5, 0, 0, 0, 0, 0], [3, -1, 0, 0, 0, 0, -1]):
        assert weighted_sum(Rows.of(x), weights).isfinite().all()
    np.testing.assert_allclose(
        doubles(weighted_sum(Rows.of(x * 1e-38), [1e-35, *[1e35] * 6]))[0],
        4 * 3.4028235e35,
        rtol=1e-4,
    )


def test_rows_of_weight_zero_are_not_read(backend: str) -> None:
    x = cloud(3, 200)
    expected = 0.25 * x[0] + 0.75 * x[2]
    if backend == "fast":
        x[1] = float("nan")
    torch.testing.assert_close(weighted_sum(Rows.of(x), [0.25, 0.0, 0.75]), expected)


# --- where and what rows are ----------------------------------------------------------------------


def layouts(x: Tensor) -> Iterator[Rows]:
    yield Rows.of(x)
    yield Rows.of([row.clone() for row in x])
    yield Rows.of([row.clone().numpy() for row in x])
    frozen = [np.frombuffer(row.numpy().tobytes(), np.float32) for row in x]
    yield Rows.of(frozen)
    yield Rows.of(x.t().contiguous().t())
    yield Rows.of(torch.stack([x, x], dim=2)[:, :, 0])
    yield Rows.of(torch.cat([x, x], dim=1)[:, : x.shape[1]])
    yield Rows.of([row.repeat_interleave(2)[::2] for row in x])
    yield Rows.of(x.flip(1).numpy()[:, ::-1])
    yield Rows.of(torch.cat([x, x])).chosen(range(len(x), 2 * len(x)))


@pytest.mark.filterwarnings("error")
def test_it_does_not_matter_how_rows_lie_in_memory() -> None:
    x = cloud(9, 333)
    before = x.clone()
    low, high = middle(9)
    weights = [1 / 9] * 9
    first, *others = layouts(x)
    for rows in others:
        assert torch.equal(between(first, low, high)[0], between(rows, low, high)[0])
        assert torch.equal(nearest(first, 7, (2, 6))[0], nearest(rows, 7, (2, 6))[0])
        np.testing.assert_allclose(gram(first, x[0]), gram(rows, x[0]), rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(weighted_sum(first, weights), weighted_sum(rows, weights))
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_point_types_go_in_and_come_out(dtype: torch.dtype) -> None:
    x = cloud(8, 300, dtype=dtype)
    rows, exact = Rows.of(x), doubles(x)
    close = {"rtol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-2, "atol": 1e-2}
    for found, expected in (
        (between(rows, 2, 5)[0], np.sort(exact, axis=0)[2:6].mean(axis=0)),
        (
            nearest(rows, 6, (3, 4))[0],
            nearest_oracle(exact, 6, 3, 4, np.float64 if dtype == torch.float64 else np.float32),
        ),
        (weighted_sum(rows, [1 / 8] * 8), exact.mean(axis=0)),
        (mixed(rows, np.full((1, 8), 1 / 8))[0], exact.mean(axis=0)),
    ):
        assert found.dtype == dtype
        np.testing.assert_allclose(doubles(found), expected, **close)
    tight = 1e-12 if dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(
        gram(rows, x[0])[1:, 1:],
        (exact[1:] - exact[0]) @ (exact[1:] - exact[0]).T,
        rtol=tight,
        atol=1e-3,
    )


@pytest.mark.usefixtures("threads")
def test_the_result_does_not_depend_on_the_number_of_threads(backend: str) -> None:
    if backend == "plain":
        return  # its sums are torch's
    x = cloud(20, 50_001)
    weights = np.random.default_rng(0).random((20, 20)) / 20
    found = []
    for count in (1, 2, 3, 4):
        torch.set_num_threads(count)
        rows = Rows.of(x)
        made = (gram(rows, x[0]), squared_distances_to(rows, x[0]))
        sums = (
            weighted_sum(rows, weights[0]),
            mixed(rows, weights),
            between(rows, 4, 15, True, weights)[0],
        )
        found.append([part.tobytes() for part in made] + [part.numpy().tobytes() for part in sums])
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.usefixtures("threads")
def test_several_threads_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    from gossip.aggregators.kernels import teams

    x = cloud(20, 150_000)
    torch.set_num_threads(1)
    alone = between(Rows.of(x), 4, 15, True)
    torch.set_num_threads(3)
    together = between(Rows.of(x), 4, 15, True)
    monkeypatch.setattr(teams, "_openmp", lambda: None)
    pooled = between(Rows.of(x), 4, 15, True)
    for other in (together, pooled):
        assert torch.equal(alone[0], other[0])
        np.testing.assert_array_equal(alone[1], other[1])


def test_what_are_no_updates_is_said() -> None:
    x = cloud(3, 10)
    for wrong, words in (
        ([], "no updates"),
        ([x[0], x[1, :5]], "update 1"),
        ([x[0], x[1].double()], "float64"),
        ([x[0].long()], "int64"),
        (x[0], r"\(10,\)"),
        (x.long(), "int64"),
        ([np.arange(3)], "int64"),
    ):
        with pytest.raises(AggregationError, match=words):
            Rows.of(wrong)
    rows = Rows.of(x)
    for call in (
        lambda: between(rows, 2, 1),
        lambda: between(rows, 0, 3),
        lambda: nearest(rows, 4, (1, 1)),
        lambda: gram(rows, x[0, :5]),
        lambda: weighted_sum(rows, [1.0]),
        lambda: mixed(rows, np.ones((2, 2))),
        lambda: between(rows, 0, 0, matrix=np.ones((2, 2))),
    ):
        with pytest.raises(AggregationError, match="kernels do not support"):
            call()


# the process chooses for itself: once is enough
@pytest.mark.parametrize("backend", ["fast"], indirect=True)
def test_small_updates_do_without_numba_and_large_ones_have_it_when_prepared() -> None:
    script = """
import sys, torch
from gossip.aggregators import kernels, krum, median
small = torch.randn(9, 1000)
median(small), krum(small, f=2), kernels.prepare(9, 1000)
assert "numba" not in sys.modules
assert kernels.is_prepared(9, 1000)
assert not kernels.is_prepared(9, 1_000_000)
kernels.prepare(9, 1_000_000)
assert kernels.is_prepared(9, 1_000_000)
print("numba" in sys.modules)
"""
    environment = {key: value for key, value in os.environ.items() if key != "GOSSIP_KERNELS"}
    made = zygote.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert made.stdout.strip() == "True", made.stderr


def test_what_one_process_compiles_the_others_wait_for_and_find(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "plain":
        return  # it has nothing to compile
    from gossip.aggregators.kernels import compiled_cache

    locked, told, waits = cache_folder.locked, list[str](), threading.Event()

    def watched(fd: int) -> bool:
        if locked(fd):
            return True
        waits.set()
        return False

    def second() -> None:
        compiled_cache.kernel(nothing)
        told.append("second")

    monkeypatch.setattr(cache_folder, "locked", watched)
    monkeypatch.setattr(cache_folder, "folder", lambda: tmp_path)
    monkeypatch.setattr(compiled_cache, "compiled", [])
    other = threading.Thread(target=second)
    with cache_folder.alone(tmp_path, "lock", 0.0):
        other.start()
        assert waits.wait(20)
        told.append("first")
    other.join(20)
    assert told == ["first", "second"]
    assert compiled_cache.compiled == ["nothing"]
    compiled_cache.kernel(nothing)
    assert compiled_cache.compiled == ["nothing"], "it is in the cache"


def nothing(pointer: Any) -> None:
    pass


def test_a_process_that_compiles_for_ever_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cache_folder.alone(tmp_path, "lock", 0.0) as mine:
        assert mine
        with cache_folder.alone(tmp_path, "lock", 0.0) as both:
            assert not both
    with cache_folder.alone(tmp_path, "lock", 0.0) as mine:
        assert mine
    monkeypatch.setattr(cache_folder, "folder", lambda: tmp_path)
    assert not kernels.compile_apart(8, 2**20, 0.0), "nothing is compiled in no time"
    assert not cache_folder.is_complete()
    cache_folder.mark_complete()
    assert kernels.compile_apart(8, 2**20, 0.0)


def test_a_process_that_does_without_compiled_kernels_has_the_plain_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_forced", "")
    kernels.do_without()
    assert kernels.backend() == "plain"
    assert kernels.is_prepared(8, 2**20)


def test_the_environment_chooses_the_kernels_and_is_told_when_it_cannot(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    assert kernels.backend() == backend
    monkeypatch.setenv("GOSSIP_KERNELS", "quick")
    with pytest.raises(ConfigError, match="quick"):
        kernels.backend()
    monkeypatch.setitem(sys.modules, "numba", None)  # as if it were not installed
    kernels._backend.cache_clear()
    monkeypatch.delenv("GOSSIP_KERNELS")
    assert kernels.backend() == "plain"
    monkeypatch.setenv("GOSSIP_KERNELS", "fast")
    with pytest.raises(ConfigError, match="numba is not installed"):
        kernels.backend()
    kernels._backend.cache_clear()
