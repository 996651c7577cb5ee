"""Scorers: rules that use the loss to find updates that reduce it. The judge, which evaluates the
loss on its own samples, must be honest; an honest majority is not needed.

The outlyingness of an update is the shortfall of its score: 1 + 1.5 (m - score) / u, at least 1.
Here m is the median score of the kept updates, and u is the larger of |m| and five times the median
deviation of these scores from m. If u is |m|, a zero update (score 0) is at 2.5, and the opposite
of a typical update at 4 or more. Honest updates are seldom above 2. Outlyingness does not depend on
the unit of the loss.
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
"""Norm to which accepted updates are rescaled: that of the judge's gradient, or the typical norm of
the updates."""


def zeno_bound(f: int, b: int | None = None) -> int:
    """Return b + 1, where b is the number of updates that ``zeno`` leaves out."""
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
        evaluate: ``evaluate(step)`` returns the loss at x - step, for a tensor ``step`` ``(d,)``.
            All calls use the same mini-batch of the judge, sampled after the updates arrived. The
            first call has a zero step.
        learning_rate: lr, > 0.
        b: Number of updates to leave out; at least f, which is the default.
        rho_over_lr: rho / lr, the penalty on the norm. The best value in our trials was 1/20 with
            norm=sum; values from 0 to 1/20 hardly differ.
        norm: Whether |g|^2 is the sum of the squares (paper) or their mean (authors' code).
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
        # After an extreme step, the loss may be infinite or NaN.
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
    """The mean of the updates that agree with a validation gradient v, each rescaled to the norm of
    v or to the typical norm.

    Tolerates any f < n if the judge is honest. The rescaled update is g' = |v| / |g| g. Its
    first-order score is lr <v, g'> - rho |g'|^2; it is accepted if the score is at least
    -lr epsilon. As in the paper, the penalty uses the rescaled norm; the authors' code uses the
    norm before rescaling. So an update is accepted if its cosine to v is at least
    rho/lr - epsilon / |v|^2.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate. f + 1 updates are needed; ``lengths`` also uses f.
        gradient: ``(d,)``, the judge's own v on fresh samples; or a function that returns it.
        learning_rate: lr, > 0; scales score and threshold equally.
        rho_over_lr: rho / lr: 0.001 / 0.1 in the authors' scripts.
        epsilon: Permitted increase of the loss, divided by lr, for a step lr g' with the norm of
            lr v. Its unit is that of |v|^2, with either value of ``lengths``. If it is above 0, all
            updates are accepted once |v|^2 is below epsilon / (1 + rho/lr). With lengths=updates
            these updates do not become shorter when v does.
        lengths: "gradient" (paper): accepted updates are rescaled to the length of v, so they must
            be gradients, like v. "updates": they are rescaled to the typical length, which is the
            median norm of all updates, or the (n - f)-th smallest if that is smaller. Use this
            value for updates that are not gradients, such as the model differences of local steps.
            An update becomes at most n times as long. Scores and outlyingness do not depend on
            ``lengths``.
    Returns: zeros and zero weights if no update is accepted, because no step is better than a
        rejected step. Zeros if v is zero. A zero update has no direction and is not accepted. The
        aggregate is no longer than v. With lengths=updates it is no longer than the longest of
        n - f honest updates, because the (n - f)-th smallest norm cannot be larger. Outlyingness is
        the shortfall of the score, or the norm divided by the median norm if that is larger. The
        norm is included because rescaling hides an attack by size alone.
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
    typical norm, and weighted by max(0, cosine to v).

    Tolerates any f < n if the judge is honest. Needs the gradient.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate. f + 1 updates are needed; ``lengths`` also uses f.
        gradient: ``(d,)``, the judge's own v; or a function that returns it.
        lengths: "gradient" (paper) if updates are gradients, or "updates", as for ``zeno_pp``. With
            either value an update becomes at most n times as long.
    Returns: zeros and zero weights if no update has a positive cosine. The norm is bounded as in
        ``zeno_pp``. Outlyingness is that of ``zeno_pp``, with the cosine as the score.
    Raises:
        TooFewUpdates: Fewer than f + 1 updates.
        AggregationError: ``gradient`` is not finite or of another shape; ``lengths`` is invalid.
    Source: Cao, Fang, Liu, Gong 2021, "FLTrust: Byzantine-robust Federated Learning via Trust
        Bootstrapping", arXiv:2012.13995.
    """
    size, norms, cosines = _directions(gram)
    trust = np.maximum(cosines, 0.0)
    # A server of a shard rejects weights that add up to more than n. Without this limit, a tiny
    # update of one attacker could cause such weights.
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
    """The mean of the updates, clipped to the typical norm and weighted by max(0, cosine to v)^2,
    and of f copies of the judge's gradient v, rescaled to that norm.

    Tolerates any f < n if the judge is honest. Meant for peers with different data: v is then much
    shorter than their updates, but by default ``fltrust`` and ``zeno_pp`` make every step as long
    as v. Here v determines only the direction. The typical norm is the median norm of the updates,
    or the (n - f)-th smallest if that is smaller, so it is at most that of an honest update. So v
    outweighs attackers with a barely positive cosine to it. v becomes at most n times as long.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate.
        gradient: ``(d,)``, the judge's own v; or a function that returns it.
    Returns: zeros and zero weights if no update has a positive cosine. The verdict's weights do not
        include v. Outlyingness is the shortfall of the cosine, or a tenth of (norm / median norm)
        if that is larger. Only a tenth counts, because a peer with samples that the model does not
        fit yet sends updates several times as long as others', and these are clipped.
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
    """Return the norm of the judge's gradient, the norms of the updates, and the cosines between
    updates and gradient. A cosine is 0 if one of the two vectors is zero."""
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
    if size == 0:  # for a zero gradient, zeno_pp would accept all updates
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
    """Return the weights for ``_rescaled``, and the share of each update. The rest of the weight,
    up to a sum of 1, is on the origin."""
    total = float(trust.sum())
    shares = trust / total if total > 0 else np.zeros(gram.n)
    factors = np.divide(shares * sizes, norms, out=np.zeros(gram.n), where=norms > 0)
    return gram.full(factors) + (1.0 - float(factors.sum())) * gram.only("origin"), shares


def _loudness(norms: FloatArray) -> FloatArray:
    return in_typical(norms, float(np.finfo(np.float32).tiny))


def _kept(trust: FloatArray) -> frozenset[int]:
    return frozenset(int(row) for row in np.flatnonzero(trust > 0))


def _shortfall(scores: Sequence[float], kept: frozenset[int], floor: float) -> Tensor:
    """Return ``(n,)``, the outlyingness from scores (formula at the top of this file). All ones if
    no update was kept, because then there is no typical score."""
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
