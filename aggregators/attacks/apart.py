"""Attacks on gossip rounds that send each neighbour a different update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.aggregators.numbers import POSITIVE

from .kinds import attack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@attack(shape="apart", strength=1.0, meaning="factor of the two opposite updates", allowed=POSITIVE)
def equivocation(update: Tensor, *, strength: float, receiver: int) -> Tensor:
    """The update to peers of even number, and its opposite to peers of odd number."""
    return update * (strength if receiver % 2 == 0 else -strength)


@attack(
    shape="apart",
    strength=1.0,
    meaning="epsilon, of which 1 undoes what honest neighbours do",
    allowed=POSITIVE,
)
def dissensus(
    update: Tensor,
    *,
    strength: float,
    theirs: Tensor | None,
    others: Sequence[Tensor],
    neighbours: int,
    attackers: int,
) -> Tensor:
    """A push away from the receiver's honest neighbours: ``x_i - epsilon / b * sum of (x_j -
    x_i)``.

    With epsilon = 1 and plain mixing the b attackers cancel the pull of all honest neighbours: the
    receiver does not move.

    Args:
        theirs: Last vector of the receiver, x_i; the attacker's own vector before one has arrived.
        others: Last vectors of its honest neighbours, x_j. Without any, the attacker sends its own
            vector.
        neighbours: Number of these neighbours. Those without a vector count with the mean of the
            others.
        attackers: b, the number of peers that send this vector.
    Source: He, Karimireddy, Jaggi 2022, "Byzantine-Robust Decentralized Learning via
    ClippedGossip", arXiv:2202.01545, with equal mixing weights.
    """
    here = update if theirs is None else theirs
    if not others:
        return here.clone()
    pull = sum((other - here for other in others[1:]), others[0] - here) / len(others)
    return here - strength * neighbours / attackers * pull
