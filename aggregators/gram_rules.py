"""Rules that need only inner products. They read the updates twice: for the products and for the
weighted sum.

A ``GramRule`` is called like any rule. If updates are cut into shards, the servers of the shards
call its three steps separately:

    gram = sum of rule.statistics(part) over the shards  Each part by its own server.
    decision = rule.decide(gram, f=2)                    The same on every server.
    part of the aggregate = rule.combine(part, decision)

All servers add up the statistics in the same order, so that the decision is the same.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.errors import AggregationError

from . import kernels
from .arithmetic import CUT_SQUARE, HUGE_FACTOR, LARGEST, is_too_large, norm
from .base import (
    Declarations,
    Rule,
    Updates,
    Verdict,
    check_finite,
    check_rows,
    finite,
    named,
    within_reach,
)
from .columns import Columns, Kept
from .gram import GIVEN, Decision, FloatArray, Gram, in_typical, middle_of, read_points
from .kernels import Rows, check_stored, middle, tensor_of
from .numbers import whole

# Number of columns that are sampled to choose the reference. With so few columns, the choice costs
# much less than a pass over all columns.
SAMPLE_COLUMNS = 1024
SAMPLE_PIECES = 8
# Another row becomes the reference if it is closer to most rows by this factor. With a reference
# that is far from most rows, the products lose digits.
FAR = 4.0
ATTEMPTS = 3


class GramDeclarations(Declarations, total=False):
    """Declarations of a Gram rule; ``gram_rule`` documents them."""

    points: Sequence[str]
    last_step: Callable[..., Kept] | None
    absolute: Sequence[str]
    about_origin: bool


class GramRule(Rule):
    """Rule that decides from a ``Gram``. Its ``points`` are additional arguments; ``?`` after a
    name marks an optional point."""

    takes_rows = True

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        points: Sequence[str] = (),
        last_step: Callable[..., Kept] | None = None,
        absolute: Sequence[str] = (),
        about_origin: bool = False,
        parameters: Mapping[str, inspect.Parameter] | None = None,
        **declared: Unpack[Declarations],
    ) -> None:
        self.points, self.optional = read_points(points)
        self.last_step, self.about_origin = last_step, about_origin
        self.absolute = frozenset(absolute)
        if parameters is None:
            first, *rest = inspect.signature(function).parameters.values()
            own = (first, *self.point_parameters, *rest)
            parameters = {parameter.name: parameter for parameter in own}
        super().__init__(function, parameters=parameters, **declared)

    @property
    def point_parameters(self) -> list[inspect.Parameter]:
        """Parameters of the points that are passed as arguments."""
        may_lack = self.optional | {"previous"}
        return [
            inspect.Parameter(
                point,
                inspect.Parameter.KEYWORD_ONLY,
                default=None if point in may_lack else inspect.Parameter.empty,
            )
            for point in self.points
            if point in GIVEN
        ]

    @property
    def by_sums(self) -> GramRule | None:
        """This rule, if the sum of the shards' statistics is enough for its decision
        (``ShardedRule``), or else None. The aggregate then is a weighted sum, and the trainer
        provides at most the judge's gradient, of which each server uses its own columns."""
        beside = set(self.points) - self.optional
        adds_up = (
            self.last_step is None
            and beside <= {"origin", "previous", "median", "gradient"}
            and not self.needs & {"evaluate", "learning_rate"}
        )
        return self if adds_up else None

    def statistics(
        self,
        updates: Updates,
        reference: Tensor | None = None,
        **points: Tensor | None,
    ) -> Gram:
        """Return the statistics that ``decide`` needs, from these columns.

        Args:
            updates: ``(n, d)`` or n vectors: all columns, or those of a shard.
            reference: ``(d,)``, vector to subtract first; by default a row near most others.
            points: ``(d,)`` each: the rule's points.
        """
        rows = within_reach(Rows.of(updates), self.name)
        vectors = self.vectors_of(rows, points)
        return self.gram_of(rows, vectors, reference)

    def gram_of(
        self, rows: Rows, vectors: Mapping[str, Tensor], reference: Tensor | None = None
    ) -> Gram:
        """Return the statistics of the rows and of ``vectors``, a result of ``vectors_of``."""
        gram = (
            plain_statistics(rows, vectors)
            if self.about_origin
            else statistics(rows, vectors, reference)
        )
        return self.finite(gram, rows)

    def finite(self, gram: Gram, rows: Rows) -> Gram:
        """Return the Gram matrix. Raises AggregationError if an update is not finite. The squares
        in the matrix show this at no cost."""
        # Infinite elements were clipped to HUGE_FACTOR.
        if not float(gram.products.trace()) < CUT_SQUARE:
            check_finite(rows, self.name)
        return gram

    def decide(self, gram: Gram, **options: Any) -> Decision:
        """Return the decision, a pure function of the arguments. Raises TooFewUpdates or
        AggregationError."""
        gram = self._twinned(gram)
        decision = self._checked(gram, options)
        weights, outlyingness, shares = decision.weights, decision.outlyingness, decision.shares
        if outlyingness is None:
            outlyingness = outlyingness_about(gram, weights, int(options.get("f", 0)))
        if shares is None:
            own = weights[: gram.n]
            total = own.sum()
            shares = own / total if total > 0 else np.zeros(gram.n)
        return Decision(weights, outlyingness, shares)

    def _twinned(self, gram: Gram) -> Gram:
        """Return ``gram.with_equal_twins()``, or ``gram`` itself if no reference was subtracted:
        rounding then hides small distances, so equal rows cannot be found."""
        return gram if self.about_origin else gram.with_equal_twins()

    def _checked(self, gram: Gram, options: Mapping[str, Any]) -> Decision:
        """Call the function, check that the weights add up to 1, and return its decision with a
        weight for each row."""
        whole(self.name, "f", options.get("f", 0))
        result = self.function(gram, **options)
        decision = (
            result
            if isinstance(result, Decision)
            else Decision(np.asarray(result, dtype=np.float64))
        )
        weights = gram.full(decision.weights)
        total = float(weights.sum())
        # This also detects weights that are not finite, because then their sum is not finite.
        if (
            not abs(total - 1) <= 1e-6
            and not abs(total - 1) <= 1e-6 * float(np.abs(weights).sum()) < math.inf
        ):
            raise AggregationError(
                f"{self.name}: its weights add up to {total:.6g}, not to 1",
                "put the rest on a point, or on 'origin' to add nothing",
            )
        return Decision(weights, decision.outlyingness, decision.shares)

    def combine(self, updates: Updates, decision: Decision, **options: Any) -> Tensor:
        """Return ``(d,)``: the aggregate of these columns with the weights of a decision.

        Args:
            options: Points as for ``statistics``; if the rule has a last step, also the options of
                that step, such as ``f``.
        """
        rows = within_reach(Rows.of(updates), self.name)
        vectors = self.vectors_of(rows, options)
        return self.finish(rows, vectors, decision.weights, None, options).aggregate

    def finish(
        self,
        rows: Rows,
        vectors: Mapping[str, Tensor],
        weights: FloatArray,
        matrix: FloatArray | None,
        options: Mapping[str, Any],
        survivors: bool = False,
    ) -> Kept:
        """Return the aggregate with these weights. ``matrix``: weights of the rows in each update;
        None if the updates are the rows themselves."""
        n = rows.n if matrix is None else len(matrix)
        if self.last_step is None:
            if matrix is not None:
                beside = weights[n:]
                weights = weights[:n] @ matrix
                weights[rows.n :] += beside
            return Kept(combined(rows, vectors, weights))
        chosen = np.flatnonzero(weights[:n])
        options = named(self.last_step, options, "f")
        if matrix is None:
            picked = Columns(rows.chosen(chosen.tolist()), None, survivors)
        else:
            every, part = with_points(rows, vectors, matrix)
            picked = Columns(every, np.ascontiguousarray(part[chosen]), survivors)
        return self.last_step(picked, **options)

    def __call__(self, updates: Updates, **options: Any) -> Tensor:
        return self.explain(updates, **options).aggregate

    def explain(self, updates: Updates, **options: Any) -> Verdict:
        rows, vectors, named = self._prepared(updates, options)
        gram = self.gram_of(rows, vectors)
        decision = self.decide(gram, **named)
        kept = self.finish(rows, vectors, decision.weights, None, named, survivors=True)
        finite(kept.aggregate, rows, self.name)
        shares = surviving_shares(decision, kept, gram.n)
        return verdict_of(kept.aggregate, replace(decision, shares=shares))

    def _prepared(
        self, updates: Updates, options: Mapping[str, Any]
    ) -> tuple[Rows, dict[str, Tensor], Mapping[str, Any]]:
        """Return the rows, the rule's points by name, and the other options."""
        given = {key: options[key] for key in GIVEN if key in options and key in self.points}
        named = {key: value for key, value in options.items() if key not in given}
        f = whole(self.name, "f", named.get("f", 0))
        if "f" in named:
            named["f"] = f
        least = self.least(f, centered=given.get("center") is not None, options=named)
        rows = within_reach(check_rows(updates, self.name, f, least), self.name)
        return rows, self.vectors_of(rows, given), named

    def vectors_of(
        self,
        rows: Rows,
        given: Mapping[str, Any],
        wanted: frozenset[str] | None = None,
    ) -> dict[str, Tensor]:
        """Return the vectors of the rule's points by name, in the order of ``points``. ``wanted``:
        names of the points to return; None means all."""
        vectors: dict[str, Tensor] = {}
        for point in self.points if wanted is None else filter(wanted.__contains__, self.points):
            value = given.get(point)
            if callable(value):
                value = value()
            if value is not None:
                vectors[point] = checked_point(self.name, point, value, rows)
            elif point == "origin" or (point == "previous" and "origin" not in self.points):
                vectors["origin"] = torch.zeros(1, dtype=rows.dtype, device=rows.device).expand(
                    rows.d
                )
            elif point == "median" and vectors.get("center") is None:
                vectors["median"] = kernels.between(rows, *middle(rows.n))[0]
            elif point not in self.optional and point in GIVEN and point != "previous":
                raise AggregationError(f"{self.name} needs {point}, which is not available here")
        return vectors


def outlyingness_about(gram: Gram, weights: FloatArray, f: int) -> FloatArray:
    """Return ``(n,)``: distance of each update to a weighted sum, in units of the typical
    distance."""
    distances = gram.distances_to(weights)
    return in_typical(distances, gram.resolution, typical(distances, f))


def surviving_shares(decision: Decision, kept: Kept, n: int) -> FloatArray:
    """Return ``(n,)``: the shares of the rows. They are proportional to the numbers of coordinates
    in which the rows survived, or are the decision's shares if survivors were not counted."""
    if kept.survived is None:
        return np.asarray(decision.shares)
    shares = np.zeros(n)
    shares[np.flatnonzero(decision.weights[:n])] = kept.survived / kept.survived.sum()
    return shares


def verdict_of(aggregate: Tensor, decision: Decision) -> Verdict:
    """Return the verdict for a decision of ``GramRule.decide``, in which no field is None."""
    shares, outlyingness = np.asarray(decision.shares), np.asarray(decision.outlyingness)
    return Verdict(aggregate, torch.from_numpy(shares), torch.from_numpy(outlyingness))


def _points(vectors: Mapping[str, Tensor]) -> list[Tensor | None]:
    return [None if point == "origin" else vector for point, vector in vectors.items()]


def typical(distances: FloatArray, f: int) -> float:
    """Return the median distance, or the (n - f)-th smallest if that is smaller. At least one
    honest update has such a distance or a larger one."""
    ordered, count = np.sort(distances), len(distances)
    return min(
        float(ordered[(count - 1) // 2] + ordered[count // 2]) / 2,
        float(ordered[max(0, count - f - 1)]),
    )


def checked_point(name: str, point: str, value: Tensor | NDArray[Any], rows: Rows) -> Tensor:
    """Check a point, and return it in the dtype of the rows. Raises AggregationError."""
    value = value.detach() if isinstance(value, Tensor) else tensor_of(np.asarray(value))
    check_stored(value, f"{name}: updates and {point}")
    if not value.is_floating_point():
        raise AggregationError(
            f"{name}: {point} must be a floating point vector, got {value.dtype}"
        )
    if tuple(value.shape) != (rows.d,):
        raise AggregationError(
            f"{name}: {point} must have the shape ({rows.d},) of one update, got "
            f"{tuple(value.shape)}"
        )
    if not bool(torch.isfinite(value).all()):
        what = (
            "the judge's own gradient"
            if point == "gradient"
            else f"the {point} that it starts from"
        )
        raise AggregationError(
            f"{name} cannot rank updates: {what} is not finite", "lower the learning rate"
        )
    moved = value.to(rows.dtype)
    if is_too_large(moved):
        raise AggregationError(
            f"{name} cannot rank updates: {point} has an element beyond {LARGEST:g}", "rescale it"
        )
    if rows.dtype != value.dtype and not bool(torch.isfinite(moved).all()):
        raise AggregationError(f"{name}: {point} does not fit into the {rows.dtype} of the updates")
    return moved


def with_points(
    rows: Rows, vectors: Mapping[str, Tensor], matrix: FloatArray
) -> tuple[Rows, FloatArray]:
    """Return the rows followed by the points that have a weight in ``matrix``, and the matrix
    without the columns of other points. The origin is left out, because it adds nothing."""
    used = [
        (at, vector)
        for at, (point, vector) in enumerate(vectors.items(), rows.n)
        if point != "origin" and matrix[:, at].any()
    ]
    if not used:
        return rows, np.ascontiguousarray(matrix[:, : rows.n])
    every = rows.followed_by([vector for _, vector in used])
    return every, np.ascontiguousarray(matrix[:, [*range(rows.n), *(at for at, _ in used)]])


def combined(rows: Rows, vectors: Mapping[str, Tensor], weights: FloatArray) -> Tensor:
    """Return ``(d,)``: the weighted sum of updates and points. If one row has all the weight, that
    row is returned bit for bit."""
    every, factors = (
        with_points(rows, vectors, weights[None])
        if any(point != "origin" for point in vectors)
        else (rows, None)
    )
    shares = weights[: rows.n] if factors is None else factors[0]
    only = shares.nonzero()[0]
    if len(only) == 0:
        return torch.zeros(rows.d, dtype=rows.dtype, device=rows.device)
    if len(only) == 1 and shares[only[0]] == 1.0:
        return every.row(int(only[0])).clone()
    return kernels.weighted_sum(every, shares)


def statistics(rows: Rows, vectors: Mapping[str, Tensor], reference: Tensor | None = None) -> Gram:
    """Return the Gram matrix after subtraction of a reference near most rows, so that products are
    small and distances are precise.

    By default the reference is a row, chosen by a few columns. If the Gram matrix shows that this
    row is far from most others, the pass is repeated with another row. So an attack on the sampled
    columns costs time, but no precision.
    """
    guessed = reference is None
    if reference is None:
        reference = vectors.get("center", vectors.get("median"))
    if reference is None:
        # For small updates, a second pass costs less than the choice of a reference.
        reference = rows.row(_central_row(_sample(rows)) if rows.n * rows.d >= kernels.SMALL else 0)
    for _ in range(ATTEMPTS):
        resolution = 4 * float(torch.finfo(rows.dtype).eps) * norm(reference)
        found = Gram(
            kernels.gram(rows, reference, _points(vectors)),
            rows.n,
            tuple(vectors),
            resolution,
            precision_of(rows.dtype),
        )
        if not guessed:
            break
        better = _nearer_row(found)
        if better is None:
            break
        reference = rows.row(better)
    return found


def plain_statistics(rows: Rows, vectors: Mapping[str, Tensor]) -> Gram:
    """Return the Gram matrix without subtraction of a reference. Norms and directions are precise,
    small distances are not."""
    products = kernels.gram(rows, None, _points(vectors))
    length = float(np.sqrt(middle_of(products.diagonal()[: rows.n])))
    return Gram(
        products,
        rows.n,
        tuple(vectors),
        4 * float(torch.finfo(rows.dtype).eps) * length,
        precision_of(rows.dtype),
    )


def precision_of(dtype: torch.dtype) -> float:
    """Return the relative rounding error of inner products of rows of this dtype."""
    return 4 * float(torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps)


def _sample(rows: Rows) -> FloatArray:
    """Return a sample of the columns, in a few evenly spaced pieces: ``(n, columns)`` float64."""
    d = rows.d
    if d <= SAMPLE_COLUMNS:
        pieces = [slice(0, d)]
    else:
        width = SAMPLE_COLUMNS // SAMPLE_PIECES
        starts = [piece * (d - width) // (SAMPLE_PIECES - 1) for piece in range(SAMPLE_PIECES)]
        pieces = [slice(start, start + width) for start in starts]
    block = torch.cat([rows.block(piece).to("cpu", torch.float64) for piece in pieces], dim=1)
    return np.asarray(block.clamp_(-HUGE_FACTOR, HUGE_FACTOR).numpy())


def _central_row(sample: FloatArray) -> int:
    """Return the index of the row with the least median distance to the others; for equal distances
    the first."""
    # numpy's product would wake threads that compete with torch's.
    columns = torch.from_numpy(sample)
    apart = Gram((columns @ columns.T).numpy(), len(sample)).squared_distances()
    return int(np.argmin(middle_of(apart)))


def _nearer_row(gram: Gram) -> int | None:
    """Return the index of a better row for the reference, or None if the present reference is not
    far from most rows."""
    radius = float(middle_of(gram.products.diagonal()[: gram.n]))
    medians = middle_of(gram.squared_distances())
    best = int(np.argmin(medians))
    return best if radius > FAR**2 * max(float(medians[best]), 0.0) else None


@overload
def gram_rule(function: Callable[..., Any]) -> GramRule: ...
@overload
def gram_rule(
    **declared: Unpack[GramDeclarations],
) -> Callable[[Callable[..., Any]], GramRule]: ...
def gram_rule(
    function: Callable[..., Any] | None = None, **declared: Unpack[GramDeclarations]
) -> Any:
    """Make a rule from a function ``(gram: Gram, *, f, ...) -> weights or Decision``.

    Args:
        name, at_least, at_least_centered, translation, scale, robust: As for ``rule``. The number
            of updates is checked before every call.
        absolute: Options in units of the updates. If one is set, the rule is not scale equivariant.
        about_origin: Whether the rule uses lengths and directions, not distances. Then no reference
            is subtracted from the updates.
        points: Names from ``POINTS``; ``?`` after a name marks an optional point (``gram.has``).
            All points except origin and median are arguments of the rule.
        last_step: Function that aggregates the columns of the updates with a nonzero weight. By
            default the aggregate is the weighted sum.
    """
    return partial(GramRule, **declared) if function is None else GramRule(function, **declared)
