"""Measured times of a member of a stage: of its passes, and of the gradients that it waits for."""

from __future__ import annotations

from typing import Literal, TypeAlias

from gossip.core import USUAL_FACTOR

Way: TypeAlias = Literal["forward", "backward"]


class PassTimes:
    """Times of all passes of a round, in microseconds."""

    def __init__(self) -> None:
        self._passes: dict[Way, tuple[int, int]] = {}  # sum, and number

    def record(self, way: Way, took_us: int) -> None:
        total, count = self._passes.get(way, (0, 0))
        self._passes[way] = total + took_us, count + 1

    @property
    def mean_us(self) -> int:
        """Mean time of a micro-batch, forward and backward; 0 without both passes."""
        if len(self._passes) < 2:
            return 0
        return sum(total // count for total, count in self._passes.values())


class GradientTimes:
    """Times from an output to its gradient, which give the timeout of the next ones."""

    def __init__(self) -> None:
        self._usual_s: float | None = None  # time of the slowest gradient of recent rounds
        self._slowest_s = 0.0  # of this round

    @property
    def is_known(self) -> bool:
        return self._usual_s is not None

    def begin_round(self) -> None:
        if self._slowest_s:
            self._usual_s = max(self._slowest_s, (self._usual_s or 0.0) / 2)
        self._slowest_s = 0.0

    def record(self, seconds: float) -> None:
        self._slowest_s = max(self._slowest_s, seconds)

    def timeout_s(self, least_s: float, asked: int) -> float:
        """Return the timeout of a gradient. The round timeout, ``least_s``, does not cover the time
        that later stages compute.

        Args:
            asked: Number of repetitions of the request. Before a gradient was timed, each is after
                twice the time.
        """
        if self._usual_s is None:
            return float(least_s * 2**asked)
        return max(least_s, USUAL_FACTOR * self._usual_s)
