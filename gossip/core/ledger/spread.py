"""Whether the updates of peers differ by more than chance, as those of peers with different data
do."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import sqrt
from statistics import median

UNEQUAL = 6.0
"""Standard deviations by which the statistic is beyond what chance gives."""


def beyond_chance(groups: Sequence[Sequence[float]], f: int) -> float | None:
    """By how many standard deviations the same peers are farther out again and again.

    With equal data it is chance who is how far out in a round. With different data the same peers
    are farther out in most. The measure is Friedman's: in each round peers are ranked, and their
    sums of ranks are compared. It is about k - 1 for k peers by chance, with the variance 2 (k -
    1). Ranks do not mind how far out a peer is, so that one absurd round is one of many. The f
    peers that are farthest out as a rule and the f nearest are left out: liars may be either.

    All sums are of whole numbers, so that every machine finds the same.

    Args:
        groups: Of each peer how far out its updates were, round by round; all of one length.
        f: Byzantine peers to tolerate; at least one is left out at each end.
    Returns: None with fewer than two peers left, or two rounds.
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
        for peer, far in enumerate(row):  # how many are below it, and how many up to it
            sums[peer] += bisect_left(ranked, far) + bisect_right(ranked, far) - 1
    apart = sum([(total - rounds * (k - 1)) * (total - rounds * (k - 1)) for total in sums])
    statistic = 3 * apart / (rounds * k * (k + 1))
    return (statistic - (k - 1)) / sqrt(2 * (k - 1))
