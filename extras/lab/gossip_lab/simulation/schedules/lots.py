"""Random values for a part of a schedule, independent of all other random values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from .schedule import PEERS_MAX, Schedule

BEGIN_S = 1.0  # time after which all peers are connected


class FaultSampler(Random):
    """Source of the random values for one part of a schedule.

    Args:
        name: Name of the part, such as a kind of fault. It makes the values independent of those of
            other parts.
    """

    def __init__(self, schedule: Schedule, name: str) -> None:
        super().__init__(f"schedule/{schedule.seed}/{name}")
        self.n, self.active_s = schedule.peers, schedule.active_s

    def peers(self) -> list[int]:
        """Return all peers in random order. The order of two peers does not depend on the number of
        peers."""
        lots = [self.random() for _ in range(PEERS_MAX)]
        return sorted(range(self.n), key=lambda peer: lots[peer])

    def peer(self) -> int:
        return self.peers()[0]

    def when(self, least_s: float = BEGIN_S) -> float:
        return self.ms(least_s, max(least_s, self.active_s - 0.5))

    def ms(self, least_s: float, most_s: float) -> float:
        """Draw a time in whole milliseconds, which looks the same in plan files, messages and
        traces."""
        return round(self.uniform(least_s, most_s), 3)

    def long(self, least_s: float, most_s: float) -> float:
        """Draw a duration with log-uniform distribution, so that short durations are as frequent as
        long ones."""
        stretched: float = least_s * (most_s / least_s) ** self.random()
        return round(stretched, 3)

    def share(self, least: float, most: float, digits: int = 3) -> float:
        return round(self.uniform(least, most), digits)

    def few(self, most: int) -> int:
        return self.randint(1, most)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of special schedule that replaces a random schedule.

    Attributes:
        weight: Relative frequency.
        least, most: Bounds of the number of peers. Within these bounds, the schedule has as many
            peers as the replaced schedule.
        arrange: Function that makes the special schedule from the replaced schedule without faults.
    """

    name: str
    weight: float
    least: int
    most: int
    arrange: Callable[[FaultSampler, Schedule], Schedule]

    def make(self, drawn: Schedule, **changes: Any) -> Schedule:
        n = min(max(drawn.peers, self.least), self.most)
        replaced = replace(drawn, peers=n, faults=(), **changes)
        return self.arrange(FaultSampler(replaced, self.name), replaced)


def draw_scenario(
    drawn: Schedule, name: str, share: float, scenarios: Sequence[Scenario], **changes: Any
) -> Schedule:
    """Return the schedule ``drawn``, or, for a ``share`` of all seeds, one of the scenarios in
    place of it.

    Args:
        name: Name of the random generator, which makes the choice independent of others.
        changes: Fields of the replaced schedule that are changed before a scenario is made from it.
    """
    lot = Random(f"schedule/{drawn.seed}/{name}")
    if lot.random() >= share:
        return drawn
    weights = [scenario.weight for scenario in scenarios]
    return lot.choices(scenarios, weights)[0].make(drawn, **changes)
