"""Checks that a rule returns the same aggregate for whole vectors, for vectors in chunks, and for
vectors in shards."""

from __future__ import annotations

import torch
from torch import Tensor

from gossip.aggregators import BoundRule, ShardedRule

from .crowds import SyntheticUpdates, apart, crowd, near

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
        if bound.cross_shard:
            aggregate, weights = _decided(ShardedRule(bound), exact, cuts)
            moved = float((weights - whole.weights).abs().max())
            if not moved <= SAME:
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
    rule: ShardedRule, case: SyntheticUpdates, cuts: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the aggregate and the weights, computed as the servers of shards do it: measurements
    of each shard, one decision, and a combination in each shard."""
    needs, rows = "gradient" in rule.points, range(len(case.updates))
    shards = [(case.updates[:, cut], case.gradient[cut] if needs else None) for cut in cuts]
    parts = [(rows, rule.measure(updates, gradient=gradient)) for updates, gradient in shards]
    decision = rule.decide(parts, f=case.f, round_id=case.round_id)
    assert decision.shares is not None
    weights = decision.weights.tolist()
    aggregate = [rule.combine(updates, weights, gradient=gradient) for updates, gradient in shards]
    return torch.cat(aggregate), torch.from_numpy(decision.shares)
