"""The mean: what everybody uses, and what one liar breaks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .arithmetic import working_dtype
from .base import Verdict, require, rule


@rule(at_least=lambda f: 1, coordinatewise=True, discerning=False)
def mean(updates: Tensor, *, f: int = 0) -> Verdict:
    """Average the updates. Tolerates crashes, not lies, whatever f is.

    Args:
        updates: ``(n, d)``, one row per peer.
        f: Taken as other rules take it, and of no effect.
    Returns: ``(d,)``; every weight 1/n and every outlyingness 1: it is evidence against nobody.
    Raises:
        TooFewUpdates: There is no update at all.
        AggregationError: f is no number of peers.
    """
    require(updates, "mean", f, at_least=1)
    n = len(updates)
    aggregate = updates.mean(dim=0, dtype=working_dtype(updates))
    if not math.isfinite(aggregate.sum().item()):
        # The sum left the range of its dtype; the mean itself never does.
        aggregate = (updates.to(torch.float64) / n).sum(dim=0)
    if aggregate.dtype != updates.dtype:
        aggregate = aggregate.to(updates.dtype)
    return Verdict(
        aggregate,
        torch.full((n,), 1.0 / n, dtype=torch.float64),
        torch.ones(n, dtype=torch.float64),
    )


@mean.of_rows
def mean_of_rows(rows: Sequence[NDArray[np.float32]], out: NDArray[np.float32]) -> bool:
    """The same from the updates where they lie: a quarter of the time for 4 rows of 69 KB that are
    not in the cache.

    Args:
        rows: ``(d,)`` each, in order; at least one.
        out: ``(d,)``, where the mean goes.
    Returns: False when the sum left the range of float32.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if len(rows) > 1:
            np.add(rows[0], rows[1], out=out)
        else:
            np.copyto(out, rows[0])
        for row in rows[2:]:
            np.add(out, row, out=out)
        np.divide(out, np.float32(len(rows)), out=out)
        squares = np.dot(out, out)  # finite only if all are: one pass, and no memory
    return bool(np.isfinite(squares)) or bool(np.isfinite(out).all())
