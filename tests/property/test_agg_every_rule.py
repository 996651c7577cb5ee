"""What holds of every rule for all updates, however large, small or equal they are;
few examples of each."""

from __future__ import annotations

import pytest
import torch
from effort import rotated
from hypothesis import given, settings, strategies as st
from torch import Tensor

from gossip.aggregators import load

INSIDE = (  # of the box around the updates
    *(
        "meamed",
        "phocas",
        "mda",
        "faba",
        "cge",
        "caf",
        "smea",
        "dnc",
        "geometric_median",
        "huber",
        "cauchy",
        "bulyan",
    ),
    *("nnm+trimmed_mean", "nnm+krum", "bucketing+median", "nnm+geometric_median"),
)
# of the box around the updates and zero
TOWARDS_ZERO = ("rfa", "centered_clipping", "arc+median", "clipping+median", "spectral_clipping")

numbers = st.one_of(
    st.floats(-10, 10, width=32),
    st.sampled_from([0.0, -0.0, 1.0, 1e-40, -1e30, 1e30, 3.4e38, -3.4e38]),
)


@st.composite
def updates_and_f(draw: st.DrawFn) -> tuple[Tensor, int]:
    f = draw(st.integers(0, 2))
    n, d = draw(st.integers(4 * f + 3, 4 * f + 5)), draw(st.integers(1, 3))
    rows = draw(st.lists(numbers, min_size=n * d, max_size=n * d))
    return torch.tensor(rows, dtype=torch.float32).reshape(n, d), f


@pytest.mark.parametrize("spec", rotated([*INSIDE, *TOWARDS_ZERO, "sign_majority"]))
@given(case=updates_and_f())
@settings(max_examples=15)
def test_from_finite_updates_comes_a_finite_verdict_that_a_call_agrees_with(
    spec: str, case: tuple[Tensor, int]
) -> None:
    rule, (updates, f) = load(spec).rule, case
    before = updates.clone()
    verdict, called = rule.explain(updates, f=f), rule(updates, f=f)
    assert torch.equal(updates, before)
    for part in (verdict.aggregate, verdict.weights, verdict.outlyingness, called):
        assert bool(torch.isfinite(part).all())
    assert float(verdict.weights.min()) >= 0
    assert float(verdict.outlyingness.min()) >= 0
    total = float(verdict.weights.sum())
    if spec == "sign_majority":
        assert abs(total - 1) < 1e-6 or (total == 0 and not bool(called.any())), "ties alone"
        return
    assert abs(total - 1) < 1e-6
    wide = updates.double()
    slack = 1e-5 * wide.abs().amax(dim=0) + 1e-37
    low, high = wide.amin(dim=0) - slack, wide.amax(dim=0) + slack
    if spec in TOWARDS_ZERO:
        low, high = low.clamp(max=0), high.clamp(min=0)
    for aggregate in (verdict.aggregate.double(), called.double()):
        assert bool(((aggregate >= low) & (aggregate <= high)).all())
    reach = max(1e-30, float((wide - wide.median(dim=0).values).abs().max()))
    assert float((verdict.aggregate.double() - called.double()).abs().max()) <= 1e-4 * reach
