"""Rules that need no inner products for the aggregate alone make the same of the
updates without them."""

from __future__ import annotations

import pytest
import torch

from gossip.aggregators import load


@pytest.mark.parametrize(
    "spec", ["centered_clipping", "centered_clipping:tau=3.0", "self_centered_clipping"]
)
@pytest.mark.parametrize("attacker", [1.0, 1e3, 1e25])
def test_clipping_once_by_distances_alone_is_clipping_by_inner_products(
    spec: str, attacker: float
) -> None:
    x = torch.randn(9, 400, generator=torch.Generator().manual_seed(0)) + 0.5
    x[7:] *= attacker
    rule = load(spec).rule
    options = {**load(spec).options, "f": 2, "center" if "self" in spec else "previous": x[0] * 0.9}
    assert getattr(rule, "one_look", False)
    torch.testing.assert_close(
        rule(x, **options), rule.explain(x, **options).aggregate, rtol=1e-5, atol=1e-6
    )


def test_clipping_once_around_the_origin_bounds_what_a_liar_adds() -> None:
    x = torch.ones(5, 100)
    x[4] *= 1e9
    torch.testing.assert_close(load("centered_clipping")(x, f=1), x[0])


def test_several_steps_need_the_inner_products() -> None:
    rule = load("centered_clipping").rule
    assert rule.one_look(steps=1, f=2)
    assert not rule.one_look(steps=2, f=2)
