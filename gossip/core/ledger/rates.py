"""Optimizer settings with which all peers apply a round.

A scheduler counts only the steps of its own peer. So the learning rates of two peers differ after
one of them has missed a round, or if a scheduler follows the peer's own loss (ReduceLROnPlateau).
Equal aggregates would then lead to different replicas. The same applies to all other settings of a
parameter group. Therefore each update carries the settings of its peer as numbers, and the commit
carries the settings that all peers use for the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import isfinite
from statistics import median_low

from gossip.core.settings import RATES_MAX


def are_sound(rates: tuple[float, ...]) -> bool:
    """Whether all numbers are finite, and there are no more than ``RATES_MAX``."""
    return len(rates) <= RATES_MAX and all(map(isfinite, rates))


def agree(sent: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the settings for all peers, from the settings that each peer has sent.

    Each setting is the lower median, so it is the value of some peer. Only lists of the most
    frequent length are used.
    """
    sound = [rates for rates in sent if rates and are_sound(rates)]
    if not sound:
        return ()
    count = max(Counter(map(len, sound)).items(), key=lambda item: (item[1], -item[0]))[0]
    alike = [rates for rates in sound if len(rates) == count]
    if alike.count(alike[0]) == len(alike):
        return alike[0]
    return tuple([median_low(column) for column in zip(*alike, strict=True)])
