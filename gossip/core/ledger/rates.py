"""With which learning rates a round is stepped. A scheduler counts its own peer's steps: after a
round that went by without a peer, or by a loss of its own (ReduceLROnPlateau), two peers' rates
differ, and equal aggregates would make different replicas. So everybody says with its update what
it would step with, and the commit says what all step with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf
from statistics import median_low

RATES_MAX = 256


def are_sound(rates: tuple[float, ...]) -> bool:
    """Whether somebody can step with them: with a negative one it would climb."""
    return len(rates) <= RATES_MAX and all(0.0 <= rate < inf for rate in rates)


def agree(told: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    """Place by place the lower median of those that tell as many as most do, so it is something
    that somebody told."""
    said = [rates for rates in told if rates and are_sound(rates)]
    if not said:
        return ()
    count = max(Counter(map(len, said)).items(), key=lambda item: (item[1], -item[0]))[0]
    alike = [rates for rates in said if len(rates) == count]
    if alike.count(alike[0]) == len(alike):
        return alike[0]
    return tuple([median_low(column) for column in zip(*alike, strict=True)])
