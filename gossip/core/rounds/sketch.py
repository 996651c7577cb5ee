"""Sketches: small random projections of the parameters, from which each peer estimates the
consensus distance."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gossip.core.settings import SKETCH_NUMBERS_MAX

Sketch: TypeAlias = Sequence[float]


@dataclass(frozen=True, slots=True)
class ConsensusDistance:
    """Root mean square distance of the replicas from their mean, estimated from sketches.

    Attributes:
        distance: Root mean square distance of the sketches from their mean. As far as the
            projection preserves norms, this is the consensus distance of the parameters.
        norm: Root mean square norm of the sketches.
    """

    distance: float
    norm: float

    @property
    def ratio(self) -> float:
        return self.distance / self.norm if self.norm > 0 else 0.0


def read_sketch(packed: bytes) -> Sketch | None:
    """Return the values of a float32 array in native byte order; None if the bytes are invalid or a
    value is not finite."""
    if not packed or len(packed) % 4 or len(packed) > 4 * SKETCH_NUMBERS_MAX:
        return None
    numbers = array("f", packed)
    return numbers if math.isfinite(sum(map(abs, numbers))) else None


def consensus(sketches: Collection[Sketch], f: int) -> ConsensusDistance | None:
    """Return the consensus distance of sketches of equal length; None if fewer than two sketches
    remain.

    The f sketches farthest from the coordinate-wise median are excluded. So a Byzantine minority
    cannot make the peers mix more.
    """
    if len(sketches) - f < 2:
        return None
    middle = len(sketches) // 2
    median = [sorted(column)[middle] for column in zip(*sketches, strict=True)]
    kept = sorted(sketches, key=lambda sketch: _squared(sketch, median))[: len(sketches) - f]
    mean = [math.fsum(column) / len(kept) for column in zip(*kept, strict=True)]
    distance = math.sqrt(math.fsum([_squared(sketch, mean) for sketch in kept]) / len(kept))
    norm = math.sqrt(math.fsum([math.fsum([x * x for x in sketch]) for sketch in kept]) / len(kept))
    return ConsensusDistance(distance, norm)


def _squared(a: Sketch, b: Sketch) -> float:
    return math.fsum([(x - y) ** 2 for x, y in zip(a, b, strict=True)])
