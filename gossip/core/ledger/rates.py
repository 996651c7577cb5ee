"""The optimizer settings with which all peers apply a round.

A scheduler counts the steps of its own peer. So the learning rates of two peers differ after a
round that one of them has missed, or where a scheduler follows the peer's own loss
(ReduceLROnPlateau), and equal aggregates would then make different replicas. The same holds for
every other setting of a parameter group. Therefore an update carries the settings that its peer
would step with, as numbers, and the commit carries those that all peers step with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import isfinite
from statistics import median_low

RATES_MAX = 1024


def are_sound(rates: tuple[float, ...]) -> bool:
    """Whether these can be settings of an optimizer."""
    return len(rates) <= RATES_MAX and all(map(isfinite, rates))


def agree(told: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the settings for all peers, from those that each peer has sent.

    Each is the lower median, so it is one that a peer has sent. Lists of another length than the
    most frequent one do not count."""
    said = [rates for rates in told if rates and are_sound(rates)]
    if not said:
        return ()
    count = max(Counter(map(len, said)).items(), key=lambda item: (item[1], -item[0]))[0]
    alike = [rates for rates in said if len(rates) == count]
    if alike.count(alike[0]) == len(alike):
        return alike[0]
    return tuple([median_low(column) for column in zip(*alike, strict=True)])
