"""Test whether the updates of peers differ by more than chance, as with different data on the
peers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import sqrt
from statistics import median
from typing import Any

from gossip.core.messages import ROUND_MAX
from gossip.core.settings import SPREAD_EVERY, UNEQUAL, UNEQUAL_OFTEN, UNEQUAL_SHARE

from .unpacking import are_counts


def beyond_chance(groups: Sequence[Sequence[float]], f: int) -> float | None:
    """Return by how many standard deviations the outlying peers are the same in all measurements.

    With equal data the ranks of the peers in a round are random. With different data the same peers
    have high ranks in most rounds. The statistic is Friedman's: in each round peers are ranked by
    outlyingness, and their sums of ranks are compared. By chance it is about k - 1 for k peers,
    with the variance 2 (k - 1). Ranks bound the influence of a single extreme round. The f peers
    with the highest medians and the f with the lowest are left out, because both groups may contain
    Byzantine peers.

    All sums are integers, so every machine gets the same result.

    Args:
        groups: Outlyingness of the updates of each peer, round by round; all of one length.
        f: Byzantine peers to tolerate; at least one is left out at each end.
    Returns: None with fewer than two remaining peers or fewer than two rounds.
    Source: Friedman 1937, "The use of ranks to avoid the assumption of normality".
    """
    out = max(1, f)
    middle = sorted(groups, key=median)[out : max(out, len(groups) - out)]
    k, rounds = len(middle), min([len(group) for group in middle], default=0)
    if k < 2 or rounds < 2:
        return None
    sums = [0] * k  # of twice the ranks, from 0
    for at in range(rounds):
        row = [group[at] for group in middle]
        ranked = sorted(row)
        for peer, far in enumerate(row):  # the number of values below it, and up to it
            sums[peer] += bisect_left(ranked, far) + bisect_right(ranked, far) - 1
    apart = sum([(total - rounds * (k - 1)) * (total - rounds * (k - 1)) for total in sums])
    statistic = 3 * apart / (rounds * k * (k + 1))
    return (statistic - (k - 1)) / sqrt(2 * (k - 1))


class SpreadMonitor:
    """Repeated measurements of whether the data of peers differ.

    Attributes:
        beyond_chance: Result for the last round; None if it was not measured.
    """

    def __init__(self, f: int) -> None:
        self.f = f
        self.beyond_chance: float | None = None
        self.counts = 0, 0, 0
        """Measurements so far, unequal ones among them, and rounds since the last one."""

    @property
    def is_unequal(self) -> bool:
        """Whether the data count as different. Data stay different after a model has converged,
        although the spread no longer shows the difference."""
        windows, unequal, _ = self.counts
        return unequal >= UNEQUAL_OFTEN or unequal * UNEQUAL_SHARE > windows

    def is_due(self) -> bool:
        """Count a round. Return whether to measure after it."""
        windows, unequal, since = self.counts
        self.counts, self.beyond_chance = (windows, unequal, since + 1), None
        return since + 1 >= SPREAD_EVERY

    def measure(self, groups: Sequence[Sequence[float]]) -> None:
        """Measure whether the same peers were outlying by more than chance. ``groups``:
        outlyingness of the recent updates of each peer, oldest first."""
        windows, unequal, _ = self.counts
        known = [group for group in groups if len(group) >= SPREAD_EVERY]
        length = min([len(group) for group in known], default=0)
        self.beyond_chance = beyond_chance([group[-length:] for group in known], self.f)
        beyond = self.beyond_chance
        if beyond is not None:
            windows, unequal = windows + 1, unequal + (beyond > UNEQUAL)
        self.counts = windows, unequal, 0

    def unpack(self, packed: Sequence[Any]) -> None:
        """Load ``counts`` of another peer. Raises ``ValueError``, and changes nothing, if they have
        another form."""
        windows, unequal, since = packed
        if not are_counts(packed, most=ROUND_MAX):
            raise ValueError("trust: counts of measurements must be non-negative integers")
        self.counts = windows, unequal, since
