"""Attacks of peers that are honest for a while, so that their trust outlasts their attacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .kinds import POSITIVE, ROUNDS, attack

if TYPE_CHECKING:
    from torch import Tensor

AWAKE = 10.0
"""Factor of the negated update of a sleeper after it has begun to attack."""


@attack(strength=25.0, meaning="rounds that it waits at most", allowed=ROUNDS)
def sleeper(update: Tensor, *, strength: float, round_id: int, somebody_locked: bool) -> Tensor:
    """Send honest updates for this number of rounds, then ten times the negated update. In ``gossip
    bench robustness`` it also begins once an honest peer is in quarantine."""
    awake = round_id >= strength or somebody_locked
    return update * -AWAKE if awake else update.clone()


@attack(strength=1.0, meaning="factor of the negated update", allowed=POSITIVE)
def every_second(update: Tensor, *, strength: float, round_id: int) -> Tensor:
    """``sign_flip`` in rounds of even number; honest in the others."""
    return update * -strength if round_id % 2 == 0 else update.clone()
