"""What holds for all updates, whatever they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from effort import effort
from hypothesis import given, settings, strategies as st
from torch import Tensor

from gossip.aggregators import (
    Rule,
    Verdict,
    krum,
    mean,
    median,
    multi_krum,
    suspicion,
    trimmed_mean,
    zeno_pp,
)
from gossip.aggregators.registry import BoundRule

RULES = [mean, median, trimmed_mean, krum, multi_krum, suspicion]
ROBUST = RULES[1:]

numbers = st.one_of(
    st.floats(-10, 10, width=32),
    st.sampled_from([0.0, -0.0, 1.0, 1e-40, -1e30, 1e30, 3.4e38, -3.4e38]),
)


@st.composite
def updates_and_f(draw: st.DrawFn) -> tuple[Tensor, int]:
    f = draw(st.integers(0, 3))
    n = draw(st.integers(2 * f + 3, 2 * f + 9))
    d = draw(st.integers(1, 5))
    rows = draw(st.lists(st.lists(numbers, min_size=d, max_size=d), min_size=n, max_size=n))
    return torch.tensor(rows, dtype=torch.float32), f


def run(rule: Rule, updates: Tensor, f: int) -> Verdict:
    return BoundRule(rule.name, rule).explain(updates, f=f)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@given(case=updates_and_f())
@settings(max_examples=effort(40, 150))
def test_from_finite_updates_comes_a_finite_verdict_inside_their_hull(
    rule: Rule, case: tuple[Tensor, int]
) -> None:
    updates, f = case
    before = updates.clone()
    verdict = run(rule, updates, f)
    assert torch.equal(updates, before)
    for part in (verdict.aggregate, verdict.weights, verdict.outlyingness):
        assert bool(torch.isfinite(part).all())
    assert float(verdict.weights.min()) >= 0
    assert abs(float(verdict.weights.sum()) - 1) < 1e-6
    assert float(verdict.outlyingness.min()) >= 0
    wide = updates.double()
    slack = 1e-5 * wide.abs().amax(dim=0) + 1e-37
    assert bool((verdict.aggregate.double() >= wide.amin(dim=0) - slack).all())
    assert bool((verdict.aggregate.double() <= wide.amax(dim=0) + slack).all())


@pytest.mark.parametrize("rule", [median, trimmed_mean], ids=repr)
@given(case=updates_and_f(), data=st.data())
@settings(max_examples=effort(30, 100))
def test_coordinate_rules_stay_between_the_honest_whatever_f_liars_send(
    rule: Rule, case: tuple[Tensor, int], data: st.DataObject
) -> None:
    updates, f = case
    updates = updates.clone()
    for attacker in range(f):
        updates[attacker] = data.draw(numbers)
    honest = updates[f:].double()
    slack = 1e-5 * honest.abs().amax(dim=0) + 1e-37
    aggregate = run(rule, updates, f).aggregate.double()
    assert bool(
        (
            (aggregate >= honest.amin(dim=0) - slack) & (aggregate <= honest.amax(dim=0) + slack)
        ).all()
    )


@pytest.mark.parametrize("rule", ROBUST, ids=repr)
@given(
    seed=st.integers(0, 2**32),
    f=st.integers(1, 4),
    extra=st.integers(3, 6),
    d=st.integers(1, 40),
    size=st.floats(3, 30),
)
@settings(max_examples=effort(30, 100))
def test_liars_of_any_size_move_a_robust_rule_no_farther_than_the_honest_reach(
    rule: Rule, seed: int, f: int, extra: int, d: int, size: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    honest = torch.randn(f + extra, d, generator=generator)
    lies = 10.0**size * torch.randn(f, d, generator=generator)
    center = honest.mean(dim=0)
    reach = float((honest - center).norm(dim=1).max())
    verdict = run(rule, torch.cat([lies, honest]), f)
    assert float((verdict.aggregate - center).norm()) <= 3 * reach


@pytest.mark.parametrize("rule", RULES, ids=repr)
@given(seed=st.integers(0, 2**32), f=st.integers(0, 3), n=st.integers(9, 14), d=st.integers(1, 30))
@settings(max_examples=effort(20, 60))
def test_order_shift_and_unit_do_not_matter(rule: Rule, seed: int, f: int, n: int, d: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Quarters, so that shifts and powers of two are exact and ties stay ties.
    updates = torch.randint(-40, 40, (n, d), generator=generator).double() / 4
    order = torch.randperm(n, generator=generator)
    straight = run(rule, updates, f)
    if rule in (mean, median, trimmed_mean):  # the others may break a tie by the order of rows
        torch.testing.assert_close(run(rule, updates[order], f).aggregate, straight.aggregate)
        torch.testing.assert_close(run(rule, updates[order], f).weights, straight.weights[order])
    shifted = run(rule, updates + 8.0, f)
    scaled = run(rule, updates * 2.0**20, f)
    torch.testing.assert_close(scaled.aggregate / 2.0**20, straight.aggregate)
    torch.testing.assert_close(scaled.outlyingness, straight.outlyingness)
    if rule is not suspicion:  # its ties may fall the other way when rounding does
        torch.testing.assert_close(
            shifted.aggregate - 8.0, straight.aggregate, atol=1e-9, rtol=1e-9
        )


@pytest.mark.parametrize("rule", RULES, ids=repr)
@given(row=st.lists(numbers, min_size=1, max_size=6), copies=st.integers(3, 9), half=st.booleans())
@settings(max_examples=effort(20, 80))
def test_equal_updates_give_that_update(
    rule: Rule, row: list[float], copies: int, half: bool
) -> None:
    vector = torch.tensor(row, dtype=torch.bfloat16 if half else torch.float32)
    vector = torch.where(torch.isfinite(vector), vector, torch.ones_like(vector))
    verdict = run(rule, vector.repeat(copies, 1), 0)
    assert verdict.aggregate.dtype == vector.dtype
    torch.testing.assert_close(verdict.aggregate, vector, rtol=1e-2 if half else 1e-5, atol=1e-37)
    assert verdict.outlyingness.tolist() == [1.0] * copies


@given(
    seed=st.integers(0, 2**32),
    attackers=st.integers(0, 6),
    size=st.floats(-20, 20),
    noise=st.floats(0, 3),
)
@settings(max_examples=effort(30, 100))
def test_zeno_pp_never_makes_a_longer_step_than_its_gradient_nor_one_uphill(
    seed: int, attackers: int, size: float, noise: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(30, generator=generator)
    updates = gradient + noise * torch.randn(8, 30, generator=generator)
    updates[:attackers] = -(10.0**size) * torch.randn(attackers, 30, generator=generator)
    step = zeno_pp(updates, f=1, gradient=gradient, learning_rate=0.1)
    assert bool(torch.isfinite(step).all())
    assert float(step.norm()) <= float(gradient.norm()) * (1 + 1e-5)
    assert float(step @ gradient) >= 0


@given(case=updates_and_f())
@settings(max_examples=effort(30, 100))
def test_the_median_is_numpys(case: tuple[Tensor, int]) -> None:
    updates, _ = case
    expected = np.median(updates.double().numpy(), axis=0)
    np.testing.assert_allclose(median(updates).double().numpy(), expected, rtol=1e-5, atol=1e-37)
