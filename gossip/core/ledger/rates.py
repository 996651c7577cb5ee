"""Optimizer settings with which all peers apply a round.

A scheduler counts only the steps of its own peer. So the learning rates of two peers differ after
one of them has missed a round, or if a scheduler depends on the local loss (ReduceLROnPlateau).
With different rates, equal aggregates would lead to different replicas. The same applies to all
other settings of a parameter group. Therefore each update contains the settings of its peer as
float values, and the commit contains the settings that all peers use for the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import isfinite
from statistics import median_low

from gossip.core.settings import RATES_MAX


def are_sound(rates: tuple[float, ...]) -> bool:
    """Whether there are at most ``RATES_MAX`` values, and all values are finite."""
    return len(rates) <= RATES_MAX and all(map(isfinite, rates))


def agree(sent: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the settings for all peers, from the settings that each peer has sent.

    The result has the lower median of each setting, which is always the value of some peer. Lists
    that do not have the most frequent length are ignored.
    """
    sound = [rates for rates in sent if rates and are_sound(rates)]
    if not sound:
        return ()
    count = max(Counter(map(len, sound)).items(), key=lambda item: (item[1], -item[0]))[0]
    alike = [rates for rates in sound if len(rates) == count]
    if alike.count(alike[0]) == len(alike):
        return alike[0]
    return tuple([median_low(column) for column in zip(*alike, strict=True)])
