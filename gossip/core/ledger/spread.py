"""Whether the updates of peers differ by more than chance, as those of peers with different data
do."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import fmean, median

from gossip.core.messages import Contribution, PeerId

ROUNDS = 20
"""Over which it is measured."""

UNEQUAL = 8.0
"""The ratio from which updates differ. Digits, 10 peers, f = 2, with liars and without: equal data
0.2 to 2.8; labels by Dirichlet(0.5) 2 to 40; by Dirichlet(0.1) 23 to 290."""

PEERS_MIN = 4
RATIO_MAX = 1e9


class UpdateSpread:
    """Measures how far out the rule finds each peer's updates, and compares peers.

    With equal data it is chance who is how far out in a round. With different data the same peers
    are farther out again and again. The measure is the F ratio of a one-way analysis of variance:
    the variance between peers, over that within the rounds of a peer; about 1 by chance. The f
    peers that are farthest out as a rule are left out.
    """

    def __init__(self, f: int) -> None:
        self._f = max(1, f)
        self._far: dict[PeerId, deque[float]] = {}
        self._rounds = 0

    def observe(self, contributors: Iterable[Contribution]) -> float | None:
        """Learns from one round.

        Returns: The ratio of the last ``ROUNDS`` rounds, each time so many have gone by; None
            otherwise, and where the rule tells no updates apart.
        """
        for contribution in contributors:
            if contribution.peer not in self._far:
                self._far[contribution.peer] = deque(maxlen=ROUNDS)
            self._far[contribution.peer].append(contribution.outlyingness)
        self._rounds += 1
        if self._rounds % ROUNDS:
            return None
        measured = [list(far) for far in self._far.values() if len(far) == ROUNDS]
        self._far.clear()
        nearest = sorted(measured, key=median)[: max(0, len(measured) - self._f)]
        return f_ratio(nearest) if len(nearest) + self._f >= PEERS_MIN else None


def f_ratio(groups: Sequence[Sequence[float]]) -> float | None:
    """The variance between groups of equal size over that within them, at most ``RATIO_MAX``; None
    without any variance within, or with fewer than two groups."""
    if len(groups) < 2 or len(groups[0]) < 2:
        return None
    means, size = [fmean(group) for group in groups], len(groups[0])
    middle = fmean(means)
    between = size * sum([(mean - middle) ** 2 for mean in means]) / (len(groups) - 1)
    within = sum(
        [(value - mean) ** 2 for group, mean in zip(groups, means, strict=True) for value in group]
    ) / (len(groups) * (size - 1))
    return min(RATIO_MAX, between / within) if within > 0.0 else None
