"""Times of a world: how long peers compute, and how long payloads travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gossip.errors import ConfigError

from .counters import draw_uniform

UNITS_S = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
"""Units of durations, in seconds."""


class ComputeTimes(Protocol):
    """Times of the computation of an update."""

    def seconds(self, peers: NDArray[np.int64], round_id: int) -> NDArray[np.float64]:
        """Return how long each of the peers computes its update of the round, in seconds."""
        ...


@dataclass(frozen=True, slots=True)
class UniformCompute:
    """Each update takes a time that is drawn between two bounds, in seconds."""

    least_s: float
    most_s: float
    seed: int

    def seconds(self, peers: NDArray[np.int64], round_id: int) -> NDArray[np.float64]:
        drawn = draw_uniform("compute", self.seed, peers, round_id)
        return np.asarray(self.least_s + (self.most_s - self.least_s) * drawn)


def read_duration(text: str) -> float:
    """Read seconds, such as ``0.5``, ``500ms``, ``10m`` or ``2h``. Raises: ValueError."""
    unit = text.lstrip("0123456789.")
    if unit not in UNITS_S:
        raise ValueError(text)
    return float(text.removesuffix(unit)) * UNITS_S[unit]


def read_compute(spec: str, seed: int) -> ComputeTimes:
    """Read ``uniform:0.04:0.06`` or ``constant:0.05``, in seconds per update.

    Raises: ConfigError: There are no such times.
    """
    name, *numbers = spec.split(":")
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    if name == "constant" and len(values) == 1 and values[0] > 0:
        return UniformCompute(values[0], values[0], seed)
    if name == "uniform" and len(values) == 2 and 0 < values[0] <= values[1]:
        return UniformCompute(values[0], values[1], seed)
    raise ConfigError(f"compute {spec!r} names no times", "uniform:0.04:0.06, in seconds")


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Links between peers, all alike.

    Attributes:
        delay_s: Bounds of the delay of a message, in seconds, uniform between them.
        bytes_per_s: Bandwidth of each link; None: payloads take no longer than other messages.
    """

    delay_s: tuple[float, float]
    bytes_per_s: float | None = None


PRESETS = {
    "loopback": LinkTimes((0.0002, 0.001)),
    "lan": LinkTimes((0.0002, 0.001), 125e6),
    "wan": LinkTimes((0.02, 0.05), 12.5e6),
}


def read_links(spec: str) -> LinkTimes:
    """Read links by the name of a preset.

    Raises: ConfigError: There is no such preset.
    """
    if spec not in PRESETS:
        raise ConfigError(f"there are no links {spec!r}", f"one of {', '.join(PRESETS)}")
    return PRESETS[spec]
