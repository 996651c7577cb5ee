"""Base of rules: functions that aggregate updates and return a weight and an outlyingness for each.

``@rule`` turns a function ``(updates, *, f, ...) -> Tensor`` into a ``Rule``. A call returns the
aggregate; ``explain`` returns a ``Verdict`` with the weight and the outlyingness of each update. A
function may return a ``Verdict`` itself if it has better values than the distance to the aggregate.
Rules that need only inner products are made by ``@gram_rule``, see ``gram_rules``.

Rules take finite updates: a peer drops an update that is not finite when it receives it, and counts
that as evidence. A rule does not check this again, unless its result is not finite. From finite
updates of any size, no rule makes a NaN. Distances can be measured up to 1e123 (``LARGEST``), far
beyond float32. In float64 a rule on distances replaces larger numbers by 1e123, and raises an error
if most updates have them; medians and means of coordinates are exact at any size.
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
"""``(n, d)``, or n vectors ``(d,)``. Vectors are stacked only for a rule that needs it."""
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
"""Arguments that a caller may pass to a rule that names them. ``previous`` is missing in the first
round, for aggregates of parameters, and for rules that run in the trainer."""
Robust: TypeAlias = bool | Literal["bounded"]
SMALLER = 1e-190  # the product with any float64 is at most 1e119
RowFunction: TypeAlias = Callable[[Sequence[NDArray[np.float32]], NDArray[np.float32]], bool]
OfRows = TypeVar("OfRows", bound=RowFunction)


def plain_bound(f: int) -> int:
    """Return n >= 2f + 1: honest peers outnumber Byzantine ones, as any rule without a trusted
    reference needs."""
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
        weights: ``(n,)`` float64, the share of each update in the aggregate; coordinate rules: the
            fraction of its coordinates that survived, divided by their sum. Sums to 1, or is all
            zero when no update at all was accepted.
        outlyingness: ``(n,)`` float64, >= 0, finite, the outlyingness of each; 1.0 is typical (the
            median over the updates). All ones for a rule that never distinguishes updates (the
            mean): such a verdict is no evidence against any peer.
        length: Usual length of an update, measured in this round. Rules with a parameter ``usual``
            receive it in later rounds. 0.0 if not known.
    """

    aggregate: Tensor
    weights: Tensor
    outlyingness: Tensor
    length: float = 0.0


class Rule:
    """A robust aggregation rule. ``rule(updates, f=f)`` returns the aggregate, ``(d,)``.

    ``gossip.testing.check_aggregator`` tests a rule against its declarations here.

    Attributes:
        name: Name for ``--aggregator``.
        translation: Declares F(X + c) = F(X) + c.
        scale: Declares F(aX) = aF(X) for a > 0.
        robust: True declares that f Byzantine updates move the aggregate by at most a constant
            times the spread of the honest updates. "bounded" declares at most a constant times the
            norm of the trusted vectors (honest updates, the judge's gradient). This may be many
            spreads. False declares nothing.
        discerning: False when the rule treats all updates alike, as the mean does.
        needs: Arguments that it takes in addition to the updates, such as ``center``.
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
        """Whether it runs in the trainer's process, to evaluate the loss or its gradient."""
        return bool(self.needs & {"evaluate", "gradient"})

    symmetric = True
    """Whether the order of the updates does not matter."""
    absolute: frozenset[str] = frozenset()
    """Options in units of the updates. If one is set, ``scale`` does not hold."""
    points: tuple[str, ...] = ()
    """Points that a ``GramRule`` requests."""
    optional: frozenset[str] = frozenset()
    """Points that may be missing."""
    fixed_f: int | None = None
    """Smallest f that the options of a stage fix; None if each stage uses the f of the whole
    rule."""
    whole_vector = True
    """False for rules that work coordinate by coordinate. Their updates may be cut in shards."""
    takes_rows = False
    """Whether it takes ``Rows``, so that separate updates are never stacked."""
    from_rows: RowFunction | None = None
    """Function that computes the aggregate from separate rows; see ``of_rows``."""

    @property
    def by_sums(self) -> Rule | None:
        """The ``GramRule`` that makes one decision for all shards from sums over them. None if the
        rule needs whole updates."""
        return None

    def of_rows(self, function: OfRows) -> OfRows:
        """Register a second function ``(rows, out) -> bool``, which writes the aggregate to
        ``out``. The rule must treat all updates alike, at any f, and have no options.

        ``rows`` are float32 arrays of one length, at least one, and share no memory with ``out``,
        which has the same length. It returns True if ``out`` has the aggregate and all its numbers
        are finite, and False if the caller must use the rule itself.
        """
        assert not self.discerning
        assert self.needs <= {"f"}
        self.from_rows = function
        return function

    def least(
        self, f: int, *, centered: bool = False, options: Mapping[str, Any] | None = None
    ) -> int:
        """Return the smallest number of updates.

        Args:
            f: Byzantine peers to tolerate.
            centered: The peer's own update is trusted and passed as ``center``.
            options: Options of the rule. Those that the bound depends on (zeno's ``b``) are passed
                to ``at_least`` by name.
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
        """Aggregate the updates, and report the use of each.

        Args:
            updates: ``(n, d)``, one row per peer, all finite; or n vectors ``(d,)``.
            options: ``f`` and the options of the rule.
        Returns: The ``Verdict``. For a rule that returns a bare tensor, outlyingness is the
            distance to the aggregate and the weights are equal.
        Raises: AggregationError: The rule cannot aggregate these updates, ``TooFewUpdates`` if
            they are too few for f, or it returned no finite tensor ``(d,)``.
        """
        given = Rows.of(updates) if self.takes_rows else as_tensor(updates)
        result = self.function(given, **options)
        verdict = (
            result if isinstance(result, Verdict) else self._verdict_on(as_tensor(given), result)
        )
        finite(verdict.aggregate, given, self.name)
        return verdict

    def measure(self, updates: Updates, start: int, **options: Any) -> Tensor:
        """Return the outlyingness of the updates from index ``start``, compared with the others."""
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
    """Rule that treats each coordinate alone. A built-in function takes ``Columns``, a user's
    function blocks ``(n, c)``."""

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
        """Return the aggregate of the columns, of any rows."""
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
        """Return the result of ``explain`` for each of several groups of n updates, from one run of
        the rule.

        Args:
            updates: ``(n, parts * d)``, the groups side by side, all finite.
            options: ``f`` and the options of the rule, for all groups.
        Raises: AggregationError: As for ``explain``, if it raises for one of them.
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
    ``usual`` (the longest ``length`` of the last 20 verdicts), ``evaluate`` and ``gradient`` (the
    judge's loss), ``learning_rate`` and ``round_id``. All other parameters are options of the rule.
    A rule has no state of its own.

    Args:
        name: Name of the rule. By default the function's name.
        at_least: ``f -> n``, the smallest number of updates. By default 2f + 1.
        at_least_centered: The same with a trusted ``center``. By default ``at_least``.
        coordinatewise: Whether it treats each coordinate alone. Then it may be called with any
            columns of the updates, ``(n, c) -> (c,)``.
        discerning: False when it treats all updates alike, as the mean does. Its verdicts are then
            no evidence against any peer.
        translation: Whether F(X + c) = F(X) + c holds.
        scale: Whether F(aX) = aF(X) holds for a > 0.
        robust: True: f Byzantine updates of any size move the aggregate by at most a constant
            times the spread of the honest updates. "bounded": by at most a constant times their
            length. By default as ``discerning``.
    Raises: AggregationError: When the rule is called and its result is not a finite ``(d,)``.
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
    """Return the options that a function takes by name; f only if ``more`` has it."""
    return {
        key: value
        for key, value in options.items()
        if key in _names(function) and (key != "f" or key in more)
    }


@functools.cache
def _names(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def as_tensor(updates: Updates) -> Tensor:
    """Return ``(n, d)``, detached from autograd. Separate updates are stacked."""
    if isinstance(updates, Tensor):
        check_stored(updates)
        return updates.detach()
    return Rows.of(updates).block()


def require(updates: Tensor, name: str, f: int, at_least: int) -> None:
    """Check that ``updates`` is ``(n, d)`` floating point with enough rows, and ``f >= 0``. Raises
    AggregationError."""
    if updates.ndim != 2 or not updates.is_floating_point() or updates.shape[1] == 0:
        raise AggregationError(
            f"{name} takes an (n, d) floating point tensor, got {tuple(updates.shape)} "
            f"{updates.dtype}"
        )
    _check_counts(name, f, at_least, len(updates))


def check_rows(updates: Updates, name: str, f: int, at_least: int) -> Rows:
    """Return the updates, also separate vectors, as ``Rows`` after the checks of ``require``."""
    if isinstance(updates, Tensor):
        require(updates, name, f, at_least)
    elif not isinstance(updates, Rows):
        check_listed(updates)
        _check_counts(name, f, at_least, len(updates))
    rows = Rows.of(updates)
    _check_counts(name, f, at_least, rows.n)
    return rows


def finite(aggregate: Tensor, updates: Updates, name: str) -> Tensor:
    """Return the aggregate. Raises AggregationError if it is not finite because an update is not;
    the updates are checked only if the aggregate is not finite."""
    if not math.isfinite(float(aggregate.detach().sum())) and not bool(
        torch.isfinite(aggregate).all()
    ):
        check_finite(Rows.of(updates), name)
    return aggregate


DROP = "drop it; its sender then no longer counts towards f"


def check_finite(rows: Rows, name: str) -> None:
    """Raise AggregationError for the first update that is not finite, or too large."""
    for at in range(rows.n):
        if not bool(torch.isfinite(rows.row(at)).all()):
            raise AggregationError(f"{name}: update {at} of {rows.n} is not finite", DROP)
        if is_too_large(rows.row(at)):
            raise AggregationError(
                f"{name}: update {at} of {rows.n} has a number beyond {LARGEST:g}", DROP
            )


def within_reach(rows: Rows, name: str) -> Rows:
    """Return the rows for a rule on distances: in float64 without numbers beyond ``LARGEST``.

    An update with larger numbers counts as being at the largest measurable distance. Raises
    AggregationError if most updates have them.
    """
    if rows.dtype != torch.float64:
        return rows
    beyond = frozenset(at for at, row in enumerate(rows.vectors) if is_too_large(row))
    if 2 * len(beyond) > rows.n:
        raise AggregationError(
            f"{name}: {len(beyond)} of {rows.n} updates have numbers beyond {LARGEST:g}, the limit "
            "of distances",
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
