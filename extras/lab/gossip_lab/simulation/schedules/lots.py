"""Random draws for a part of a schedule: numbers that do not depend on other draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from .schedule import PEERS_MAX, Schedule

BEGIN_S = 1.0  # time after which the swarm has gathered


@dataclass(slots=True)
class FaultSampler:
    """Random draws for one kind of fault."""

    random: Random
    n: int
    active_s: float

    def peers(self) -> list[int]:
        """Return all peers in an order that does not change if there are fewer or more."""
        lots = [self.random.random() for _ in range(PEERS_MAX)]
        return sorted(range(self.n), key=lambda peer: lots[peer])

    def peer(self) -> int:
        return self.peers()[0]

    def when(self, least_s: float = BEGIN_S) -> float:
        return self.ms(least_s, max(least_s, self.active_s - 0.5))

    def ms(self, least_s: float, most_s: float) -> float:
        """Draw whole milliseconds, which are printed alike in a plan file, a message and a
        trace."""
        return round(self.random.uniform(least_s, most_s), 3)

    def long(self, least_s: float, most_s: float) -> float:
        """Draw a duration: short ones are as frequent as long ones."""
        stretched: float = least_s * (most_s / least_s) ** self.random.random()
        return round(stretched, 3)

    def share(self, least: float, most: float, digits: int = 3) -> float:
        return round(self.random.uniform(least, most), digits)

    def few(self, most: int) -> int:
        return self.random.randint(1, most)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of schedule that replaces the drawn one.

    Attributes:
        weight: Relative frequency.
        least, most: Bounds of the number of peers, which otherwise stays as drawn.
        arrange: Returns the schedule, made from the drawn one without its faults.
    """

    name: str
    weight: float
    least: int
    most: int
    arrange: Callable[[FaultSampler, Schedule], Schedule]

    def make(self, drawn: Schedule, **changes: Any) -> Schedule:
        n = min(max(drawn.peers, self.least), self.most)
        lots = FaultSampler(Random(f"schedule/{drawn.seed}/{self.name}"), n, drawn.active_s)
        return self.arrange(lots, replace(drawn, peers=n, faults=(), **changes))


def draw_scenario(
    drawn: Schedule, name: str, share: float, scenarios: Sequence[Scenario], **changes: Any
) -> Schedule:
    """Return one of the scenarios instead of the drawn schedule, in a ``share`` of the schedules.

    Args:
        name: Name of the random draw, which depends on nothing else.
        changes: Fields of the schedule that a scenario begins with.
    """
    lot = Random(f"schedule/{drawn.seed}/{name}")
    if lot.random() >= share:
        return drawn
    weights = [scenario.weight for scenario in scenarios]
    return lot.choices(scenarios, weights)[0].make(drawn, **changes)
