"""Test whether the updates of peers differ by more than chance, as with different data on the
peers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import sqrt
from statistics import median


def beyond_chance(groups: Sequence[Sequence[float]], f: int) -> float | None:
    """Return by how many standard deviations the same peers are the outlying ones.

    With equal data the ranks of the peers in a round are random. With different data the same peers
    have high ranks in most rounds. The statistic is Friedman's: in each round peers are ranked by
    outlyingness, and their sums of ranks are compared. By chance it is about k - 1 for k peers,
    with the variance 2 (k - 1). Ranks bound the influence of a single extreme round. The f peers
    with the highest medians and the f with the lowest are left out, as Byzantine peers may be among
    either.

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
        for peer, far in enumerate(row):  # how many are below it, and how many up to it
            sums[peer] += bisect_left(ranked, far) + bisect_right(ranked, far) - 1
    apart = sum([(total - rounds * (k - 1)) * (total - rounds * (k - 1)) for total in sums])
    statistic = 3 * apart / (rounds * k * (k + 1))
    return (statistic - (k - 1)) / sqrt(2 * (k - 1))
