"""What a liar of the fault plan says in the simulator instead of its update: the attacks of real runs, on toy vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gossip.faults import Liar

from .toy_trainer import Vector

Lie = Callable[[Vector, int], Vector]


class ToyLie:
    """``lie(update, round_id) -> what is said``, and how often it was told."""

    def __init__(self, liar: Liar, peer: int, seed: int) -> None:
        self.liar, self.peer, self.seed = liar, peer, seed
        self.told = 0
        self._old: list[Vector] = []

    def __call__(self, update: Vector, round_id: int) -> Vector:
        self.told += 1
        strength = self.liar.strength
        match self.liar.attack:
            case "sign_flip":
                return -update * np.float32(strength)
            case "label_flip":
                return -update  # who learns from wrong labels steps away from the target
            case "bit_flip":
                return (update.view(np.uint32) ^ np.uint32(1 << 30)).view(np.float32)
            case "gaussian":
                noise = np.random.default_rng([self.seed, 4, self.peer, round_id]).standard_normal(len(update))
                return (noise * strength).astype(np.float32)
            case "scale":
                return update * np.float32(strength)
            case "nan":
                return np.full_like(update, np.nan)
            case "zero":
                return np.zeros_like(update)
            case "stale":
                self._old = [*self._old[-int(strength) :], update.copy()]
                return self._old[0]
            case other:
                raise AssertionError(f"no toy lie for the attack {other!r}")
