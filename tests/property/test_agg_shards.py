"""A vector cut in shards: the same decisions as for the whole, and the same aggregate."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from effort import effort, rotated
from torch import Tensor

from gossip.aggregators import GramRule, load, names
from gossip.aggregators.gram import ascending
from gossip.aggregators.gram_rules import SAMPLE_COLUMNS, SAMPLE_PIECES
from gossip.errors import AggregationError

RULES = [name for name in names() if isinstance(load(name).rule, GramRule)]
D, N, F = 1003, 15, 3
TIES = (
    "bulyan",
    "cge",
    "faba",
    "krum",
    "mda",
    "monna",
    "multi_krum",
    "suspicion",
    "suspicion_literal",
    "dnc",
    "spectral_clipping",
    "smea",
    "caf",
)


def gram_rule_of(name: str) -> GramRule:
    rule = load(name).rule
    assert isinstance(rule, GramRule)
    return rule


def case(kind: str, seed: int) -> Tensor:
    """Updates of four kinds, three liars first."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, D, generator=generator)
    if kind == "parameters":
        x = 10 + 1e-3 * x
    if kind == "attackers":
        x[:F] = 1e6 * x[:1]
    if kind == "uneven":  # most of what tells them apart is in one shard
        x[:, 5] *= 30
    if kind == "twins":
        x[4] = x[9]
        x[:F] = x[0]
    return x


def options_of(rule: GramRule, x: Tensor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a rule is told beside the updates, and its points."""
    told: dict[str, Any] = {"f": F, "learning_rate": 0.1}
    chosen = {key: value for key, value in told.items() if key in rule.parameters}
    have = {"center": x[-1].clone(), "gradient": x[5:].mean(dim=0), "previous": 0.5 * x[-2]}
    return chosen, {
        key: value for key, value in have.items() if key in rule.points and key not in rule.optional
    }


def cut(d: int, shards: int) -> list[slice]:
    edges = [round(d * at**1.5 / shards**1.5) for at in range(shards + 1)]  # of unequal length
    return [slice(first, last) for first, last in itertools.pairwise(edges)]


def in_shards(rule: GramRule, x: Tensor, shards: int) -> tuple[Any, Tensor]:
    chosen, points = options_of(rule, x)
    parts = [
        ([row[columns] for row in x], {key: vector[columns] for key, vector in points.items()})
        for columns in cut(D, shards)
    ]
    grams = [rule.statistics(rows, **vectors) for rows, vectors in parts]
    gram = grams[0]
    for other in grams[1:]:
        gram = gram + other
    decision = rule.decide(gram, **chosen)
    return decision, torch.cat(
        [rule.combine(rows, decision, **vectors, **chosen) for rows, vectors in parts]
    )


@pytest.mark.parametrize("kind", ["noise", "parameters", "attackers", "uneven", "twins"])
@pytest.mark.parametrize("name", rotated(RULES))
def test_shards_decide_as_one_and_make_the_same_aggregate(name: str, kind: str) -> None:
    rule = gram_rule_of(name)
    for seed in range(effort(1, 3)):
        x = case(kind, seed)
        chosen, points = options_of(rule, x)
        wide = rule.explain(
            x.to(torch.float64),
            **chosen,
            **{key: vector.to(torch.float64) for key, vector in points.items()},
        )
        for shards in (1, 3, 8):
            decision, aggregate = in_shards(rule, x, shards)
            if rule.last_step is None:
                told = f"{name}, {kind}, seed {seed}, {shards} shards"
                np.testing.assert_allclose(
                    decision.shares, wide.weights.numpy(), atol=1e-5, err_msg=told
                )
                assert (decision.shares > 0).tolist() == (wide.weights > 0).tolist(), told
            # Where updates cancel in the aggregate, their own size is what float32 rounds.
            size = max(float(wide.aggregate.norm()), float(x.norm(dim=1).median()))
            apart = float((aggregate.to(torch.float64) - wide.aggregate).norm()) / size
            assert apart <= 1e-6, (
                f"{name}, {kind}, seed {seed}, {shards} shards: {apart:.2g} away from the float64 "
                "oracle"
            )


def test_shards_of_other_updates_do_not_add_up() -> None:
    krum = gram_rule_of("krum")
    left, right = krum.statistics(torch.randn(9, 4)), krum.statistics(torch.randn(8, 4))
    with pytest.raises(AggregationError, match="shards do not fit"):
        left + right


def test_a_reference_that_lies_in_the_sampled_columns_alone_costs_no_digits() -> None:
    # The liar agrees with all where a reference is looked for, and is far away everywhere else.
    x = torch.randn(9, 20_000, generator=torch.Generator().manual_seed(1)).mul_(1e-3)
    honest = torch.cat([x[:4], x[5:]]).to(torch.float64)
    middle = honest.mean(dim=0).to(torch.float32)
    found = x.clone()
    found[4] = middle + 1e3
    width = SAMPLE_COLUMNS // SAMPLE_PIECES
    for piece in range(SAMPLE_PIECES):
        start = piece * (20_000 - width) // (SAMPLE_PIECES - 1)
        found[4, start : start + width] = middle[start : start + width]
    exact = torch.cdist(honest, honest).square().numpy()
    squares = gram_rule_of("krum").statistics(found).squared_distances()
    kept = [0, 1, 2, 3, 5, 6, 7, 8]
    np.testing.assert_allclose(squares[np.ix_(kept, kept)], exact, rtol=1e-5, atol=1e-12)


def tied(kind: str, seed: int) -> Tensor:
    """Updates that only rounding tells apart: by their norms, or by their distances, too."""
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(seed))
    if kind == "equal norms":  # what the sender `normalise` makes
        x += 0.3
        return x / torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float64).float()
    if kind == "opposite":  # liars send the honest updates with the other sign
        x[:F] = -x[F : 2 * F]
        return x
    # all as long, and as far from each other
    return torch.linalg.qr(x.double().T).Q.T.float().contiguous()


CASES = [
    (name, kind)
    for name in TIES
    for kind in ("equal norms", "opposite", "orthonormal")
    # which look for the top direction: there, every one is
    if kind != "orthonormal" or name not in ("dnc", "spectral_clipping", "caf")
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_updates_equal_up_to_rounding_are_chosen_alike_on_any_shards(name: str, kind: str) -> None:
    rule = gram_rule_of(name)
    for seed in range(3):
        x = tied(kind, seed)
        chosen = [(in_shards(rule, x, shards)[0].shares > 0).tolist() for shards in (1, 3, 8)]
        assert chosen[0] == chosen[1] == chosen[2], f"{name}, {kind}, seed {seed}"
        if kind == "orthonormal" and name in ("cge", "krum", "mda", "multi_krum", "smea"):
            assert chosen[0] == [at < sum(chosen[0]) for at in range(N)], "of equals the earlier"


def test_rounding_is_no_reason_to_take_a_later_row_and_small_steps_do_not_add_up() -> None:
    assert ascending([3.0, 1.0, 1.0 - 1e-9, 2.0]) == [2, 1, 3, 0]
    assert ascending([3.0, 1.0, 1.0 - 1e-9, 2.0], 1e-8) == [1, 2, 3, 0]
    assert ascending([1.2, 1.0, 1.1, 1.3], 0.075) == [1, 2, 0, 3], (
        "1.2 is as good as 1.1, but not as 1.0"
    )
    assert ascending([2.0, 1.0, 1e30], [0.1, 0.1, 1e25]) == [1, 0, 2], (
        "a liar's rounding is nobody else's"
    )
