"""What holds for all updates, whatever they are."""

from __future__ import annotations

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


def run(rule: Rule, updates: Tensor, f: int) -> Verdict:
    return BoundRule(rule.name, rule).explain(updates, f=f)


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
