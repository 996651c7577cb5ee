"""Rules that keep their promises where somebody looks, and the kit that looks elsewhere."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from effort import rotated
from torch import Tensor

from gossip import testing
from gossip.aggregators import (
    Decision,
    Gram,
    Rule,
    Verdict,
    cge,
    compose,
    gram_rule,
    krum,
    load,
    mean,
    nnm,
    pre_aggregation,
    pre_aggregations,
    rule,
    trimmed_mean,
)
from gossip.errors import UnknownName
from gossip.testing import check_aggregator
from gossip.testing.crowds import bound_rule, crowd
from gossip.testing.promises import check_repeatable


@rule
def lazy(updates: Tensor, *, f: int) -> Tensor:
    """The plain mean, unless the first row stands out:
    a kit that puts its liars first sees a robust rule."""
    apart = (updates.double() - trimmed_mean(updates, f=f).double()).norm(dim=1)
    return trimmed_mean(updates, f=f) if apart[0] > 3 * apart.median() else mean(updates)


@rule
def seeding(updates: Tensor, *, f: int) -> Tensor:
    torch.manual_seed(0)
    return trimmed_mean(updates, f=f)


@rule
def drawing(updates: Tensor, *, f: int) -> Tensor:
    random.random()
    return trimmed_mean(updates, f=f)


@rule(at_least=lambda f: 2 * f + 3)
def even_krum(updates: Tensor, *, f: int) -> Verdict:
    verdict = krum.explain(updates, f=f)
    return Verdict(
        verdict.aggregate,
        torch.full((len(updates),), 1 / len(updates), dtype=torch.float64),
        verdict.outlyingness,
    )


@gram_rule
def even_central(gram: Gram, *, f: int) -> Decision:
    nearest = int(np.argmin(np.sort(gram.squared_distances(), axis=1)[:, : gram.n - f].sum(axis=1)))
    return Decision(gram.even([nearest]), shares=gram.even(range(gram.n)))


class Half(Rule):
    def __call__(self, updates: Any, **options: Any) -> Tensor:
        return 0.5 * trimmed_mean(updates, **options)


half = Half(
    lambda updates, *, f: trimmed_mean(updates, f=f),
    name="half",
    translation=False,
    scale=False,
)


@rule
def tracked(updates: Tensor, *, f: int) -> Verdict:
    verdict = trimmed_mean.explain(updates, f=f)
    return Verdict(verdict.aggregate.requires_grad_(), verdict.weights, verdict.outlyingness)


DISGUISED: list[tuple[Any, str]] = [
    (lazy, "Byzantine peers, .*, move lazy .* away from the honest mean"),
    (seeding, "seeding draws from or seeds the random numbers of torch"),
    (drawing, "drawing draws from or seeds the random numbers of random"),
    (even_krum, r"even_krum reports the weights \[0.0909, .*, but its aggregate is the mean with"),
    (
        even_central,
        r"even_central reports the weights \[0.0909, .*, but its aggregate is the mean with",
    ),
    (half, "half returns another aggregate from a call than from ``explain``"),
    (tracked, "tracked makes an aggregate that requires grad"),
]


@pytest.mark.parametrize(
    ("disguised", "words"), DISGUISED, ids=[disguised.name for disguised, _ in DISGUISED]
)
def test_the_kit_sees_through(disguised: Rule, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_aggregator(disguised, strengths=2)


def test_the_kit_leaves_the_random_numbers_of_the_process_as_they_were() -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    expected = torch.rand(2)[0], np.random.random(), random.random()
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    with pytest.raises(AssertionError, match="seeding"):
        check_repeatable(bound_rule(seeding), crowd(7, 8, 2, torch.Generator().manual_seed(0)))
    assert (torch.rand(2)[0], np.random.random(), random.random()) == expected


def test_an_optimising_python_leaves_out_no_promise() -> None:
    """``python -O`` drops assert statements: what they check, it does not.
    Those for the type checker may go."""
    for name in ("aggregators", "lying", "promises", "resilience", "shards"):
        tree = ast.parse((Path(testing.__file__).parent / f"{name}.py").read_text())
        dropped = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Assert)]
        assert [words for words in dropped if not words.endswith(" is not None")] == [], name


# --- far from zero, and before a rule -------------------------------------------------------------


def shortest(gram: Gram, *, f: int) -> np.ndarray:
    return gram.even(np.argsort(gram.norms(), kind="stable")[: gram.n - f].tolist())


def test_a_rule_that_looks_at_lengths_is_bounded_and_not_robust() -> None:
    """Where updates are long and alike, liars who are as long and point elsewhere are averaged:
    many spreads away."""
    make = gram_rule(points=("origin",), translation=False, name="shortest")
    with pytest.raises(
        AssertionError,
        match=r"shortest is not \(2, 16\)-robust among 11: .* found by heavy tails, far from zero",
    ):
        check_aggregator(make(shortest), strengths=3)
    bounded = gram_rule(points=("origin",), translation=False, name="shortest", robust="bounded")(
        shortest
    )
    report = check_aggregator(bounded, strengths=3)
    assert report.kappa < 16
    assert "of at most 16, of the honest spread or the length of their mean (" in str(report)
    with pytest.raises(AssertionError, match=r"cge is not \(2, 16\)-robust"):
        check_aggregator("cge", kappa=16, strengths=2)


def test_a_report_says_what_was_held_where_no_kappa_is_searched_for() -> None:
    report = check_aggregator("geometric_median:nu=5", strengths=2)
    assert report.kappa is None
    assert "Byzantine peers moved it no farther than 4 times the length" in str(report)


@pytest.mark.parametrize(
    ("name", "breaks_at", "at_least"),
    rotated(
        [
            ("zeno", 3, 2 / 7),
            ("zeno_pp", None, 0.1),
            ("fltrust", None, 0.05),
            ("zeno_pp:lengths=updates", 6, 0.1),
            ("fltrust:lengths=updates", 6, 0.05),
            ("judged_clipping", 6, 0.05),
            ("monna", 3, 2 / 7),
            ("self_centered_clipping", 3, 2 / 7),
        ]
    ),
)
def test_a_rule_that_trusts_somebody_is_searched_beside_an_honest_judge_or_own_update(
    name: str, breaks_at: int | None, at_least: float
) -> None:
    report = check_aggregator(name, strengths=3)
    assert at_least <= report.kappa < 2
    assert (report.kappa_bound, report.breaks_at) == (16.0, breaks_at)
    judged = ("zeno", "zeno_pp", "fltrust", "judged_clipping")
    assert report.beside_length == (name.partition(":")[0] in judged)


@rule(robust="bounded", translation=False, scale=False, at_least=lambda f: f + 1)
def credulous(updates: Tensor, *, f: int, gradient: Tensor) -> Tensor:
    """What goes with the judge, up to 40 times as far:
    what the kit's plain liars send is farther."""
    with_it = (updates @ gradient > 0) & (updates.norm(dim=1) < 40 * gradient.norm())
    return updates[with_it].sum(dim=0) / max(1, int(with_it.sum()))


@rule(at_least=lambda f: 2 * f + 1)
def wide(updates: Tensor, center: Tensor, *, f: int) -> Tensor:
    """What is within 12 typical distances of the own update."""
    distances = (updates - center).norm(dim=1)
    return updates[distances <= 12 * distances.median()].mean(dim=0)


@rule(robust="bounded", discerning=False, translation=False, scale=False, at_least=lambda f: f + 1)
def hasty(
    updates: Tensor, *, f: int, evaluate: Callable[[Tensor], float], learning_rate: float
) -> Tensor:
    """All that descends at all, at the fifth of the rate: what is nearly ten times too far is
    still an improvement."""
    here = evaluate(torch.zeros_like(updates[0]))
    better = torch.tensor([evaluate(0.2 * learning_rate * update) < here for update in updates])
    return updates[better].sum(dim=0) / max(1, int(better.sum()))


@pytest.mark.parametrize(
    ("broken", "n", "f"),
    [(credulous, 11, 2), (wide, 11, 4), (hasty, 11, 8)],
    ids=lambda value: str(value),
)
def test_the_search_finds_what_a_rule_that_trusts_somebody_lets_through(
    broken: Rule, n: int, f: int
) -> None:
    with pytest.raises(
        AssertionError,
        match=rf"is not \({f}, 16\)-robust among {n}: kappa is at least .*, found by",
    ):
        check_aggregator(broken, n=n, f=f)


def halfway(gram: Gram, *, f: int) -> np.ndarray:
    return 0.5 * np.eye(gram.n) + 0.5 / gram.n


@pytest.mark.parametrize("name", pre_aggregations())
def test_our_pre_aggregations_keep_their_promises(name: str) -> None:
    assert check_aggregator(name, strengths=2).rule == f"{name}+trimmed_mean"


def test_a_pre_aggregation_that_spreads_lies_is_found_unless_it_says_so() -> None:
    with pytest.raises(
        AssertionError, match=r"Byzantine peers, .*, move halfway\+trimmed_mean .* away"
    ):
        check_aggregator(pre_aggregation(halfway))
    spreads = pre_aggregation(robust=False)(halfway)
    assert "declares no bound" in str(check_aggregator(spreads))
    assert compose(spreads, trimmed_mean).robust is False
    assert compose(nnm, cge).robust == "bounded"
    assert compose(nnm, trimmed_mean).robust is True
    assert load("clipping:radius=3+median").rule.robust == "bounded", (
        "updates beyond a fixed radius are cut, however alike"
    )


def test_the_kit_says_of_a_name_that_is_unknown_that_it_is() -> None:
    with pytest.raises(UnknownName, match="unknown aggregator 'trimed_mean'"):
        check_aggregator("trimed_mean")
