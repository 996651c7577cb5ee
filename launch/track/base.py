"""Interface of trackers, and the data that all of them receive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a curve.

    Attributes:
        name: Name of the curve: ``loss/peer-0``, ``swarm/round_s``.
        step: Round of the value.
        at: Time in seconds since 1970.
    """

    name: str
    step: int
    value: float
    at: float


@dataclass(frozen=True)
class RunDescription:
    """Settings and origin of a run.

    Attributes:
        run: Id of the run.
        settings: Settings of the run by name, as in ``config.json``.
        tags: Facts about the run by name, such as the host, the version of the code, and the
            checkpoint from which the run resumed.
        began: Start in seconds since 1970.
    """

    run: str
    name: str
    settings: Mapping[str, str]
    tags: Mapping[str, str] = field(default_factory=dict)
    began: float = 0.0


class Tracker(Protocol):
    """Receiver of the records of a run. It may be slow or raise, because it runs in a process of
    its own."""

    def begin(self, about: RunDescription) -> None:
        """Start the record of a run. This is called first, and once."""

    def points(self, points: Sequence[Point]) -> None:
        """Record a batch of values. The values of each curve arrive in order of time."""

    def log_event(self, step: int, at: float, text: str) -> None:
        """Record an event of the run, as text. ``step``, ``at``: as in ``Point``."""

    def close(self) -> None:
        """End the record. All values are stored when this returns."""
