"""Pre-aggregations: what is done to the updates before a rule sees them."""

from __future__ import annotations

import numpy as np

from .composing import pre_aggregation
from .gram import FloatArray, Gram, ascending


@pre_aggregation
def nnm(gram: Gram, *, f: int) -> FloatArray:
    """Nearest-neighbour mixing: each update becomes the mean of its n - f nearest, itself included.

    Tolerates f < n/2. A rule with kappa has kappa' <= 8f / (n - f) (kappa + 1) after it, which is the best order there is; the
    most effective thing to put before any rule where data differ from peer to peer.

    Args:
        gram: Of the updates.
        f: Byzantine peers to tolerate.
    Returns: n rows. Of equally near updates the earlier ones are taken, an update itself always.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates.
    Source: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan 2023, "Fixing by Mixing", arXiv:2302.01772.
    """
    squares = gram.squared_distances()
    np.fill_diagonal(squares, -1.0)
    count = gram.n - f
    matrix = np.zeros((gram.n, gram.n))
    for row, apart in enumerate(squares):
        matrix[row, ascending(apart)[:count]] = 1.0 / count
    return matrix
