"""Interface of trackers, and the data that all of them receive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a curve.

    Attributes:
        name: Of the curve: ``loss/peer-0``, ``swarm/round_s``.
        step: The round.
        at: Seconds since 1970.
    """

    name: str
    step: int
    value: float
    at: float


@dataclass(frozen=True, slots=True)
class Told:
    """Something that happened, in words."""

    step: int
    at: float
    text: str


@dataclass(frozen=True)
class RunDescription:
    """Settings and origin of a run.

    Attributes:
        run: Id of the run.
        settings: Settings of the run, as in ``config.json``.
        tags: Where it ran, the version of the code, and what it goes on from.
        began: Seconds since 1970.
    """

    run: str
    name: str
    settings: Mapping[str, str]
    tags: Mapping[str, str] = field(default_factory=dict)
    began: float = 0.0


class Tracker(Protocol):
    """Takes what a run writes down. It may be slow, and it may raise: nobody trains in its
    process."""

    def begin(self, about: RunDescription) -> None:
        """Called once, before anything else."""

    def points(self, points: Sequence[Point]) -> None:
        """Values, a batch at a time. Those of one curve come in order of time."""

    def log_event(self, told: Told) -> None:
        """An event."""

    def close(self) -> None:
        """Nothing more comes. What was given is in its place when this returns."""
