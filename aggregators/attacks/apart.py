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
    """The update for peers with an even number, its opposite for peers with an odd number."""
    return update * (strength if receiver % 2 == 0 else -strength)


@attack(
    shape="apart",
    strength=1.0,
    meaning="epsilon (1 cancels the pull of the honest neighbours)",
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

    With epsilon = 1 and plain mixing, the b attackers cancel the pull of all honest neighbours: the
    receiver does not move.

    Args:
        theirs: x_i, the receiver's last vector. If it is None, the attacker's own vector is used.
        others: x_j, the last vectors of the receiver's honest neighbours. If there are none, x_i is
            sent.
        neighbours: Number of the receiver's honest neighbours. If ``others`` has fewer vectors, the
            mean of ``others`` replaces each missing vector.
        attackers: b, the number of peers that send this vector.
    Source: He, Karimireddy, Jaggi 2022, "Byzantine-Robust Decentralized Learning via
    ClippedGossip", arXiv:2202.01545, with equal mixing weights.
    """
    here = update if theirs is None else theirs
    if not others:
        return here.clone()
    pull = sum((other - here for other in others[1:]), others[0] - here) / len(others)
    return here - strength * neighbours / attackers * pull
