"""Attacks of one Byzantine peer that change its own update, without knowledge of other updates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gossip.aggregators.numbers import FRACTION, NOT_NEGATIVE, POSITIVE

from .kinds import ROUNDS, attack

if TYPE_CHECKING:
    import torch
    from torch import Tensor

AWAKE = 10.0
"""Factor by which ``sleeper`` multiplies the negated update when it attacks."""


@attack(strength=1.0, meaning="factor of the negated update")
def sign_flip(update: Tensor, *, strength: float) -> Tensor:
    """``-strength * update``. Each Byzantine peer negates its own update."""
    return update * -strength


@attack(strength=0.1, meaning="fraction of the coordinates that are hit", allowed=FRACTION)
def bit_flip(update: Tensor, *, strength: float, generator: torch.Generator) -> Tensor:
    """Flip bits 22, 29, 30 and 31 of the float32 values in a random fraction ``strength`` of the
    coordinates, like failing memory.

    Bit 31 is the sign, 30 and 29 the top of the exponent, 22 the top of the mantissa. A value of
    ordinary size becomes about 1e16 to 1e20, or nearly zero. Few values become infinite or NaN. The
    bits are those of the Zeno authors' code; the bit-flipping of their paper is
    ``negated_copies``.
    """
    import torch

    hit = torch.rand(update.shape, generator=generator).to(update.device) < strength
    mask = (1 << 22) | (1 << 29) | (1 << 30) | -(1 << 31)
    flipped = (update.to(torch.float32).view(torch.int32) ^ mask).view(torch.float32)
    return torch.where(hit, flipped.to(update.dtype), update)


@attack(strength=200.0, meaning="standard deviation", allowed=NOT_NEGATIVE)
def gaussian(update: Tensor, *, strength: float, generator: torch.Generator) -> Tensor:
    """Noise N(0, strength^2) instead of the update.

    Source: Xie, Koyejo, Gupta 2018, arXiv:1802.10116 (strength 200).
    """
    import torch

    return (torch.randn(update.shape, generator=generator) * strength).to(update)


@attack(strength=1000.0, meaning="factor")
def scale(update: Tensor, *, strength: float) -> Tensor:
    """``strength * update``."""
    return update * strength


@attack()
def nan(update: Tensor) -> Tensor:
    """NaN in every coordinate."""
    return update.new_full(update.shape, math.nan)


@attack()
def inf(update: Tensor) -> Tensor:
    """Infinity in every coordinate, with the sign of the update."""
    return update.new_full(update.shape, math.inf).copysign(update)


@attack()
def zero(update: Tensor) -> Tensor:
    """A vector of zeros, sent in time."""
    return update.new_zeros(update.shape)


@attack(strength=10.0, meaning="age in rounds", allowed=ROUNDS)
def stale(update: Tensor, *, past: Tensor) -> Tensor:
    """The update of ``strength`` rounds ago; in the first rounds the oldest update."""
    return past


@attack(strength=1.0, meaning="length, in norms of the own update", allowed=NOT_NEGATIVE)
def random_direction(update: Tensor, *, strength: float, direction: torch.Generator) -> Tensor:
    """A vector as long as the update, in a random direction that is the same in all rounds."""
    import torch

    drawn = torch.randn(update.shape, generator=direction, dtype=torch.float64).to(update.device)
    size = torch.linalg.vector_norm(update, dtype=torch.float64)
    lie: Tensor = (drawn * (strength * size / torch.linalg.vector_norm(drawn))).to(update.dtype)
    return lie


@attack(strength=25.0, meaning="maximum number of honest rounds", allowed=ROUNDS)
def sleeper(update: Tensor, *, strength: float, round_id: int, somebody_locked: bool) -> Tensor:
    """Send honest updates for this number of rounds, then ten times the negated update. In ``gossip
    bench robustness`` the attack begins earlier if an honest peer is in quarantine."""
    awake = round_id >= strength or somebody_locked
    return update * -AWAKE if awake else update.clone()


@attack(strength=1.0, meaning="factor of the negated update", allowed=POSITIVE)
def every_second(update: Tensor, *, strength: float, round_id: int) -> Tensor:
    """``sign_flip`` in even rounds, the honest update in odd rounds."""
    return update * -strength if round_id % 2 == 0 else update.clone()
