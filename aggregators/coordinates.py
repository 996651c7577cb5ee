"""Rules that treat each coordinate alone: the median and the trimmed mean."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .arithmetic import blocks, working_dtype
from .base import Verdict, require, rule, standing_out
from .sorting import ranked


@rule(coordinatewise=True)
def median(updates: Tensor, *, f: int = 0) -> Verdict:
    """The median of each coordinate; for even n the midpoint of the two middle values (Yin et al. 2018).

    Args:
        updates: ``(n, d)``, one row per peer.
        f: Byzantine peers to tolerate; only says how many updates are needed.
    Returns: ``(d,)``. An update survives in a coordinate where it is (one of) the middle.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates.
    """
    require(updates, "median", f, at_least=2 * f + 1)
    return _between(updates, (len(updates) - 1) // 2)


@rule(coordinatewise=True)
def trimmed_mean(updates: Tensor, *, f: int) -> Verdict:
    """Drop the f largest and f smallest values of each coordinate, average the rest (Yin et al. 2018, arXiv:1803.01498).

    Args:
        updates: ``(n, d)``, one row per peer.
        f: Byzantine peers to tolerate.
    Returns: ``(d,)``. An update survives in a coordinate where it was not dropped; values that tie with a kept one count as kept.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates.
    """
    require(updates, "trimmed_mean", f, at_least=2 * f + 1)
    return _between(updates, f)


def coordinate_median(updates: Tensor) -> Tensor:
    """``(d,)``: the median of each coordinate and nothing else; a reference that a minority cannot carry away."""
    first = (len(updates) - 1) // 2
    last = len(updates) - 1 - first
    parts = [_average(ranked(updates[:, columns], first, last)).to(updates.dtype) for columns in blocks(updates)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _between(updates: Tensor, trim: int) -> Verdict:
    """The mean of what is left of each coordinate without its ``trim`` least and ``trim`` greatest values."""
    n = len(updates)
    survived = torch.zeros(n, dtype=torch.float64)
    parts = []
    for columns in blocks(updates):
        block = updates[:, columns]
        kept = ranked(block, trim, n - 1 - trim)
        # A value survived where clamping it between the least and the greatest kept one leaves it alone. As floats:
        # torch adds up booleans five times slower.
        inside = torch.clamp(block, kept[0], kept[-1])
        torch.eq(inside, block, out=inside)
        survived += inside.sum(dim=1, dtype=torch.float32).to("cpu", torch.float64)
        parts.append(_average(kept).to(updates.dtype))
    aggregate = parts[0] if len(parts) == 1 else torch.cat(parts)
    return Verdict(aggregate, survived / survived.sum(), standing_out(updates, aggregate))


def _average(rows: list[Tensor]) -> Tensor:
    """The mean of rows, at least in float32; finite when they are."""
    total = rows[0].to(working_dtype(rows[0]))
    if len(rows) == 1:
        return total
    total = total + rows[1]  # memory of its own from here on
    for row in rows[2:]:
        total += row
    total *= 1.0 / len(rows)
    if math.isfinite(float(total.sum())):
        return total
    return torch.stack([row.to(torch.float64) / len(rows) for row in rows]).sum(dim=0)
