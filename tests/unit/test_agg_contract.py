"""What a rule may build on: Gram matrices, decisions, stages, memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gossip.aggregators import (
    Gram,
    Stage,
    bucketing,
    compose,
    geometric_median,
    gram_rule,
    krum,
    load,
    mean,
    median,
    nnm,
    pre_aggregation,
    rule,
    trimmed_mean,
)
from gossip.aggregators.gram import middle_of
from gossip.errors import AggregationError, TooFewUpdates

X = np.random.default_rng(0).standard_normal((6, 9)) + 2
CENTER = np.full(9, 1.5)


def gram_of(rows: np.ndarray, *points: tuple[str, np.ndarray], reference: float = 0.0) -> Gram:
    every = np.stack([*rows, *(vector for _, vector in points)]) - reference
    return Gram(every @ every.T, len(rows), tuple(name for name, _ in points))


WHOLE = gram_of(X, ("origin", np.zeros(9)), ("center", CENTER))


def test_distances_norms_and_directions_do_not_hang_on_the_reference() -> None:
    for gram in (WHOLE, gram_of(X, ("origin", np.zeros(9)), ("center", CENTER), reference=7.0)):
        np.testing.assert_allclose(
            gram.squared_distances(), ((X[:, None] - X) ** 2).sum(-1), atol=1e-9
        )
        np.testing.assert_allclose(gram.norms(), np.linalg.norm(X, axis=1))
        np.testing.assert_allclose(gram.distances_to("center"), np.linalg.norm(X - CENTER, axis=1))
        np.testing.assert_allclose(gram.along("center"), X @ CENTER)
        assert gram.length("center") == pytest.approx(4.5)
        weights = np.array([0.5, 0, 0, 0.25, 0, 0, 0.05, 0.2])
        aggregate = weights[:6] @ X + 0.2 * CENTER
        np.testing.assert_allclose(
            gram.distances_to(weights), np.linalg.norm(X - aggregate, axis=1)
        )


def test_the_gram_matrix_of_mixed_rows_of_chosen_rows_and_of_shards() -> None:
    matrix = np.zeros((2, 8))
    matrix[0, [1, 2]], matrix[1, [0, 7]] = 0.5, (0.25, 0.75)
    mixed = WHOLE.mixed(matrix)
    made = np.stack([(X[1] + X[2]) / 2, X[0] / 4 + 0.75 * CENTER])
    np.testing.assert_allclose(
        mixed.products, gram_of(made, ("origin", np.zeros(9)), ("center", CENTER)).products
    )
    np.testing.assert_allclose(
        WHOLE.rows([4, 1]).distances_to("center"), np.linalg.norm(X[[4, 1]] - CENTER, axis=1)
    )
    parts = [
        gram_of(X[:, part], ("origin", np.zeros(9)[part]), ("center", CENTER[part]), reference=at)
        for at, part in enumerate((slice(0, 4), slice(4, 9)))
    ]
    np.testing.assert_allclose(
        (parts[0] + parts[1]).squared_distances(), WHOLE.squared_distances(), atol=1e-9
    )


def test_a_point_that_is_not_there_is_named_and_the_first_previous_is_the_origin() -> None:
    with pytest.raises(AggregationError, match="no point 'gradient' among"):
        WHOLE.distances_to("gradient")
    assert WHOLE.at("previous") == WHOLE.at("origin")
    assert WHOLE.has("center")
    assert not WHOLE.has("previous")


def updates(n: int = 9) -> torch.Tensor:
    return torch.randn(n, 30, generator=torch.Generator().manual_seed(n)) + 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda gram: np.full(gram.n, 1.0), "add up to 9, not to 1"),
        (lambda gram: np.full(3, 1 / 3), r"shape \(3,\) for 9 updates"),
        (lambda gram: np.full(gram.n, np.nan), "add up to nan"),
    ],
)
def test_senseless_weights_are_refused(answer: Callable[[Gram], np.ndarray], words: str) -> None:
    @gram_rule
    def odd(gram: Gram, *, f: int) -> np.ndarray:
        return answer(gram)

    with pytest.raises(AggregationError, match=words):
        odd(updates(), f=2)


def test_a_point_nobody_knows_is_refused_where_it_is_written() -> None:
    with pytest.raises(AggregationError, match="there is no point 'middle'"):
        gram_rule(points=("middle",))(lambda gram: gram)


def test_the_bound_is_checked_before_a_gram_rule_is_called() -> None:
    @gram_rule(at_least=lambda f: 5 * f + 1)
    def shy(gram: Gram, *, f: int) -> np.ndarray:
        raise AssertionError("called")

    with pytest.raises(
        TooFewUpdates, match="shy needs 11 updates to tolerate f=2 Byzantine peers, got 9"
    ):
        shy(updates(), f=2)
    for few in (torch.zeros(0, 3), []):
        with pytest.raises(TooFewUpdates):
            krum(few, f=0)


def test_vectors_of_different_length_or_of_whole_numbers_are_refused() -> None:
    for each in (krum, trimmed_mean):
        with pytest.raises(AggregationError, match="all updates must have the same type"):
            each([torch.zeros(3)] * 6 + [torch.zeros(4)], f=2)
        with pytest.raises(AggregationError, match="floating point"):
            each([torch.zeros(3, dtype=torch.int64)] * 7, f=2)


@pytest.mark.parametrize("parts", [(krum, nnm), (nnm,), (nnm, nnm), (krum, krum), (krum,), ()])
def test_stages_in_the_wrong_order_are_named(parts: tuple[object, ...]) -> None:
    with pytest.raises(AggregationError, match="is at the wrong position"):
        compose(*parts)  # type: ignore[arg-type]


def test_what_is_no_stage_is_named() -> None:
    for parts, says in (
        (("nnm", "median"), "got str 'nnm'"),
        ((nnm, load("median")), "got BoundRule <rule median>"),
        ((nnm, lambda updates, *, f: updates[0]), "got function <function"),
    ):
        with pytest.raises(AggregationError, match=says) as caught:
            compose(*parts)  # type: ignore[arg-type]
        assert "to compose by name, use load('nnm+trimmed_mean')" in str(caught.value.hint)


def test_a_stage_alone_is_no_rule_and_says_how_to_write_one() -> None:
    with pytest.raises(ValueError, match="is not a rule by itself") as caught:
        load("nnm")
    assert "nnm+trimmed_mean" in str(caught.value.hint)  # type: ignore[attr-defined]


def test_options_go_to_the_stages_that_know_them() -> None:
    x = updates(21)
    both = compose(Stage(bucketing, {"s": 3, "seed": 5}), geometric_median)
    torch.testing.assert_close(both(x, f=2), load("bucketing:s=3,seed=5+geometric_median")(x, f=2))
    torch.testing.assert_close(
        compose(nnm, load("multi_krum").rule)(x, f=2, m=1), compose(nnm, krum)(x, f=2)
    )
    with pytest.raises(AggregationError, match=r"nnm\+krum has no option 'm'"):
        compose(nnm, krum)(x, f=2, m=1)


@pytest.mark.parametrize("last", [krum, median, mean, load("bulyan").rule, load("suspicion").rule])
def test_weights_and_outlyingness_of_a_composition_are_of_the_updates(last: object) -> None:
    x = updates(13)
    x[4] *= 50
    verdict = compose(nnm, last).explain(x, f=1)  # type: ignore[arg-type]
    assert len(verdict.weights) == len(verdict.outlyingness) == 13
    assert float(verdict.weights.sum()) == pytest.approx(1)
    if last is not mean:
        assert int(verdict.outlyingness.argmax()) == 4
        assert float(verdict.outlyingness[4]) > 3
        assert float(verdict.weights[4]) < 0.02


def test_points_that_a_later_stage_pulls_to_count_in_the_final_weights() -> None:
    seen = []

    @pre_aggregation(points=("origin",))
    def shrink(gram: Gram, *, f: int) -> np.ndarray:
        matrix = np.zeros((gram.n, gram.n + 1))
        matrix[:, : gram.n], matrix[:, gram.n] = (
            np.diag(np.linspace(0.2, 0.9, gram.n)),
            1 - np.linspace(0.2, 0.9, gram.n),
        )
        return matrix

    @gram_rule(points=("origin",))
    def look(gram: Gram, *, f: int) -> np.ndarray:
        seen.append(gram.norms())
        return gram.even(range(gram.n))

    x = updates().to(torch.float64)
    compose(nnm, shrink, shrink, look)(x, f=2)
    squares = ((x[:, None] - x) ** 2).sum(-1)
    mixed = torch.stack([x[row.argsort()[:7]].mean(dim=0) for row in squares])
    np.testing.assert_allclose(
        seen[0], np.linspace(0.2, 0.9, 9) ** 2 * mixed.norm(dim=1).numpy(), rtol=1e-9
    )


def test_a_matrix_whose_rows_do_not_add_up_is_refused() -> None:
    @pre_aggregation
    def doubled(gram: Gram) -> np.ndarray:
        return 2 * np.eye(gram.n)

    @pre_aggregation
    def flat(gram: Gram) -> np.ndarray:
        return np.ones(gram.n)

    with pytest.raises(AggregationError, match="weights of each row must add up to 1"):
        compose(doubled, krum)(updates(), f=2)
    with pytest.raises(AggregationError, match=r"returned a matrix of shape \(9,\)"):
        compose(flat, krum)(updates(), f=2)


def test_a_users_coordinate_rule_works_on_rows_that_lie_apart_and_after_stages() -> None:
    @rule(coordinatewise=True)
    def middle(block: torch.Tensor, *, f: int) -> torch.Tensor:
        return block.sort(dim=0).values[len(block) // 2]

    x = updates()
    torch.testing.assert_close(middle(list(x), f=2), median(x, f=2))
    torch.testing.assert_close(
        middle.explain(list(x), f=2).aggregate, middle.explain(x, f=2).aggregate
    )
    torch.testing.assert_close(compose(nnm, middle)(x, f=2), compose(nnm, median)(x, f=2))


@pytest.mark.parametrize(
    "spec",
    [
        "geometric_median",
        "huber",
        "cauchy",
        "suspicion",
        "nnm+trimmed_mean",
        "krum",
        "mda",
        "caf",
        "arc+median",
    ],
)
def test_float64_liars_beyond_all_squares_neither_break_nor_carry_a_rule_away(spec: str) -> None:
    x = updates(9).to(torch.float64)
    honest = x[2:]
    for size in (1e140, 1e200, 1e300):
        x[:2] = size * updates(2)[:2].to(torch.float64)
        verdict = load(spec).explain(x, f=2)
        assert bool(torch.isfinite(verdict.outlyingness).all()), size
        assert float((verdict.aggregate - honest.mean(dim=0)).norm()) < 15, size


def test_twins_tie_and_the_earlier_goes_first() -> None:
    x = updates(9)
    x[6] = x[2]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        gram = krum.statistics(x.to(dtype)).with_equal_twins()
        assert gram.squared_distances()[2, 6] == 0
        assert (gram.products[2] == gram.products[6]).all()


def test_few_numbers_are_not_sampled_and_a_liar_in_the_first_row_costs_no_digits() -> None:
    x = torch.randn(8, 20_000, generator=torch.Generator().manual_seed(3))
    honest = ((x[1:, None].double() - x[1:].double()) ** 2).sum(-1).numpy()
    x[0] += 1e6
    calls: list[str] = []

    def see(frame: Any, event: str, what: Any) -> None:
        if event in ("call", "c_call"):
            calls.append(frame.f_code.co_name)

    krum(x, f=1)
    sys.setprofile(see)
    try:
        gram = krum.statistics(x)
        first = len(calls)
        krum.decide(gram, f=1)
    finally:
        sys.setprofile(None)
    np.testing.assert_allclose(gram.squared_distances()[1:, 1:], honest, rtol=1e-5)
    assert "_sample" not in calls
    assert len(calls) - first < 110, (
        "what does not depend on the updates' length is most of what few of them cost"
    )


def test_the_median_of_few_numbers_is_numpys() -> None:
    for shape in ((1,), (2,), (5, 4), (5, 5), (3, 8)):
        values = np.random.default_rng(0).standard_normal(shape) ** 3
        np.testing.assert_allclose(middle_of(values), np.median(values, axis=-1), rtol=1e-15)
