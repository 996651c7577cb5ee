"""Checks that a rule returns the same aggregate for whole vectors, for vectors in chunks, and for
vectors in shards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossip.aggregators import BoundRule, Gram, GramRule

from .crowds import LEARNING_RATE, SyntheticUpdates, apart, crowd, near

SHARDS = (1, 3, 8)
# Number of coordinates, which rules process in several blocks. It is a prime, so that the last
# block is not full.
WIDE = 49_999
SAME = 1e-6  # maximum relative difference between aggregates with and without shards


def check_long_vectors(bound: BoundRule, n: int, f: int, generator: torch.Generator) -> None:
    """Check that three things do not matter: the order of the coordinates, the bounds of blocks,
    and whether rows are separate arrays."""
    case = crowd(n, WIDE, f, generator)
    straight = case.judge(bound).aggregate
    order = torch.randperm(WIDE, generator=generator)
    turned = SyntheticUpdates(case.updates[:, order], f, case.gradient[order])
    mixed = turned.judge(bound).aggregate
    if not near(mixed, straight[order]):
        raise AssertionError(
            f"{bound.name} depends on the order of {WIDE} coordinates: "
            f"{apart(mixed, straight[order])} apart; a rule that works on chunks must treat all "
            "chunks alike, wherever they start"
        )
    rows = [row.clone() for row in case.updates]
    separate = case.judge(bound, rows).aggregate
    if not near(separate, straight):
        raise AssertionError(
            f"{bound.name} makes another aggregate of separate rows than of the same rows in one "
            f"tensor: {apart(separate, straight)} away"
        )


def check_shards(bound: BoundRule, case: SyntheticUpdates) -> None:
    """Check that the weights and the aggregate with 1, 3 and 8 shards equal those without shards,
    except for rounding."""
    updates = case.updates.to(torch.float64)
    exact = SyntheticUpdates(updates, case.f, case.gradient)
    whole = exact.judge(bound)
    for count in SHARDS:
        cuts = [piece for piece in torch.arange(updates.shape[1]).tensor_split(count) if len(piece)]
        if isinstance(bound.rule, GramRule):
            aggregate, weights = _decided(bound, bound.rule, exact, cuts)
            moved = float((weights - whole.weights).abs().max())
            # If the rule has a last step on the columns, the weights depend on the shard.
            if not moved <= SAME and bound.rule.last_step is None:
                raise AssertionError(
                    f"{bound.name} on {count} shards gives other weights than on the whole "
                    f"vector: {moved:.3g} apart"
                )
        elif not bound.whole_vector:
            parts = [
                SyntheticUpdates(updates[:, piece], case.f, case.gradient[piece])
                .judge(bound)
                .aggregate
                for piece in cuts
            ]
            aggregate = torch.cat(parts)
        else:
            return  # the rule declares that it needs whole vectors
        if not near(aggregate, whole.aggregate, SAME):
            raise AssertionError(
                f"{bound.name} on {count} shards is {apart(aggregate, whole.aggregate)} away "
                "from its aggregate of the whole vector"
            )


def _decided(
    bound: BoundRule, rule: GramRule, case: SyntheticUpdates, cuts: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the aggregate and the weights, computed as the servers of shards do it: statistics of
    each shard, one decision, and a combination in each shard."""
    vectors: dict[str, Tensor] = {
        "gradient": case.gradient.to(torch.float64),
        "center": case.gradient.to(torch.float64),
    }
    named = {
        point: vectors[point] for point in vectors if point in rule.points and _wanted(rule, point)
    }
    plain: dict[str, Any] = {"f": case.f, "learning_rate": LEARNING_RATE, "round_id": case.round_id}
    options = {key: value for key, value in plain.items() if key in rule.needs} | dict(
        bound.options
    )
    gram: Gram | None = None
    for piece in cuts:
        points: dict[str, Any] = {point: vector[piece] for point, vector in named.items()}
        part = rule.statistics(case.updates[:, piece], **points)
        gram = part if gram is None else gram + part
    assert gram is not None
    decision = rule.decide(gram, **options)
    pieces = [
        rule.combine(
            case.updates[:, piece],
            decision,
            **{**options, **{point: vector[piece] for point, vector in named.items()}},
        )
        for piece in cuts
    ]
    assert decision.shares is not None
    return torch.cat(pieces), torch.from_numpy(decision.shares)


def _wanted(rule: GramRule, point: str) -> bool:
    """Whether the rule receives the point that is named. ``SyntheticUpdates.judge`` omits an
    optional center, so it is omitted here, too."""
    return point != "center" or point not in rule.optional
