"""Measured times of a stage member: of its passes, and of the gradients for which it waits."""

from __future__ import annotations

from typing import Literal, TypeAlias

from gossip.core import USUAL_FACTOR

Way: TypeAlias = Literal["forward", "backward"]


class PassTimes:
    """Times of the passes of a round, in microseconds."""

    def __init__(self) -> None:
        self._passes: dict[Way, tuple[int, int]] = {}  # Sum of the times, and number of passes.

    def record(self, way: Way, took_us: int) -> None:
        total, count = self._passes.get(way, (0, 0))
        self._passes[way] = total + took_us, count + 1

    @property
    def mean_us(self) -> int:
        """Mean time of a micro-batch, forward and backward; 0 if one of the two was not
        measured."""
        if len(self._passes) < 2:
            return 0
        return sum(total // count for total, count in self._passes.values())


class GradientTimes:
    """Times between the sending of an output and the arrival of its gradient. They determine the
    timeout of the next gradients."""

    def __init__(self) -> None:
        self._usual_s: float | None = None  # Time of the slowest gradient in recent rounds.
        self._slowest_s = 0.0  # Time of the slowest gradient in this round.

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
        """Return the timeout of a gradient. It is at least the round timeout, ``least_s``, which
        does not include the computation in later stages.

        Args:
            asked: Number of repetitions of the request. Until the first gradient was measured, each
                repetition doubles the timeout.
        """
        if self._usual_s is None:
            return float(least_s * 2**asked)
        return max(least_s, USUAL_FACTOR * self._usual_s)
