"""Each rule against a few lines of float64 numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from gossip.aggregators import (
    Rule,
    geometric_median,
    krum,
    mean,
    median,
    multi_krum,
    suspicion,
    suspicion_literal,
    trimmed_mean,
)
from gossip.aggregators.gram_rules import statistics
from gossip.aggregators.kernels import Rows
from gossip.errors import ConfigError, TooFewUpdates


def cloud(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + 0.5


def in_numpy(updates: Tensor) -> np.ndarray:
    return updates.to(torch.float64).numpy()


def krum_scores_oracle(x: np.ndarray, f: int) -> np.ndarray:
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)
    return np.array(
        [np.sort(np.delete(row, i))[: len(x) - f - 2].sum() for i, row in enumerate(squares)]
    )


def suspicion_oracle(x: np.ndarray, f: int, steps: int = 3) -> np.ndarray:
    n, c = len(x), np.median(x, axis=0)
    s = np.linalg.norm(x - c, axis=1)
    alpha = np.median(s)
    for _ in range(steps):
        w = alpha / (alpha + s)
        p, kept = w / w.sum(), np.argsort(s, kind="stable")[: n - f]
        q = np.zeros(n)
        q[kept] = p[kept] + (1 - p[kept].sum()) / (n - f)
        c = q @ x
        s = np.linalg.norm(x - c, axis=1)
    return c


SIZES = [
    (1, 1, 0),
    (2, 5, 0),
    (5, 1, 2),
    (7, 33, 3),
    (8, 100, 2),
    (9, 5000, 2),
    (20, 257, 6),
    (33, 40, 5),
]


@pytest.mark.parametrize(("n", "d"), [size[:2] for size in SIZES])
def test_the_mean_of_rows_that_lie_apart_is_the_mean(n: int, d: int) -> None:
    x = cloud(n, d)
    assert mean.from_rows is not None
    rows = [row.clone().numpy() for row in x]
    before = [row.copy() for row in rows]
    aggregate = np.empty_like(rows[0])
    assert mean.from_rows(rows, aggregate)
    np.testing.assert_allclose(aggregate, mean(x).numpy(), rtol=1e-6, atol=1e-7)
    assert all((row == old).all() for row, old in zip(rows, before, strict=True))


def test_the_mean_of_rows_whose_sum_overflows_is_left_to_the_other_form() -> None:
    huge = np.full(3, 3e38, np.float32)
    assert not mean.from_rows([huge, huge], np.empty_like(huge))
    assert torch.isfinite(mean(torch.from_numpy(np.stack([huge, huge])))).all()


@pytest.mark.parametrize(("n", "d", "f"), SIZES[1:])
def test_suspicion_is_what_numpy_makes_of_it(n: int, d: int, f: int) -> None:
    x = cloud(n, d)
    np.testing.assert_allclose(
        in_numpy(suspicion(x, f=f)), suspicion_oracle(in_numpy(x), f), atol=1e-5
    )


@pytest.mark.parametrize(
    ("n", "d", "f"), [(3, 1, 0), (7, 33, 2), (8, 100, 2), (20, 257, 6), (40, 64, 10)]
)
def test_krum_takes_the_rows_with_the_best_scores(n: int, d: int, f: int) -> None:
    x = cloud(n, d)
    scores = krum_scores_oracle(in_numpy(x), f)
    assert torch.equal(krum(x, f=f), x[int(scores.argmin())])
    best = np.argsort(scores, kind="stable")
    np.testing.assert_allclose(
        in_numpy(multi_krum(x, f=f)), in_numpy(x)[best[: n - f]].mean(axis=0), atol=1e-6
    )
    np.testing.assert_allclose(
        in_numpy(multi_krum(x, f=f, m=2)), in_numpy(x)[best[:2]].mean(axis=0), atol=1e-6
    )
    np.testing.assert_allclose(
        krum.explain(x, f=f).outlyingness.numpy(), np.sqrt(scores / np.median(scores)), rtol=1e-5
    )


def test_of_equal_krum_scores_the_first_row_wins() -> None:
    x = torch.tensor([[9.0], [0.0], [1.0], [0.0], [1.0], [-9.0], [0.5]])
    squares = krum_scores_oracle(in_numpy(x), 2)
    assert squares[1] == squares[2] == squares[3] == squares[4], "the case has ties"
    four = x[1:5].repeat(2, 1)  # every row has the same score
    assert float(krum(four, f=2)) == float(four[0])
    assert multi_krum.explain(four, f=2, m=3).weights.tolist() == pytest.approx(
        [1 / 3] * 3 + [0.0] * 5
    )


def test_literal_suspicion_is_the_rule_as_written() -> None:
    x = cloud(8, 50)
    y, n, f = in_numpy(x), 8, 2
    s = np.linalg.norm(y - y.mean(axis=0), axis=1)
    w = 0.7 / (0.7 + s)
    low = np.argsort(w)[:f]
    hat = y.copy()
    hat[low] = np.delete(y, low, axis=0).mean(axis=0)
    assert n == len(w)
    np.testing.assert_allclose(
        in_numpy(suspicion_literal(x, f=f, alpha=0.7)),
        (w[:, None] * hat).sum(axis=0),
        rtol=1e-5,
        atol=1e-6,
    )


def test_the_weight_of_a_trimmed_update_is_the_share_of_its_coordinates_that_survived() -> None:
    x = torch.tensor([[0.0, 9.0], [1.0, 8.0], [2.0, 1.0], [3.0, 2.0], [4.0, 3.0]])
    assert trimmed_mean.explain(x, f=1).weights.tolist() == pytest.approx(
        [0, 1 / 3, 1 / 6, 1 / 3, 1 / 6]
    )
    assert median.explain(x).weights.tolist() == pytest.approx([0, 0, 0.5, 0, 0.5])


def squared_distances(x: Tensor) -> np.ndarray:
    return statistics(Rows.of(x), {}).squared_distances()


def test_distances_of_parameters_are_exact_where_inner_products_are_all_rounding() -> None:
    x = 10 + 1e-3 * torch.randn(30, 5000, generator=torch.Generator().manual_seed(3))
    y = in_numpy(x)
    exact = ((y[:, None] - y[None]) ** 2).sum(-1)
    apart = ~np.eye(30, dtype=bool)
    by_products = torch.cdist(x, x).double().square().numpy()
    wrong = np.median(np.abs(np.sqrt(by_products[apart]) / np.sqrt(exact[apart]) - 1))
    assert wrong > 0.1, "the case is hard: by inner products these distances come out wrong"
    np.testing.assert_allclose(squared_distances(x)[apart], exact[apart], rtol=1e-5)
    assert torch.equal(krum(x, f=5), x[int(krum_scores_oracle(y, 5).argmin())])


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1.0, 1e18, 1e30])
def test_distances_neither_overflow_nor_vanish(scale: float) -> None:
    x = cloud(6, 40) * scale
    y = in_numpy(x)
    exact = ((y[:, None] - y[None]) ** 2).sum(-1)
    np.testing.assert_allclose(squared_distances(x), exact, rtol=1e-5, atol=1e-9 * scale**2)


def test_a_row_on_the_reference_does_not_hide_that_the_others_vanished_in_float32() -> None:
    x = torch.cat([torch.zeros(1, 3), torch.full((4, 3), 1e-25)])
    assert squared_distances(x)[0, 1] == pytest.approx(3e-50)


RULES = [mean, median, trimmed_mean, krum, multi_krum, suspicion, suspicion_literal]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_misuse_says_what_is_wrong(rule: Rule) -> None:
    f = {"f": 2} if "f" in rule.needs else {}
    with pytest.raises(ConfigError, match=r"takes an \(n, d\) floating point tensor, got \(5,\)"):
        rule(torch.zeros(5), **f)
    with pytest.raises(ConfigError, match="int64"):
        rule(torch.zeros(9, 5, dtype=torch.int64), **f)
    if f:
        with pytest.raises(ConfigError, match="f must be at least 0, not -1"):
            rule(torch.zeros(9, 5), f=-1)
        need = rule.least(2)
        with pytest.raises(
            TooFewUpdates, match=f"{rule.name} needs {need} updates? to tolerate f=2"
        ) as caught:
            rule(torch.zeros(need - 1, 5), f=2)
        assert caught.value.got == need - 1
        rule(torch.ones(need, 5), f=2)


def test_sums_of_the_largest_numbers_do_not_overflow() -> None:
    x = torch.full((9, 4), 3.0e38)
    for rule in (mean, median, trimmed_mean, krum, multi_krum):
        aggregate = rule(x, **({"f": 2} if "f" in rule.needs else {}))
        assert torch.allclose(aggregate, x[0], rtol=1e-5), rule
    assert torch.allclose(mean(x.double() * 5e269), x[0].double() * 5e269)


def test_updates_that_differ_by_rounding_alone_accuse_nobody() -> None:
    x = torch.ones(8, 100).mul_(0.1)
    x[3, 5] = torch.nextafter(x[3, 5], torch.tensor(1.0))
    for rule in (median, trimmed_mean, krum, multi_krum, suspicion):
        assert float(rule.explain(x, f=2).outlyingness.max()) < 3, rule


def test_the_geometric_median_of_updates_most_of_which_are_the_same_is_that_one() -> None:
    x = torch.zeros(8, 16, dtype=torch.float64)
    x[6:, 0] = 1.0
    assert float(geometric_median(x, f=2).abs().max()) < 1e-12
