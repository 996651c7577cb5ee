"""All neighbourhoods of a round in one call, against the rule on each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from effort import rotated
from torch import Tensor

from gossip.aggregators import BoundRule, CoordinateRule, Verdict, load, names, rule
from gossip.errors import ConfigError
from gossip_lab.playground.neighbourhoods import (
    Aggregates,
    Neighbourhoods,
    aggregate_neighbourhoods,
)

N, D = 12, 130
SPECS = [*names(), "nnm+trimmed_mean", "bucketing:s=2+median", "trimmed_mean:f=1"]
NEEDED_BY_BULYAN = 7


@pytest.fixture(params=["fast", "plain"], autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSIP_KERNELS", request.param)


def cloud(seed: int = 0) -> Tensor:
    return torch.randn(N, D, generator=torch.Generator().manual_seed(seed)) + 0.5


def drawn_neighbourhoods(seed: int = 0) -> list[list[int]]:
    """Return one neighbourhood for each peer, of unequal sizes, the smallest enough for f = 1."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(NEEDED_BY_BULYAN, N - 1, N)
    return [sorted(draw.choice(N, size, replace=False).tolist()) for size in sizes]


def aggregate(
    bound: BoundRule,
    updates: Tensor,
    neighbours: list[list[int]],
    f: list[int] | None = None,
    judged: bool = True,
    **options: Any,
) -> Aggregates:
    out = torch.empty(len(neighbours), D)
    tolerated = [1] * len(neighbours) if f is None else f
    rows, counts = np.concatenate(neighbours), np.array([0, *map(len, neighbours)])
    near = Neighbourhoods(np.arange(len(neighbours)), counts.cumsum(), rows, rows)
    found = aggregate_neighbourhoods(
        bound, updates, near, f=tolerated, judged=judged, out=out, **options
    )
    assert found.vectors is out
    return found


def options_of(bound: BoundRule, peers: int) -> dict[str, Any]:
    """Return values of all arguments that the rule names, other ones for each peer."""
    draw = torch.Generator().manual_seed(7)
    vectors = {
        name: torch.randn(peers, D, generator=draw) for name in ("center", "gradient", "previous")
    }
    available: dict[str, Any] = {
        **vectors,
        "evaluate": [lambda step, at=at: float((step - at).square().sum()) for at in range(peers)],
        "learning_rate": 0.1,
        "round_id": 3,
    }
    return {name: value for name, value in available.items() if name in bound.needs}


def verdict_alone(
    bound: BoundRule, updates: Tensor, rows: list[int], peer: int, options: dict[str, Any], f: int
) -> Verdict:
    shared = ("learning_rate", "round_id")
    own = {name: value if name in shared else value[peer] for name, value in options.items()}
    return bound.explain(updates[rows], f=f, **own)


@pytest.mark.parametrize("spec", rotated(SPECS))
def test_each_neighbourhood_has_the_verdict_of_the_rule_on_it_alone(spec: str) -> None:
    bound, updates, neighbours = load(spec), cloud(), drawn_neighbourhoods()
    tolerated = [peer % 2 for peer in range(N)]
    options = options_of(bound, N)
    found = aggregate(bound, updates, neighbours, tolerated, **options)
    unjudged = aggregate(bound, updates, neighbours, tolerated, judged=False, **options)
    assert not (found.failed | unjudged.failed).any()
    ends = np.cumsum([len(rows) for rows in neighbours])
    for peer, rows in enumerate(neighbours):
        alone = verdict_alone(bound, updates, rows, peer, options, tolerated[peer])
        own = slice(ends[peer] - len(rows), ends[peer])
        assert torch.equal(found.vectors[peer], alone.aggregate)
        np.testing.assert_array_equal(found.outlyingness[own], alone.outlyingness.numpy())
        torch.testing.assert_close(unjudged.vectors[peer], alone.aggregate, rtol=0, atol=1e-6)
    assert (unjudged.outlyingness == 1).all()


def test_a_neighbourhood_that_is_refused_costs_the_others_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bound, updates, neighbours = load("trimmed_mean"), cloud(), drawn_neighbourhoods()
    neighbours[3], neighbours[5] = [3, 4], [5]
    centers = [None if peer == 2 else center for peer, center in enumerate(updates)]
    with caplog.at_level("DEBUG"):
        found = aggregate(bound, updates, neighbours)
        lacking = aggregate(load("monna"), updates, drawn_neighbourhoods(), center=centers)
    assert np.flatnonzero(lacking.failed).tolist() == [2]
    assert "peer=2 rule=monna reason=ConfigError: rule monna needs center" in caplog.text
    assert "trimmed_mean needs 3 updates to tolerate f=1 Byzantine peers, got 2" in caplog.text
    assert np.flatnonzero(found.failed).tolist() == [3], "the rule does not run on one vector"
    for peer in sorted({*range(N)} - {3, 5}):
        alone = bound.explain(updates[neighbours[peer]], f=1)
        assert torch.equal(found.vectors[peer], alone.aggregate)


@rule(coordinatewise=True)
def touchy_mean(updates: Tensor, *, f: int) -> Tensor:
    """The mean; an exception or an infinity for certain updates."""
    if bool((updates == 100.0).any()):
        raise RuntimeError("100 is too much")
    return updates.mean(dim=0) / (updates[0] != 50.0)


@pytest.mark.parametrize("judged", [True, False])
@pytest.mark.parametrize("raises", [True, False])
def test_a_rule_that_fails_on_some_updates_loses_only_these_neighbourhoods(
    judged: bool, raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    updates = cloud()
    updates[1], updates[6] = 100.0 if raises else 1.0, 50.0
    neighbours = [[at, at + 1, at + 2] for at in range(N - 2)]  # all of one size
    with caplog.at_level("DEBUG"):
        found = aggregate(BoundRule("touchy_mean", touchy_mean), updates, neighbours, judged=judged)
    lost = [0, 1, 6] if raises else [6]
    assert np.flatnonzero(found.failed).tolist() == lost
    assert ("reason=RuntimeError: 100 is too much" in caplog.text) == raises
    assert "peer=6 rule=touchy_mean reason=its aggregate was not finite" in caplog.text
    for peer in {*range(N - 2)}.difference(lost):
        torch.testing.assert_close(found.vectors[peer], updates[neighbours[peer]].mean(dim=0))


def test_a_rule_of_coordinates_runs_once_for_neighbourhoods_of_one_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound, calls, keep = load("trimmed_mean"), [], CoordinateRule.keep

    def count(*given: Any) -> Any:
        calls.append(given)
        return keep(*given)

    monkeypatch.setattr(CoordinateRule, "keep", count)
    square = [[at, (at + 1) % N, (at + 2) % N] for at in range(N)]
    judged = aggregate(bound, cloud(), square)
    assert len(calls) == 1
    plain = aggregate(bound, cloud(), square, judged=False)
    assert len(calls) == 2
    assert torch.equal(judged.vectors, plain.vectors)


def test_a_rule_without_an_argument_that_it_needs_is_refused() -> None:
    with pytest.raises(ConfigError, match="rule monna needs center, which is not available here"):
        aggregate(load("monna"), cloud(), [[0, 1], [1, 2]])
