"""Base classes of rules: functions that aggregate updates, and rate each update.

``@rule`` turns a function ``(updates, *, f, ...) -> Tensor`` into a ``Rule``. A call returns the
aggregate; ``explain`` returns a ``Verdict`` with the weight and the outlyingness of each update. By
default the outlyingness is the distance to the aggregate; a function that has better values returns
a ``Verdict`` itself. ``@gram_rule`` makes rules that need only inner products (``gram_rules``).

Rules accept only finite updates. A peer that receives a non-finite update drops it, and records
evidence against the sender. A rule checks the updates only if its result is not finite. If all
updates are finite, no rule returns NaN, however large they are. Rules that use distances work for
elements up to 1e123 (``LARGEST``), far beyond the range of float32. In float64 they clip larger
elements to 1e123, and raise an error if most updates have such elements. Medians and means of
coordinates have no such limit.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.errors import AggregationError, TooFewUpdates

from . import kernels
from .arithmetic import CUT_SQUARE, LARGEST, is_too_large, resolution
from .columns import Columns, Kept
from .gram import in_typical, middle_of
from .kernels import Rows, check_listed, check_stored
from .numbers import whole

Updates: TypeAlias = "Tensor | Sequence[Tensor] | Sequence[NDArray[Any]] | Rows"
"""``(n, d)``, or n vectors ``(d,)``. Vectors are stacked only for a rule that needs one tensor."""
AVAILABLE = frozenset(
    {
        "f",
        "center",
        "previous",
        "usual",
        "evaluate",
        "gradient",
        "learning_rate",
        "round_id",
    }
)
"""Arguments that the runtime passes to a rule with a parameter of this name. There is no
``previous`` in the first round, for aggregates of parameters, and for rules in the trainer."""
Robust: TypeAlias = bool | Literal["bounded"]
SMALLER = 1e-190  # factor for huge updates: its product with any float64 is at most 1e119
RowFunction: TypeAlias = Callable[[Sequence[NDArray[np.float32]], NDArray[np.float32]], bool]
OfRows = TypeVar("OfRows", bound=RowFunction)


def plain_bound(f: int) -> int:
    """Return 2f + 1, the smallest n with an honest majority. Every rule without a trusted reference
    needs an honest majority."""
    return 2 * f + 1


class Declarations(TypedDict, total=False):
    """Declarations of a rule; ``rule`` documents them."""

    name: str | None
    at_least: Callable[..., int]
    at_least_centered: Callable[..., int] | None
    discerning: bool
    translation: bool
    scale: bool
    robust: Robust | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision of a rule.

    Attributes:
        aggregate: ``(d,)``, dtype and device of the updates.
        weights: ``(n,)`` float64, the share of each update in the aggregate. For a coordinate rule,
            the normalised fraction of the update's coordinates that survived. The weights add up to
            1, or are all zero if no update was accepted.
        outlyingness: ``(n,)`` float64, finite, at least 0; 1.0 is typical (the median over the
            updates). All ones for a rule that never distinguishes updates (the mean): such a
            verdict is no evidence against any peer.
        length: Usual length of an update, measured in this round. Rules with a parameter ``usual``
            receive it in later rounds. 0.0 if the rule does not measure it.
    """

    aggregate: Tensor
    weights: Tensor
    outlyingness: Tensor
    length: float = 0.0


class Rule:
    """A robust aggregation rule. ``rule(updates, f=f)`` returns the aggregate, ``(d,)``.

    ``gossip.testing.check_aggregator`` tests a rule against the declarations below.

    Attributes:
        name: Name for ``--aggregator``.
        translation: Declares F(X + c) = F(X) + c.
        scale: Declares F(aX) = aF(X) for a > 0.
        robust: True declares that f Byzantine updates of any size move the aggregate by at most a
            constant times the spread of the honest updates. "bounded" declares at most a constant
            times the norm of the trusted vectors (honest updates, the judge's gradient), which may
            be many times the spread. False declares nothing.
        discerning: False when the rule treats all updates alike, as the mean does.
        needs: Arguments that the rule takes in addition to the updates, such as ``center``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        at_least: Callable[..., int] = plain_bound,
        at_least_centered: Callable[..., int] | None = None,
        discerning: bool = True,
        translation: bool = True,
        scale: bool = True,
        robust: Robust | None = None,
        parameters: Mapping[str, inspect.Parameter] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name or str(getattr(function, "__name__", "rule"))
        self.at_least = at_least
        self.at_least_centered = at_least_centered or at_least
        self.discerning = discerning
        self.translation, self.scale = translation, scale
        self.robust: Robust = discerning if robust is None else robust
        self.parameters = (
            inspect.signature(function).parameters if parameters is None else parameters
        )
        self.needs = frozenset(self.parameters) & AVAILABLE
        """Arguments from ``AVAILABLE`` that the rule takes in addition to updates."""

    @property
    def needs_trainer(self) -> bool:
        """Whether the rule runs in the trainer's process, because it needs the loss or its
        gradient."""
        return bool(self.needs & {"evaluate", "gradient"})

    symmetric = True
    """Whether the order of the updates does not matter."""
    absolute: frozenset[str] = frozenset()
    """Options in units of the updates. If one is set, ``scale`` does not hold."""
    points: tuple[str, ...] = ()
    """Names of the points (``gram.POINTS``) that a ``GramRule`` requests."""
    optional: frozenset[str] = frozenset()
    """Names of the points that may be missing."""
    fixed_f: int | None = None
    """Smallest f in the options of the stages, or None if no stage has an f of its own."""
    whole_vector = True
    """Whether the rule needs whole updates. False for coordinate rules: their updates may be cut
    into shards."""
    takes_rows = False
    """Whether the function takes ``Rows``; then separate updates are never stacked."""
    from_rows: RowFunction | None = None
    """Function that computes the aggregate from separate rows; see ``of_rows``."""

    @property
    def by_sums(self) -> Rule | None:
        """The ``GramRule`` that makes one decision for all shards, from the sum of the shards' Gram
        matrices. None if this rule needs whole updates."""
        return None

    def of_rows(self, function: OfRows) -> OfRows:
        """Register a second function ``(rows, out) -> bool``, which writes the aggregate to
        ``out``. The rule must treat all updates alike, at any f, and have no options.

        ``rows`` has at least one float32 array. All arrays have the length of ``out``, and none
        shares memory with it. The function returns True if ``out`` contains the aggregate and is
        finite, and False if the caller must call the rule itself.
        """
        assert not self.discerning
        assert self.needs <= {"f"}
        self.from_rows = function
        return function

    def least(
        self, f: int, *, centered: bool = False, options: Mapping[str, Any] | None = None
    ) -> int:
        """Return the smallest number of updates that the rule accepts.

        Args:
            f: Byzantine peers to tolerate.
            centered: Whether the local update is trusted and passed as ``center``.
            options: Options of the rule. ``at_least`` receives those that it has as parameters,
                such as zeno's ``b``.
        """
        bound = (
            self.at_least_centered if centered and "center" in self.parameters else self.at_least
        )
        return max(1, bound(f, **named(bound, options or {})))

    def __call__(self, updates: Updates, **options: Any) -> Tensor:
        """Aggregate the updates.

        Args:
            updates: ``(n, d)``, one row per peer, all finite; or n vectors ``(d,)``.
            options: ``f`` and the options of the rule.
        Returns: ``(d,)``, in the dtype and on the device of ``updates``.
        Raises: AggregationError: As for ``explain``.
        """
        given = Rows.of(updates) if self.takes_rows else as_tensor(updates)
        result = self.function(given, **options)
        aggregate = (
            result.aggregate.detach()
            if isinstance(result, Verdict)
            else self._one_update(given, result)
        )
        return finite(aggregate, given, self.name)

    def explain(self, updates: Updates, **options: Any) -> Verdict:
        """Aggregate the updates, and rate each update.

        Args:
            updates: ``(n, d)``, one row per peer, all finite; or n vectors ``(d,)``.
            options: ``f`` and the options of the rule.
        Returns: The ``Verdict``. If the function returns a bare tensor, the outlyingness is the
            distance to the aggregate, and the weights are equal.
        Raises: AggregationError: The rule cannot aggregate these updates (``TooFewUpdates`` if
            there are too few for f), or its result is not a finite tensor ``(d,)``.
        """
        given = Rows.of(updates) if self.takes_rows else as_tensor(updates)
        result = self.function(given, **options)
        verdict = (
            result if isinstance(result, Verdict) else self._verdict_on(as_tensor(given), result)
        )
        finite(verdict.aggregate, given, self.name)
        return verdict

    def measure(self, updates: Updates, start: int, **options: Any) -> Tensor:
        """Return the outlyingness of ``updates[start:]``, measured together with the other
        updates."""
        return self.explain(updates, **options).outlyingness[start:]

    def _one_update(self, updates: Tensor | Rows, result: Any) -> Tensor:
        wanted = (updates.d,) if isinstance(updates, Rows) else tuple(updates.shape[1:])
        if not isinstance(result, Tensor) or tuple(result.shape) != wanted:
            shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise AggregationError(
                f"rule {self.name} returned {shape}, not a tensor of shape {wanted}"
            )
        return result.detach()

    def _verdict_on(self, updates: Tensor, result: Any) -> Verdict:
        n, result = len(updates), self._one_update(updates, result)
        weights = torch.full((n,), 1.0 / n, dtype=torch.float64)
        return Verdict(
            result,
            weights,
            standing_out(updates, result) if self.discerning else torch.ones_like(weights),
        )

    def __repr__(self) -> str:
        return f"<rule {self.name}>"


class CoordinateRule(Rule):
    """Rule that aggregates each coordinate separately. The function of a built-in rule takes
    ``Columns``; a user's function takes a block ``(n, c)`` of columns."""

    whole_vector = False

    def __init__(
        self,
        function: Callable[..., Any],
        takes_columns: bool = False,
        **declared: Unpack[Declarations],
    ) -> None:
        super().__init__(function, **declared)
        self.takes_columns = takes_columns

    def keep(self, columns: Columns, options: Mapping[str, Any]) -> Kept:
        """Return the aggregate of the columns. Their rows may be updates or sums of updates."""
        if self.takes_columns:
            kept: Kept = self.function(columns, **options)
            return kept
        return columns.each(lambda block: self.function(block, **options), self.name)

    def __call__(self, updates: Updates, **options: Any) -> Tensor:
        if isinstance(updates, Tensor) and not self.takes_columns:
            return super().__call__(updates, **options)
        rows = self._checked(updates, options)
        return finite(self.keep(Columns(rows), options).aggregate, rows, self.name)

    def explain(self, updates: Updates, **options: Any) -> Verdict:
        if isinstance(updates, Tensor) and not self.takes_columns:
            return super().explain(updates, **options)
        rows = self._checked(updates, options)
        return self._verdict_of(rows, self.keep(Columns(rows, survivors=True), options))

    def explain_parts(self, updates: Tensor, parts: int, **options: Any) -> list[Verdict]:
        """Run the rule once on several groups of n updates, and return the verdict of each group.

        Args:
            updates: ``(n, parts * d)``, the groups side by side, all finite.
            options: ``f`` and the options of the rule, for all groups.
        Raises: AggregationError: ``explain`` would raise it for one of the groups.
        """
        rows = self._checked(updates, options)
        kept = self.keep(Columns(rows, survivors=parts), options)
        every = [None] * parts if kept.survived is None else kept.survived.reshape(parts, rows.n)
        groups = zip(updates.chunk(parts, 1), kept.aggregate.chunk(parts), every, strict=True)
        return [
            self._verdict_of(Rows.of(group), Kept(aggregate, survived))
            for group, aggregate, survived in groups
        ]

    def _verdict_of(self, rows: Rows, kept: Kept) -> Verdict:
        finite(kept.aggregate, rows, self.name)
        weights = np.full(rows.n, 1.0) if kept.survived is None else kept.survived
        total = float(weights.sum()) or 1.0  # 0 after a tie of signs in every coordinate
        outlyingness = (
            standing_out(rows, kept.aggregate)
            if self.discerning
            else torch.ones(rows.n, dtype=torch.float64)
        )
        return Verdict(kept.aggregate, torch.from_numpy(weights / total), outlyingness)

    def _checked(self, updates: Updates, options: Mapping[str, Any]) -> Rows:
        f = whole(self.name, "f", options.get("f", 0))
        return check_rows(updates, self.name, f, self.least(f, options=options))


@overload
def rule(function: Callable[..., Any]) -> Rule: ...
@overload
def rule(
    *, coordinatewise: bool = ..., **declared: Unpack[Declarations]
) -> Callable[[Callable[..., Any]], Rule]: ...
def rule(
    function: Callable[..., Any] | None = None,
    *,
    coordinatewise: bool = False,
    **declared: Unpack[Declarations],
) -> Any:
    """Make a rule from a function ``(updates, *, f, ...) -> aggregate``.

    The function receives ``updates``, ``(n, d)``, and returns a finite tensor ``(d,)`` or a
    ``Verdict``. The runtime passes values for parameters with these names: ``center`` (the local
    update, in gossip rounds), ``previous`` (the last aggregate; there is none in the first round),
    ``usual`` (the largest ``length`` in the last 20 verdicts), ``evaluate`` and ``gradient`` (the
    judge's loss), ``learning_rate`` and ``round_id``. All other parameters are options of the rule.
    A rule has no state of its own.

    Args:
        name: Name of the rule. By default the function's name.
        at_least: ``f -> n``, the smallest number of updates. By default 2f + 1.
        at_least_centered: The smallest number with a trusted ``center``. By default ``at_least``.
        coordinatewise: Whether the function aggregates each coordinate separately. It may then be
            called with any columns of the updates, ``(n, c) -> (c,)``.
        discerning: False if the rule treats all updates alike, as the mean does. Its verdicts are
            then no evidence against any peer.
        translation: Whether F(X + c) = F(X) + c holds.
        scale: Whether F(aX) = aF(X) holds for a > 0.
        robust: As for ``Rule``. By default equal to ``discerning``.
    Raises: AggregationError: The rule was called, and its result is not a finite ``(d,)``.
    """
    kind = CoordinateRule if coordinatewise else Rule
    made = functools.partial(kind, **declared)
    return made if function is None else made(function)


def coordinate_rule(
    **declared: Unpack[Declarations],
) -> Callable[[Callable[..., Kept]], CoordinateRule]:
    """Make a built-in rule from a function ``(Columns, *, f) -> Kept``, which uses the kernels."""
    return functools.partial(CoordinateRule, takes_columns=True, **declared)


def named(function: Callable[..., Any], options: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """Return the options that ``function`` has as parameters; f only if ``more`` contains it."""
    return {
        key: value
        for key, value in options.items()
        if key in _names(function) and (key != "f" or key in more)
    }


@functools.cache
def _names(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def as_tensor(updates: Updates) -> Tensor:
    """Return the updates as one tensor ``(n, d)``, detached from autograd."""
    if isinstance(updates, Tensor):
        check_stored(updates)
        return updates.detach()
    return Rows.of(updates).block()


def require(updates: Tensor, name: str, f: int, at_least: int) -> None:
    """Check that ``updates`` is a floating point tensor ``(n, d)`` with at least ``at_least`` rows,
    and that f is at least 0. Raises AggregationError."""
    if updates.ndim != 2 or not updates.is_floating_point() or updates.shape[1] == 0:
        raise AggregationError(
            f"{name} takes an (n, d) floating point tensor, got {tuple(updates.shape)} "
            f"{updates.dtype}"
        )
    _check_counts(name, f, at_least, len(updates))


def check_rows(updates: Updates, name: str, f: int, at_least: int) -> Rows:
    """Return the updates (a tensor or separate vectors) as ``Rows``, after the checks of
    ``require``."""
    if isinstance(updates, Tensor):
        require(updates, name, f, at_least)
    elif not isinstance(updates, Rows):
        check_listed(updates)
        _check_counts(name, f, at_least, len(updates))
    rows = Rows.of(updates)
    _check_counts(name, f, at_least, rows.n)
    return rows


def finite(aggregate: Tensor, updates: Updates, name: str) -> Tensor:
    """Return the aggregate. If it is not finite, check the updates, and raise AggregationError if
    an update is not finite."""
    if not math.isfinite(float(aggregate.detach().sum())) and not bool(
        torch.isfinite(aggregate).all()
    ):
        check_finite(Rows.of(updates), name)
    return aggregate


DROP = "drop it; its sender then no longer counts towards f"


def check_finite(rows: Rows, name: str) -> None:
    """Raise AggregationError for the first update that is not finite, or has an element beyond
    ``LARGEST``."""
    for at in range(rows.n):
        if not bool(torch.isfinite(rows.row(at)).all()):
            raise AggregationError(f"{name}: update {at} of {rows.n} is not finite", DROP)
        if is_too_large(rows.row(at)):
            raise AggregationError(
                f"{name}: update {at} of {rows.n} has an element beyond {LARGEST:g}", DROP
            )


def within_reach(rows: Rows, name: str) -> Rows:
    """Return the rows for a rule that uses distances, with float64 elements clipped to
    ``LARGEST``.

    Clipping leaves an update at the largest distance that can be measured. Raises AggregationError
    if most updates have elements beyond ``LARGEST``.
    """
    if rows.dtype != torch.float64:
        return rows
    beyond = frozenset(at for at, row in enumerate(rows.vectors) if is_too_large(row))
    if 2 * len(beyond) > rows.n:
        raise AggregationError(
            f"{name}: {len(beyond)} of {rows.n} updates have elements beyond {LARGEST:g}, the "
            "limit for distances",
            "scale them down",
        )
    return (
        rows.replaced({at: rows.row(at).clamp(-LARGEST, LARGEST) for at in beyond})
        if beyond
        else rows
    )


def _check_counts(name: str, f: int, at_least: int, n: int) -> None:
    whole(name, "f", f, least=0)
    if n < max(1, at_least):
        raise TooFewUpdates(name, f, max(1, at_least), n)


def standing_out(updates: Tensor | Rows, aggregate: Tensor) -> Tensor:
    """Return ``(n,)`` float64: distance of each update to the aggregate, in units of the median
    distance."""
    rows = Rows.of(updates)
    squares = kernels.squared_distances_to(rows, aggregate)
    if float(middle_of(squares)) > CUT_SQUARE:
        return standing_out(rows.block() * SMALLER, aggregate * SMALLER)
    distances = np.sqrt(squares)
    return torch.from_numpy(in_typical(distances, resolution(aggregate)))
