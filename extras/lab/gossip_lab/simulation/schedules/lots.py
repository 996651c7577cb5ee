"""Random draws for a part of a schedule: numbers that do not depend on what else is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .schedule import PEERS_MAX

BEGIN_S = 1.0  # the swarm has gathered by then


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

    def when(self, least_s: float = BEGIN_S) -> float:
        return self.ms(least_s, max(least_s, self.active_s - 0.5))

    def ms(self, least_s: float, most_s: float) -> float:
        """Draw whole milliseconds, which look the same in a plan file, a message and a trace."""
        return round(self.random.uniform(least_s, most_s), 3)

    def long(self, least_s: float, most_s: float) -> float:
        """Draw a duration: short ones are as frequent as long ones."""
        stretched: float = least_s * (most_s / least_s) ** self.random.random()
        return round(stretched, 3)

    def few(self, most: int) -> int:
        return self.random.randint(1, most)
