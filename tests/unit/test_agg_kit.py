"""The kit passes our rules, and finds each promise that a rule can break."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from effort import effort, rotated
from torch import Tensor

from gossip.aggregators import (
    GramRule,
    Rule,
    Verdict,
    gram_rule,
    krum,
    load,
    median,
    names,
    rule,
    trimmed_mean,
)
from gossip.aggregators.gram import Gram
from gossip.errors import ConfigError
from gossip.testing import check_aggregator

# they look at every subset of n - f updates: 4,845 of 20, in each of hundreds of cases
SUBSETS = ("mda", "smea")


@pytest.mark.parametrize(("n", "f"), effort([(8, 2), (7, 0)], [(8, 2), (14, 3), (20, 4), (7, 0)]))
@pytest.mark.parametrize("name", rotated(names()))
def test_our_rules_keep_their_promises(name: str, n: int, f: int) -> None:
    n = min(n, 12) if name in SUBSETS else n
    check_aggregator(name, n=max(n, load(name).at_least(f)), f=f, strengths=2)


@pytest.mark.parametrize(("n", "f"), [(7, 3), (10, 4)])
def test_a_rule_that_clips_holds_where_most_that_it_keeps_are_liars(n: int, f: int) -> None:
    check_aggregator("spectral_clipping", n=n, f=f, strengths=2)


def test_a_plain_function_can_be_checked() -> None:
    def middle(updates: Tensor, *, f: int) -> Tensor:
        return updates.sort(dim=0).values[f : len(updates) - f].mean(dim=0)

    check_aggregator(middle)


def test_rules_that_cannot_do_without_the_round_can_be_checked() -> None:
    def drawn(updates: Tensor, *, f: int, round_id: int) -> Tensor:
        assert round_id >= 0
        return updates.sort(dim=0).values[f : len(updates) - f].mean(dim=0)

    def central(gram: Gram, *, f: int, round_id: int) -> Any:
        return gram.even(np.median(gram.squared_distances(), axis=1).argsort()[: 3 + 0 * round_id])

    check_aggregator(drawn, strengths=2)
    check_aggregator(gram_rule(central), strengths=2)


def with_verdict(**changes: Callable[[Tensor], Tensor]) -> Rule:
    def changed(updates: Tensor, *, f: int) -> Verdict:
        honest = trimmed_mean.explain(updates, f=f)
        parts = {key: getattr(honest, key) for key in ("aggregate", "weights", "outlyingness")}
        return Verdict(
            **{key: changes.get(key, lambda same: same)(value) for key, value in parts.items()}
        )

    return rule(changed)


def overwrites(updates: Tensor, *, f: int) -> Tensor:
    updates.clamp_(-0.1, 0.1)
    return trimmed_mean(updates, f=f)


def shows_its_hand(updates: Tensor, *, f: int) -> Tensor:
    return updates[int(krum.explain(updates, f=f).weights.argmax())]


def first(updates: Tensor, *, f: int) -> Tensor:
    return updates[0].clone()


def average(updates: Tensor, *, f: int) -> Tensor:
    return updates.mean(dim=0)


def sign(updates: Tensor, *, f: int) -> Tensor:
    return updates.sign().sum(dim=0).sign()


def clipped(updates: Tensor, *, f: int) -> Tensor:
    return trimmed_mean(updates.clamp(-5, 5), f=f)


def shrinking(updates: Tensor, *, f: int) -> Tensor:
    return 0.9 * trimmed_mean(updates, f=f)


def flat(updates: Tensor, *, f: int) -> Tensor:
    return trimmed_mean(updates, f=f)[:1]


def absolute(updates: Tensor, *, f: int) -> Tensor:
    return torch.where(trimmed_mean(updates, f=f).abs() > 1e-6, trimmed_mean(updates, f=f), 0.0)


def undefined(updates: Tensor, *, f: int) -> Tensor:
    return trimmed_mean(updates, f=f) * torch.nan


CALLS = itertools.count()


def in_turn(updates: Tensor, *, f: int) -> Tensor:
    return updates[next(CALLS) % len(updates)].clone()


BROKEN: list[tuple[Any, str]] = [
    (overwrites, "writes to its updates"),
    (undefined, "aggregate of finite updates is not finite"),
    (in_turn, "makes another aggregate of the same updates when it is called again"),
    (shows_its_hand, "returns memory of an update"),
    (first, "depends on the order"),
    (average, "move average .* away from the honest mean"),
    (sign, "of equal updates is"),
    (rule(translation=False)(absolute), "not scale equivariant"),
    (rule(scale=False)(clipped), "not translation equivariant"),
    (shrinking, "of equal updates is"),
    (flat, r"not a tensor of shape \(64,\)"),
    (with_verdict(aggregate=lambda a: a[:3]), r"makes an aggregate of shape \(3,\)"),
    (with_verdict(weights=lambda w: w * 2), "add up to 2"),
    (with_verdict(weights=lambda w: w - 1), "weights are"),
    (with_verdict(outlyingness=lambda o: o * torch.nan), "outlyingness are"),
    (with_verdict(outlyingness=lambda o: o[:2]), r"outlyingness have the shape \(2,\)"),
    (with_verdict(outlyingness=lambda o: o * 4), "times as far out as typical"),
    (with_verdict(outlyingness=torch.ones_like), "does not detect a Byzantine peer"),
    (
        with_verdict(outlyingness=lambda o: o + 3 * (o.max() > 10) * (torch.arange(len(o)) == 5)),
        "accuses an honest peer",
    ),
    (
        with_verdict(outlyingness=lambda o: torch.arange(len(o)) / len(o)),
        "do not move with the updates",
    ),
]


@pytest.mark.parametrize(("broken", "words"), BROKEN, ids=[words for _, words in BROKEN])
def test_the_kit_names_the_promise_that_a_rule_breaks(broken: Any, words: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=words):
        check_aggregator(broken)


def test_a_rule_that_overflows_is_found() -> None:
    def squares(updates: Tensor, *, f: int) -> Tensor:
        weights = 1 / (1e-9 + (updates - updates.median(dim=0).values).square().sum(dim=1))
        return (
            (weights / weights.sum()) @ updates * (updates.square().sum() / updates.square().sum())
        )

    with pytest.raises(AssertionError, match="not finite"):
        check_aggregator(rule(translation=False, scale=False)(squares))


def test_a_fragile_rule_passes_when_it_says_so() -> None:
    check_aggregator(rule(discerning=False)(average))
    check_aggregator(rule(robust=False)(average))


def test_the_kit_asks_for_enough_updates() -> None:
    with pytest.raises(AssertionError, match="krum needs 7 updates for f=2"):
        check_aggregator("krum", n=6, f=2)


@pytest.mark.parametrize("strengths", [1, 0, -3])
def test_a_search_of_fewer_than_two_strengths_is_refused(strengths: int) -> None:
    with pytest.raises(ConfigError, match=f"at least 2 strengths of each attack, not {strengths}"):
        check_aggregator(median, strengths=strengths)


def test_a_center_that_is_ignored_does_not_protect() -> None:
    @rule(at_least_centered=lambda f: f + 1)
    def median_of(updates: Tensor, *, f: int, center: Tensor | None = None) -> Tensor:
        return trimmed_mean(updates, f=(len(updates) - 1) // 2)

    with pytest.raises(AssertionError, match="away from its trusted center"):
        check_aggregator(median_of)


# --- long vectors, shards, oracles, resilience ----------------------------------------------------


@rule(coordinatewise=True, at_least=lambda f: 2 * f + 3)
def not_by_coordinates(updates: Tensor, *, f: int) -> Tensor:
    return krum(updates, f=f)


@rule
def generous(updates: Tensor, *, f: int) -> Tensor:
    """The farthest row that is not absurdly far: nobody far away gets in, but whoever stays below
    the limit is followed."""
    apart = (updates - median(updates)).to(torch.float64).norm(dim=1)
    apart[apart > 8 * apart.median()] = -1.0
    return updates[int(apart.argmax())].clone()


@rule
def no_twins(updates: Tensor, *, f: int) -> Tensor:
    """Leaves out whoever says what another says: so it never follows many who agree."""
    alone = torch.cdist(updates.double(), updates.double()).eq(0).sum(dim=1) == 1
    return trimmed_mean(updates[alone] if int(alone.sum()) > 2 * f else updates, f=f)


def middle_values(updates: Tensor, *, f: int) -> Tensor:
    return updates.sort(dim=0).values[f : len(updates) - f].mean(dim=0)


class Apart(Rule):
    """Loses a row when they are not one tensor."""

    def explain(self, updates: Any, **options: Any) -> Verdict:
        return super().explain(updates if isinstance(updates, Tensor) else updates[1:], **options)


class Forgetful(GramRule):
    """Its shards do not say how large they are."""

    def gram_of(self, *arguments: Any, **named: Any) -> Gram:
        gram = super().gram_of(*arguments, **named)
        return replace(gram, products=gram.products / (gram.products.trace() or 1.0))


def nearest(gram: Gram, *, f: int) -> np.ndarray:
    sums = gram.squared_distances().sum(axis=1)
    if not sums.all():
        return gram.even(range(gram.n))
    return (1 / sums) / (1 / sums).sum()


def forgetful() -> GramRule:
    made = gram_rule(name="forgetful", robust=False)(nearest)
    made.__class__ = Forgetful
    return made


WEAK: list[tuple[Any, str]] = [
    (
        Apart(middle_values, name="apart"),
        "makes another aggregate of separate rows",
    ),
    (not_by_coordinates, "not_by_coordinates on 3 shards is .* away"),
    (forgetful(), "forgetful on 3 shards gives other weights than on the whole vector"),
    (generous, r"generous is not \(2, 16\)-robust among 11: kappa is at least .*, found by"),
    (no_twins, "6 of 11 Byzantine peers do not break no_twins"),
]


@pytest.mark.parametrize(("broken", "words"), WEAK, ids=[words for _, words in WEAK])
def test_the_kit_finds_what_only_shows_in_long_vectors_in_shards_or_under_the_worst_attack(
    broken: Any, words: str
) -> None:
    with pytest.raises(AssertionError, match=words):
        check_aggregator(broken)


def slow_trimmed_mean(updates: np.ndarray, f: int) -> np.ndarray:
    return np.sort(updates, axis=0)[f : len(updates) - f].mean(axis=0)


def test_a_rule_is_held_to_an_oracle() -> None:
    check_aggregator(trimmed_mean, oracle=slow_trimmed_mean, strengths=2)
    with pytest.raises(
        AssertionError,
        match=r"trimmed_mean is .* away from its oracle on 11 updates, f=2, isotropic",
    ):
        check_aggregator(
            trimmed_mean, oracle=lambda updates, f: slow_trimmed_mean(updates, f - 1), strengths=2
        )


def test_a_rule_is_held_to_the_kappa_that_is_claimed_of_it() -> None:
    with pytest.raises(AssertionError, match=r"krum is not \(2, 0.5\)-robust among 11"):
        check_aggregator(krum, kappa=0.5, strengths=2)


@pytest.mark.parametrize(
    "name", rotated(["median", "trimmed_mean", "krum", "multi_krum", "nnm+trimmed_mean"])
)
def test_the_worst_attack_found_is_at_least_as_bad_as_one_that_no_rule_escapes(name: str) -> None:
    """Whatever the rule, kappa is f / (n - 2f) or more;
    a search that finds less does not search."""
    report = check_aggregator(name, n=11, f=2)
    assert report.kappa >= 2 / 7 - 1e-9
    assert report.kappa <= report.kappa_bound


def test_a_report_says_how_many_liars_it_takes() -> None:
    trimmed = check_aggregator(trimmed_mean, n=11, f=2, strengths=2)
    assert trimmed.breaks_at == 3, "one more than it was told of"
    assert check_aggregator(median, n=11, f=2, strengths=2).breaks_at == 6
    assert "broken by 3 Byzantine peers" in str(trimmed)
    assert "declares no bound" in str(check_aggregator("mean"))
