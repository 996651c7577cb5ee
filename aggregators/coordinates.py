"""Rules that aggregate each coordinate separately. All tolerate f < n/2, and may be called with any
columns of the updates."""

from __future__ import annotations

from .base import coordinate_rule
from .columns import Columns, Kept
from .kernels import middle


@coordinate_rule()
def median(columns: Columns, *, f: int = 0) -> Kept:
    """The median of each coordinate; for even n the midpoint of the two middle values.

    Tolerates f < n/2; (f, kappa)-robust with kappa <= 4 (1 + f / (n - 2f))^2. An update survives in
    a coordinate if its value there is the middle value, or one of the two.

    Args:
        columns: Columns of the updates.
        f: Byzantine peers to tolerate; only determines how many updates are needed.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates.
    Source: Yin, Chen, Ramchandran, Bartlett 2018, arXiv:1803.01498.
    """
    return columns.between(*middle(columns.n))


@coordinate_rule()
def trimmed_mean(columns: Columns, *, f: int) -> Kept:
    """Drop the f largest and f smallest values of each coordinate, average the rest.

    Tolerates f < n/2; kappa <= 6f / (n - 2f) (1 + f / (n - 2f)). An update survives in a coordinate
    if its value there was kept, or equals a kept value.

    Args:
        columns: Columns of the updates.
        f: Byzantine peers to tolerate.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates.
    Source: Yin, Chen, Ramchandran, Bartlett 2018, arXiv:1803.01498.
    """
    return columns.between(f, columns.n - 1 - f)


@coordinate_rule()
def meamed(columns: Columns, *, f: int) -> Kept:
    """The mean of the n - f values nearest to the median, in each coordinate.

    Tolerates f < n/2. If two values are equally near, the smaller value is used.

    Args:
        columns: Columns of the updates.
        f: Byzantine peers to tolerate.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates.
    Source: Xie, Koyejo, Gupta 2018, "Generalized Byzantine-tolerant SGD", arXiv:1802.10116.
    """
    return columns.nearest(columns.n - f, *middle(columns.n))


@coordinate_rule()
def phocas(columns: Columns, *, f: int) -> Kept:
    """The mean of the n - f values nearest to the trimmed mean, in each coordinate.

    Tolerates f < n/2. If two values are equally near, the smaller value is used.

    Args:
        columns: Columns of the updates.
        f: Byzantine peers to tolerate.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates.
    Source: Xie, Koyejo, Gupta 2018, "Phocas: dimensional Byzantine-resilient SGD",
        arXiv:1805.09682.
    """
    return columns.nearest(columns.n - f, f, columns.n - 1 - f)


@coordinate_rule(translation=False, scale=False, robust=False)
def sign_majority(columns: Columns, *, f: int = 0) -> Kept:
    """The sign that most updates have in a coordinate: -1, 0 or 1. Sizes do not count. Zeros
    abstain.

    Tolerates f < n/2 in the sense that an attacker has one vote: a sign is right if the honest
    updates that agree outnumber all others. The result does not have the length of an update;
    choose the learning rate accordingly.

    Args:
        columns: Columns of the updates.
        f: Byzantine peers to tolerate; only determines how many updates are needed.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates.
    Source: Bernstein, Zhao, Azizzadenesheli, Anandkumar 2019, "signSGD with majority vote",
        arXiv:1810.05291.
    """
    return columns.majority()
