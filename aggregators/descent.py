"""Scorers: rules that use the loss to find updates that reduce it. They need no honest majority,
only an honest judge.

The outlyingness of a scorer is the shortfall of a score against the typical kept one: 1 + 1.5 (m -
score) / u, at least 1. Here m is the median of the kept scores, and u the larger of |m| and five
times their median deviation from m. So a zero update (score 0) is at 2.5, the opposite of a typical
one at 4 or more, and honest ones seldom above 2. It does not depend on the unit of the loss.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gossip.errors import AggregationError

from . import kernels
from .base import Verdict, check_rows, rule, within_reach
from .gram import OUTLYING_MAX, Decision, FloatArray, Gram, in_typical
from .gram_rules import gram_rule, typical
from .kernels import Rows
from .numbers import NOT_NEGATIVE, POSITIVE, number, whole

Lengths = Literal["gradient", "updates"]
"""Norm of a judged update: that of the judge's gradient, or the typical one of the updates."""


def zeno_bound(f: int, b: int | None = None) -> int:
    """Return the number of updates to leave out, plus one."""
    return (f if b is None else whole("zeno", "b", b)) + 1


@rule(at_least=zeno_bound, translation=False, scale=False, robust="bounded")
def zeno(
    updates: Rows,
    *,
    f: int,
    evaluate: Callable[[Tensor], float],
    learning_rate: float,
    b: int | None = None,
    rho_over_lr: float = 1 / 20,
    norm: Literal["sum", "mean"] = "sum",
) -> Verdict:
    """The mean of all updates except the b with the lowest stochastic descendant score f(x) - f(x -
    lr g) - rho |g|^2.

    Args:
        updates: ``(n, d)``, one row per peer; or n vectors, which are not stacked.
        f: Byzantine peers to tolerate.
        evaluate: ``evaluate(step)`` is the loss at x - step, ``step`` a ``(d,)`` tensor, on one
            fresh mini-batch of the judge: the same for all calls, and drawn after the updates
            arrived. Called with zeros first.
        learning_rate: lr, > 0.
        b: Number of updates to leave out; f by default, and never less than f.
        rho_over_lr: rho / lr, the penalty of size. 1/20 with the sum did best in our trials; 0 to
            1/20 hardly differ.
        norm: |g|^2 is the sum of the squares (paper) or their mean (the authors' code).
    Returns: ``(d,)``; zeros when no score is finite.
    An update is never averaged if its loss is not finite.
    Raises:
        TooFewUpdates: Fewer than b + 1 updates.
        AggregationError: The judge's own loss is not finite; an option is out of range.
    Source: Xie, Koyejo, Gupta 2019, "Zeno: Distributed SGD with Suspicion-based Fault-tolerance",
        arXiv:1805.10032.
    """
    left_out = f if b is None else whole("zeno", "b", b)
    if left_out < whole("zeno", "f", f):
        raise AggregationError(
            f"zeno leaves out b={left_out} updates, but f={f} of them may be Byzantine",
            "raise b, or lower f",
        )
    if norm not in ("sum", "mean"):
        raise AggregationError(f"zeno: norm is 'sum' or 'mean', not {norm!r}")
    rho_over_lr = number("zeno", "rho_over_lr", rho_over_lr, NOT_NEGATIVE)
    rows = within_reach(check_rows(updates, "zeno", f, at_least=left_out + 1), "zeno")
    learning_rate = number("zeno", "learning_rate", learning_rate, POSITIVE)
    n, d = rows.n, rows.d
    here = float(evaluate(torch.zeros_like(rows.row(0))))
    if not math.isfinite(here):
        raise AggregationError(
            f"zeno cannot rank updates: the judge's own loss is {here}", "lower the learning rate"
        )
    rho = learning_rate * rho_over_lr / (d if norm == "mean" else 1)
    scores = []
    for update, square in zip(
        rows.vectors, kernels.squared_distances_to(rows).tolist(), strict=True
    ):
        score = here - float(evaluate(learning_rate * update)) - rho * square
        # The loss of an extreme step may be any value.
        scores.append(score if math.isfinite(score) else -math.inf)
    best = sorted(range(n), key=lambda row: (-scores[row], row))[: n - left_out]
    kept = frozenset(row for row in best if math.isfinite(scores[row]))
    weights = [1.0 / len(kept) if row in kept else 0.0 for row in range(n)]
    outlyingness = _shortfall(scores, kept, floor=1e-6 * abs(here))
    return Verdict(
        kernels.weighted_sum(rows, weights),
        torch.tensor(weights, dtype=torch.float64),
        outlyingness,
    )


zeno.takes_rows = True


@gram_rule(
    at_least=lambda f: f + 1,
    points=("origin", "gradient"),
    about_origin=True,
    translation=False,
    scale=False,
    robust="bounded",
)
def zeno_pp(
    gram: Gram,
    *,
    f: int,
    learning_rate: float,
    rho_over_lr: float = 0.01,
    epsilon: float = 0.0,
    lengths: Lengths = "gradient",
) -> Decision:
    """The mean of the updates that agree with a validation gradient v, each rescaled to its norm or
    to the typical one.

    Tolerates any f < n, as long as the judge is honest. Rescaled g' = |v| / |g| g; first-order
    score lr <v, g'> - rho |g'|^2; accepted when it is at least -lr epsilon. The penalty is on the
    rescaled norm, as in the paper; the authors' code uses the norm before rescaling. So an update
    is accepted when its cosine to v is at least rho/lr - epsilon / |v|^2.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate: f + 1 updates are needed; also used by ``lengths``.
        gradient: ``(d,)``, the judge's own v on fresh samples; or a function that returns it.
        learning_rate: lr, > 0; scales score and threshold equally.
        rho_over_lr: rho / lr: 0.001 / 0.1 in the authors' scripts.
        epsilon: Permitted ascent, divided by lr, of a step lr g' with the norm of lr v. With both
            values of ``lengths`` it has the unit of |v|^2. Above 0, all updates are accepted once
            |v|^2 is below epsilon / (1 + rho/lr). With lengths=updates they keep their full length.
        lengths: "gradient" (paper): accepted updates are rescaled to the length of v, so they have
            to be gradients, like v. "updates": rescaled to the typical length of the updates, for
            updates of another length, such as the model differences of local steps. This is their
            median norm, or the (n - f)-th smallest if that is smaller. An update then becomes at
            most n times as long. Scores and outlyingness are the same.
    Returns: zeros, and all weights zero, when no update is accepted: no step is better than one
        that the judge rejects. Zeros when v is zero. A zero update has no direction and is not
        accepted. The aggregate is no longer than v. With lengths=updates it is no longer than the
        longest of n - f honest updates: the (n - f)-th smallest norm is not above that, for any f
        other updates. Outlyingness is the larger of the shortfall of the score and the norm over
        the median norm, because rescaling hides an attack by size alone.
    Raises:
        TooFewUpdates: Fewer than f + 1 updates.
        AggregationError: ``gradient`` is not finite or of another shape; an option is out of range.
    Source: Xie, Koyejo, Gupta 2020, "Zeno++: Robust Fully Asynchronous SGD", arXiv:1903.07020.
    """
    learning_rate = number("zeno_pp", "learning_rate", learning_rate, POSITIVE)
    rho_over_lr = number("zeno_pp", "rho_over_lr", rho_over_lr, NOT_NEGATIVE)
    epsilon = number("zeno_pp", "epsilon", epsilon)
    size, norms, cosines = _directions(gram)
    scores = [
        learning_rate * (size * size * cosine - rho_over_lr * size**2)
        for cosine in cosines.tolist()
    ]
    accepted = [
        row
        for row, score in enumerate(scores)
        if score >= -learning_rate * epsilon and (norms[row] > 0 or size == 0)
    ]
    trust = np.zeros(gram.n)
    trust[accepted] = 1.0
    sizes = _sizes("zeno_pp", lengths, size, norms, f)
    return _rescaled(gram, trust, scores, sizes, norms, floor=1e-6 * learning_rate * size**2)


@gram_rule(
    at_least=lambda f: f + 1,
    points=("origin", "gradient"),
    about_origin=True,
    translation=False,
    scale=False,
    robust="bounded",
)
def fltrust(gram: Gram, *, f: int = 0, lengths: Lengths = "gradient") -> Decision:
    """The mean of the updates, each rescaled to the norm of the judge's gradient v or to the
    typical one, and weighted by max(0, cosine to v).

    Tolerates any f < n, as long as the judge is honest. Needs the gradient.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate: f + 1 updates are needed; also used by ``lengths``.
        gradient: ``(d,)``, the judge's own v; or a function that returns it.
        lengths: As for ``zeno_pp``: "gradient" (paper), where updates are gradients, or "updates".
            With both values an update becomes at most n times as long.
    Returns: zeros, and all weights zero, when no update has a positive cosine. The norm is bounded
        as in ``zeno_pp``. Outlyingness as there, by the cosine.
    Raises:
        TooFewUpdates: Fewer than f + 1 updates.
        AggregationError: ``gradient`` is not finite or of another shape; ``lengths`` is neither.
    Source: Cao, Fang, Liu, Gong 2021, "FLTrust: Byzantine-robust Federated Learning via Trust
        Bootstrapping", arXiv:2012.13995.
    """
    size, norms, cosines = _directions(gram)
    trust = np.maximum(cosines, 0.0)
    # Servers of shards reject weights that add up to more than n, which one attacker could cause.
    sizes = np.minimum(_sizes("fltrust", lengths, size, norms, f), gram.n * norms)
    return _rescaled(gram, trust, cosines.tolist(), sizes, norms, floor=1e-6)


@gram_rule(
    at_least=lambda f: f + 1,
    points=("origin", "gradient"),
    about_origin=True,
    translation=False,
    scale=False,
    robust="bounded",
)
def judged_clipping(gram: Gram, *, f: int) -> Decision:
    """The mean of the updates, clipped to the typical norm and weighted by max(0, cosine)^2 to the
    judge's gradient v, and of v at that norm, which counts as f updates.

    Tolerates any f < n, as long as the judge is honest. Made for unequal data: by default
    ``fltrust`` and ``zeno_pp`` make every step as long as v. If peers have different data, v is
    much shorter than their updates. Here v determines only the direction. The length comes from the
    updates: the median norm, or the (n - f)-th smallest if that is smaller, which is bounded by an
    honest update. So v outweighs attackers with a barely positive cosine to it. v becomes at most n
    times as long.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate.
        gradient: ``(d,)``, the judge's own v; or a function that returns it.
    Returns: zeros, and all weights zero, when no update has a positive cosine. Weights are relative
        to the other updates. Outlyingness is the shortfall of the cosine, or a tenth of the norm
        over the median norm. A peer with samples that the model does not fit yet has updates
        several times as long as others', and they are clipped.
    Raises:
        TooFewUpdates: Fewer than f + 1 updates.
        AggregationError: ``gradient`` is not finite or of another shape.
    Source: this project, after ``fltrust``.
    """
    size, norms, cosines = _directions(gram)
    radius, trust = typical(norms, f), np.maximum(cosines, 0.0) ** 2
    kept = _kept(trust)
    weights, shares = _resized(gram, trust, np.minimum(norms, radius), norms)
    if kept:
        voices = f / (len(kept) + f)
        stretched = min(radius / size, gram.n) * gram.only("gradient")
        vote = stretched + (1.0 - float(stretched.sum())) * gram.only("origin")
        weights = (1.0 - voices) * weights + voices * vote
    shortfalls = _shortfall(cosines.tolist(), kept, 1e-6).numpy()
    return Decision(weights, np.maximum(shortfalls, _loudness(norms) / 10), shares)


def _directions(gram: Gram) -> tuple[float, FloatArray, FloatArray]:
    """Return the norm of the judge's gradient, those of the updates, and their cosines to it; 0 if
    there is no direction."""
    size, norms = gram.length("gradient"), gram.norms()
    lengths = norms * size
    cosines = np.divide(gram.along("gradient"), lengths, out=np.zeros(gram.n), where=lengths > 0)
    return size, norms, np.clip(cosines, -1.0, 1.0)


def _sizes(
    name: str, lengths: Lengths, size: float, norms: FloatArray, f: int
) -> FloatArray | float:
    """Return the norms to which updates are rescaled. ``size`` is the norm of the judge's
    gradient. Raises AggregationError."""
    if lengths == "gradient":
        return size
    if lengths != "updates":
        raise AggregationError(f"{name}: lengths is 'gradient' or 'updates', not {lengths!r}")
    if size == 0:  # without a direction, zeno_pp would accept all updates
        return 0.0
    # The factor of a tiny update is limited to n.
    return np.minimum(typical(norms, f), len(norms) * norms)


def _rescaled(
    gram: Gram,
    trust: FloatArray,
    scores: Sequence[float],
    sizes: FloatArray | float,
    norms: FloatArray,
    floor: float,
) -> Decision:
    """Return the mean of the updates weighted by trust, each rescaled to its norm in ``sizes``."""
    weights, shares = _resized(gram, trust, sizes, norms)
    shortfalls = _shortfall(scores, _kept(trust), floor).numpy()
    return Decision(weights, np.maximum(shortfalls, _loudness(norms)), shares)


def _resized(
    gram: Gram, trust: FloatArray, sizes: FloatArray | float, norms: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the weights of ``_rescaled``, and the share of each update. The weight that remains is
    on the origin."""
    total = float(trust.sum())
    shares = trust / total if total > 0 else np.zeros(gram.n)
    factors = np.divide(shares * sizes, norms, out=np.zeros(gram.n), where=norms > 0)
    return gram.full(factors) + (1.0 - float(factors.sum())) * gram.only("origin"), shares


def _loudness(norms: FloatArray) -> FloatArray:
    return in_typical(norms, float(np.finfo(np.float32).tiny))


def _kept(trust: FloatArray) -> frozenset[int]:
    return frozenset(int(row) for row in np.flatnonzero(trust > 0))


def _shortfall(scores: Sequence[float], kept: frozenset[int], floor: float) -> Tensor:
    """Return ``(n,)`` outlyingness by score, see the top of this file. All ones if no update was
    kept, because there is no reference."""
    if not kept:
        return torch.ones(len(scores), dtype=torch.float64)
    good = [scores[row] for row in kept]
    typical = statistics.median(good)
    deviation = statistics.median([abs(score - typical) for score in good])
    unit = max(abs(typical), 5 * deviation, floor)
    if unit == 0.0:
        return torch.tensor(
            [OUTLYING_MAX if score < typical else 1.0 for score in scores], dtype=torch.float64
        )
    shortfalls = [min(OUTLYING_MAX, 1 + 1.5 * max(0.0, typical - score) / unit) for score in scores]
    return torch.tensor(shortfalls, dtype=torch.float64)
