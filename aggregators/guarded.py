"""Default rule of a run without f: the mean of the updates, after clipping of unusually long
updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .base import Rule, Updates, Verdict, plain_bound, require, within_reach
from .gram import OUTLYING_MAX
from .kernels import Rows
from .means import mean, mean_of_rows
from .numbers import whole

LONGER = 3.0
"""Multiple of the usual length beyond which an update is clipped."""


class LengthRule(Rule):
    """Rule that clips unusually long updates, and then averages all updates."""

    whole_vector = False
    from_rows = staticmethod(mean_of_rows)
    """Function for a round in which no update is clipped. ``find_usual`` and ``weigh`` show whether
    that is so."""

    def measure(self, updates: Updates, start: int, **options: Any) -> Tensor:
        """Return the outlyingness of ``updates[start:]``. The other updates determine the usual
        length."""
        lengths = measure_lengths(within_reach(Rows.of(updates), self.name).block())
        f, usual = options.get("f", 0), options.get("usual", 0.0)
        _, typical = self.find_usual(lengths[:start], f, usual)
        return torch.tensor(self.weigh(lengths[start:], typical)[1], dtype=torch.float64)

    def find_usual(self, lengths: Sequence[float], f: int, usual: float) -> tuple[float, float]:
        """Return the usual length of an update in this round, and the larger of it and ``usual``,
        the usual length in recent rounds."""
        n, positive = len(lengths), sorted([length for length in lengths if length > 0.0])
        # Of three or more updates, one may be broken even if f is 0. Of two updates, nothing shows
        # which one is broken.
        beyond = max(1, f, n // 4) if n > 2 else 0
        length = positive[max(0, len(positive) - 1 - beyond)] if positive else 0.0
        return length, max(length, usual)

    def weigh(self, lengths: Sequence[float], typical: float) -> tuple[list[float], list[float]]:
        """Return the clipping factor and the outlyingness of each update, from the lengths."""
        far = [length > LONGER * typical for length in lengths]
        pairs = list(zip(lengths, far, strict=True))
        factors = [typical / length if out else 1.0 for length, out in pairs]
        apart = [length / typical if typical else OUTLYING_MAX for length in lengths]
        return factors, [
            min(each, OUTLYING_MAX) if out else 1.0 for each, out in zip(apart, far, strict=True)
        ]


def measure_lengths(updates: Tensor) -> list[float]:
    """Return the Euclidean length of each row."""
    lengths: list[float] = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64).tolist()
    return lengths


def _guarded_mean(updates: Tensor, *, f: int = 0, usual: float = 0.0) -> Verdict:
    """Average the updates after clipping unusually long ones. If no peer is broken, this is the
    mean.

    The usual length of a round is that of its longest update after the longest quarter (at least f
    and at least one) is left out. The largest usual length of this round and recent rounds counts.
    An update more than three times as long is clipped to it, and stands out. A peer with updates
    that stand out repeatedly is quarantined. Two updates are averaged unchanged.

    It tolerates crashes, NaN, flipped bits and exploding updates. It is no defence against
    adversaries: updates of usual length may have any direction.

    Args:
        updates: ``(n, d)``, one row per peer.
        f: Broken peers to tolerate.
        usual: The largest ``length`` in recent verdicts; 0.0 if there are none.
    Returns: ``(d,)``; the verdict's ``length`` is the usual length of this round.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates.
    Source: norm clipping, as for gradients (Pascanu et al. 2013, arXiv:1211.5063), with a bound
        from the lengths of most updates.
    """
    f = whole("guarded_mean", "f", f)
    require(updates, "guarded_mean", f, plain_bound(f))
    updates = within_reach(Rows.of(updates), "guarded_mean").block()
    lengths = measure_lengths(updates)
    length, typical = guarded_mean.find_usual(lengths, f, usual)
    factors, outlyingness = guarded_mean.weigh(lengths, typical)
    given = torch.tensor(factors, dtype=torch.float64)
    if min(factors) == 1.0:
        aggregate = mean(updates)
    else:
        scaled = updates.to(torch.float64) * given.to(updates.device)[:, None]
        aggregate = scaled.mean(dim=0).to(updates.dtype)
    far_out = torch.tensor(outlyingness, dtype=torch.float64)
    return Verdict(aggregate, given / given.sum(), far_out, length=length)


guarded_mean = LengthRule(_guarded_mean, name="guarded_mean", translation=False, robust="bounded")
guarded_mean.__name__ = guarded_mean.__qualname__ = "guarded_mean"  # type: ignore[attr-defined]
guarded_mean.absolute = frozenset({"usual"})
