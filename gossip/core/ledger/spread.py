"""Test whether the updates of the peers differ by more than chance. This indicates that the data of
the peers differ."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import sqrt
from statistics import median

from gossip.core.settings import SPREAD_EVERY, UNEQUAL, UNEQUAL_OFTEN, UNEQUAL_SHARE


def beyond_chance(groups: Sequence[Sequence[float]], f: int) -> float | None:
    """Return the excess of the spread over chance, in standard deviations.

    With equal data, the ranks of the peers in a round are random. With different data, the same
    peers have high ranks in most rounds. The statistic is Friedman's: the peers are ranked by
    outlyingness in each round, and their sums of ranks are compared. By chance, the statistic is
    about k - 1 for k peers, with a variance of 2 (k - 1). Ranks limit the influence of a single
    extreme round. The f peers with the highest medians and the f peers with the lowest medians are
    excluded, because both groups may contain Byzantine peers.

    All sums are integers, so every machine gets the same result.

    Args:
        groups: For each peer, the outlyingness of its updates in the same rounds, in order. All
            sequences have the same length.
        f: Byzantine peers to tolerate. At least one peer is excluded at each end.
    Returns: None if fewer than two peers remain, or with fewer than two rounds.
    Source: Friedman 1937, "The use of ranks to avoid the assumption of normality".
    """
    out = max(1, f)
    middle = sorted(groups, key=median)[out : max(out, len(groups) - out)]
    k, rounds = len(middle), min([len(group) for group in middle], default=0)
    if k < 2 or rounds < 2:
        return None
    sums = [0] * k  # sums of twice the ranks; ranks begin with 0
    for at in range(rounds):
        row = [group[at] for group in middle]
        ranked = sorted(row)
        # number of smaller values, plus number of values that are not larger
        for peer, far in enumerate(row):
            sums[peer] += bisect_left(ranked, far) + bisect_right(ranked, far) - 1
    apart = sum([(total - rounds * (k - 1)) * (total - rounds * (k - 1)) for total in sums])
    statistic = 3 * apart / (rounds * k * (k + 1))
    return (statistic - (k - 1)) / sqrt(2 * (k - 1))


class SpreadMonitor:
    """Repeated measurements of whether the data of the peers differ.

    Attributes:
        beyond_chance: Result of the measurement after the last round; None if no measurement was
            due.
    """

    def __init__(self, f: int) -> None:
        self.f = f
        self.beyond_chance: float | None = None
        self.counts = 0, 0, 0
        """Number of measurements, number of unequal measurements, and number of rounds since the
        last measurement."""

    @property
    def is_unequal(self) -> bool:
        """Whether the data count as different. The result stays valid after a model has converged:
        the data still differ, although the spread of the updates no longer shows the difference."""
        windows, unequal, _ = self.counts
        return unequal >= UNEQUAL_OFTEN or unequal * UNEQUAL_SHARE > windows

    def is_due(self) -> bool:
        """Count a round. Return whether a measurement is due after this round."""
        windows, unequal, since = self.counts
        self.counts, self.beyond_chance = (windows, unequal, since + 1), None
        return since + 1 >= SPREAD_EVERY

    def measure(self, groups: Sequence[Sequence[float]]) -> None:
        """Measure whether the same peers are outlying more often than by chance. ``groups``: for
        each peer, the outlyingness of its recent updates, oldest first."""
        windows, unequal, _ = self.counts
        known = [group for group in groups if len(group) >= SPREAD_EVERY]
        length = min([len(group) for group in known], default=0)
        self.beyond_chance = beyond_chance([group[-length:] for group in known], self.f)
        beyond = self.beyond_chance
        if beyond is not None:
            windows, unequal = windows + 1, unequal + (beyond > UNEQUAL)
        self.counts = windows, unequal, 0
