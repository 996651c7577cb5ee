"""Pre-aggregations, and rules made of several stages: ``nnm+trimmed_mean``, ``compose(nnm, krum)``.

A pre-aggregation computes a matrix W from the Gram matrix G of the updates X. The rule that follows
aggregates the rows of W X. A Gram rule needs only W G W^T, so the updates are not read again. For a
coordinate rule, W X is computed block by block in the CPU cache. Weights and outlyingness in the
verdict are those of the original updates.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict, Unpack, overload

import numpy as np
import torch
from torch import Tensor

from gossip.errors import AggregationError

from . import kernels
from .base import (
    AVAILABLE,
    CoordinateRule,
    Robust,
    Rule,
    Updates,
    Verdict,
    check_rows,
    finite,
    named,
    plain_bound,
    standing_out,
    within_reach,
)
from .columns import Columns
from .gram import GIVEN, Decision, FloatArray, Gram, read_points
from .gram_rules import (
    GramRule,
    combined,
    outlyingness_about,
    statistics,
    surviving_shares,
    verdict_of,
    with_points,
)
from .kernels import Rows, middle
from .numbers import whole


class PreAggregation:
    """Stage before a rule: a function ``(gram, *, f, ...) -> W``. W is ``(k, n)`` or ``(k, n +
    points)``, and each row adds up to 1."""

    def __init__(
        self,
        function: Callable[..., FloatArray],
        *,
        name: str | None = None,
        at_least: Callable[..., int] = plain_bound,
        inputs: Callable[..., int] = lambda rows: rows,
        points: Sequence[str] = (),
        translation: bool = True,
        scale: bool = True,
        symmetric: bool = True,
        absolute: Sequence[str] = (),
        robust: Robust = True,
    ) -> None:
        self.name = name or str(getattr(function, "__name__", "pre_aggregation"))
        self.__doc__, self.__name__, self.__module__ = (
            function.__doc__,
            self.name,
            function.__module__,
        )
        self.function, self.at_least, self.inputs = function, at_least, inputs
        self.points, self.optional = read_points(points)
        self.translation, self.scale, self.symmetric = translation, scale, symmetric
        self.absolute = frozenset(absolute)
        self.robust: Robust = robust
        self.parameters = inspect.signature(function).parameters
        self.needs = frozenset(self.parameters) & AVAILABLE

    def least(self, f: int, then: int, options: Mapping[str, Any]) -> int:
        """Return the smallest number of updates for f Byzantine peers, if the next stage needs
        ``then`` rows."""
        bound = self.at_least(f, **named(self.at_least, options))
        return max(1, bound, self.inputs(then, **named(self.inputs, options)))

    def matrix(self, gram: Gram, **options: Any) -> FloatArray:
        """Return ``(k, n + points)``: W for a Gram matrix."""
        made = np.asarray(self.function(gram, **options), dtype=np.float64)
        width = len(gram.products)
        if made.ndim != 2 or made.shape[1] not in (gram.n, width) or not len(made):
            raise AggregationError(
                f"{self.name} returned a matrix of shape {made.shape} for {gram.n} updates"
            )
        if made.shape[1] < width:
            made = np.concatenate([made, np.zeros((len(made), width - made.shape[1]))], axis=1)
        if not np.isfinite(made).all() or float(np.abs(made.sum(axis=1) - 1).max()) > 1e-6:
            raise AggregationError(
                f"{self.name}: the weights of each row must add up to 1",
                "put the rest on 'origin'",
            )
        return made

    def __repr__(self) -> str:
        return f"<pre-aggregation {self.name}>"


class PreDeclarations(TypedDict, total=False):
    """Declarations of a pre-aggregation; ``pre_aggregation`` documents them."""

    name: str | None
    at_least: Callable[..., int]
    inputs: Callable[..., int]
    points: Sequence[str]
    translation: bool
    scale: bool
    symmetric: bool
    absolute: Sequence[str]
    robust: Robust


@overload
def pre_aggregation(function: Callable[..., FloatArray]) -> PreAggregation: ...
@overload
def pre_aggregation(
    **declared: Unpack[PreDeclarations],
) -> Callable[[Callable[..., FloatArray]], PreAggregation]: ...
def pre_aggregation(
    function: Callable[..., FloatArray] | None = None, **declared: Unpack[PreDeclarations]
) -> Any:
    """Make a pre-aggregation from a function ``(gram, *, f, ...) -> W``.

    Args:
        name: Name of the pre-aggregation; the function's own name by default.
        at_least: ``f -> n``, the smallest number of updates. Options are passed to parameters of
            the same name.
        inputs: ``rows -> n``, the smallest number of updates that make so many rows of W. Options
            are passed to parameters of the same name.
        points: As for ``gram_rule``.
        translation, scale, absolute: As for ``gram_rule``.
        symmetric: Whether the order of the updates does not matter.
        robust: True if a robust rule remains robust after this stage: f attackers corrupt no more
            rows than the rule tolerates. "bounded" and False mean the same as for ``rule``, and
            then hold for the composed rule.
    """
    made = partial(PreAggregation, **declared)
    return made if function is None else made(function)


@dataclass(frozen=True, slots=True)
class Stage:
    """A pre-aggregation or a rule, with its fixed options.

    Attributes:
        part: The pre-aggregation or the rule.
        options: Fixed options, by name.
    """

    part: PreAggregation | Rule
    options: Mapping[str, Any]

    @property
    def open(self) -> Mapping[str, inspect.Parameter]:
        """Parameters without a fixed value, except the first parameter (the updates)."""
        own = [*self.part.parameters.items()][1:]
        return {key: parameter for key, parameter in own if key not in self.options}

    def chosen(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of ``options`` that the stage accepts, and the stage's fixed
        options."""
        return {
            **{key: value for key, value in options.items() if key in self.open},
            **self.options,
        }

    def with_f(self, options: Mapping[str, Any], f: int) -> tuple[int, dict[str, Any]]:
        chosen = self.chosen({**options, "f": f})
        return int(chosen.pop("f", f)), chosen


def compose(*parts: PreAggregation | Rule | Stage) -> ComposedRule:
    """Make one rule from pre-aggregations and, last, a rule: ``compose(nnm, krum)(updates, f=2)``.

    An option is passed to every stage that has it. ``Stage(bucketing, {"s": 3})`` fixes
    options of a single stage.
    Raises: AggregationError: The last part is not a rule, or an earlier part is not a
        pre-aggregation.
    """
    for part in parts:
        if not isinstance(part, PreAggregation | Rule | Stage):
            raise AggregationError(
                f"compose takes pre-aggregations and a rule, got {type(part).__name__} {part!r}"[
                    :200
                ],
                "to compose by name, use load('nnm+trimmed_mean'); to make a stage from a "
                "function, use @rule or @pre_aggregation",
            )
    stages = tuple(part if isinstance(part, Stage) else Stage(part, {}) for part in parts)
    kinds = [*[PreAggregation] * (len(stages) - 1), Rule]
    misplaced = [
        stage.part.name
        for stage, kind in zip(stages, kinds, strict=False)
        if not isinstance(stage.part, kind)
    ]
    if misplaced or len(stages) < 2:
        alone = [*misplaced, *[stage.part.name for stage in stages], "nothing"]
        raise AggregationError(
            f"{alone[0]} is at the wrong position in a composition",
            "pre-aggregations come first, one rule comes last: compose(nnm, trimmed_mean), "
            "nnm+trimmed_mean",
        )
    return ComposedRule(stages[:-1], stages[-1])


class ComposedRule(Rule):
    """Pre-aggregations and a rule, as one rule."""

    takes_rows = True

    def __init__(self, before: tuple[Stage, ...], last: Stage) -> None:
        assert isinstance(last.part, Rule)
        self.before, self.last, self.final = before, last, last.part
        self.pre = tuple(
            (stage.part, stage) for stage in before if isinstance(stage.part, PreAggregation)
        )
        parts: list[PreAggregation | Rule] = [last.part, *[part for part, _ in self.pre]]
        points: dict[str, str] = {}
        for part in parts:
            for point in part.points:
                points.setdefault(point, f"{point}?" if point in part.optional else point)
        # One Gram matrix contains the points of all stages. The median is not among them, because
        # it is that of the earlier stages' results.
        points.pop("median", None)
        first = inspect.Parameter("updates", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._gatherer = gatherer = GramRule(self._decision, points=[*points.values()])
        parameters = {each.name: each for each in (first, *gatherer.point_parameters)}
        for stage in (*before, last):
            for key, parameter in stage.open.items():
                parameters.setdefault(key, parameter)
        super().__init__(
            self._call,
            name="+".join(stage.part.name for stage in (*before, last)),
            at_least=self.final.at_least,
            discerning=self.final.discerning,
            translation=all(part.translation for part in parts),
            scale=all(part.scale for part in parts),
            robust=min((part.robust for part in parts), key=(False, "bounded", True).index),
            parameters=parameters,
        )
        gatherer.name, gatherer.parameters, gatherer.needs = self.name, parameters, self.needs
        self.fixed_f = min(
            (int(stage.options["f"]) for stage in (*before, last) if "f" in stage.options),
            default=None,
        )
        self.symmetric = all(part.symmetric for part in parts)
        fixed = [stage.options.get(key) for stage in (*before, last) for key in stage.part.absolute]
        if any(value is not None for value in fixed):
            self.scale, self.robust = False, self.robust and "bounded"

    @property
    def by_sums(self) -> GramRule | None:
        """The composed rule on one Gram matrix, if the last stage decides by sums. None otherwise,
        and if the last stage needs the median, which is that of the earlier stages' results."""
        final = self.final.by_sums
        if not isinstance(final, GramRule) or "median" in final.points:
            return None
        return self._gatherer.by_sums

    def least(
        self, f: int, *, centered: bool = False, options: Mapping[str, Any] | None = None
    ) -> int:
        own, rest = self.last.with_f(options or {}, f)
        need = self.final.least(own, centered=centered, options=rest)
        for part, stage in reversed(self.pre):
            own, rest = stage.with_f(options or {}, f)
            need = part.least(own, need, rest)
        return need

    def __call__(self, updates: Updates, **options: Any) -> Tensor:
        return finite(self._run(updates, options, explained=False).aggregate, updates, self.name)

    def explain(self, updates: Updates, **options: Any) -> Verdict:
        verdict = self._run(updates, options, explained=True)
        finite(verdict.aggregate, updates, self.name)
        return verdict

    def _call(self, updates: Updates, **options: Any) -> Tensor:
        return self(updates, **options)

    def _run(self, updates: Updates, options: Mapping[str, Any], explained: bool) -> Verdict:
        unknown = sorted(set(options) - set(self.parameters))
        if unknown:
            raise AggregationError(
                f"{self.name} has no option {unknown[0]!r}",
                f"it has {', '.join([*self.parameters][1:])}",
            )
        f = whole(self.name, "f", options.get("f", 0))
        given = {
            key: options[key] for key in GIVEN if key in options and key in self._gatherer.points
        }
        rows = check_rows(
            updates,
            self.name,
            f,
            self.least(f, centered=given.get("center") is not None, options=options),
        )
        rows = within_reach(rows, self.name)
        if callable(given.get("gradient")):
            given["gradient"] = given["gradient"]()
        # This also detects non-finite updates.
        gram = self._gatherer.statistics(rows, **given)
        matrix = self._mixing(gram, options)
        if isinstance(self.final, GramRule):
            return self._by_weights(rows, gram, matrix, {**options, **given})
        if isinstance(self.final, CoordinateRule):
            return self._by_columns(rows, gram, matrix, given, options, explained)
        every, part_matrix = with_points(rows, self._vectors(rows, given), matrix)
        verdict = self.final.explain(
            kernels.mixed(every, part_matrix), **self.last.chosen({**options, **given})
        )
        return self._verdict(rows, verdict.aggregate, matrix, verdict.weights.numpy())

    def _vectors(self, rows: Rows, given: Mapping[str, Any]) -> dict[str, Tensor]:
        return self._gatherer.vectors_of(rows, given)

    def _by_weights(
        self, rows: Rows, gram: Gram, matrix: FloatArray, options: Mapping[str, Any]
    ) -> Verdict:
        assert isinstance(self.final, GramRule)
        points = self._vectors(rows, options)
        if "median" in self.final.points and options.get("center") is None:
            # The median of the earlier stages' results, which are not available before.
            every, part = with_points(rows, points, matrix)
            n = len(part)
            points["median"] = kernels.between(every, *middle(n), matrix=part)[0]
            gram = self._gatherer.finite(statistics(rows, points), rows)
            matrix = np.concatenate([matrix, np.zeros((n, 1))], axis=1)
        decision = self._final_decision(gram, matrix, options)
        if self.final.last_step is None:
            own = self._of_updates(gram, matrix, decision, int(options.get("f", 0)))
            return verdict_of(combined(rows, points, own.weights), own)
        chosen = self.last.chosen(options)
        kept = self.final.finish(rows, points, decision.weights, matrix, chosen, survivors=True)
        shares = surviving_shares(decision, kept, len(matrix))
        return self._verdict(rows, kept.aggregate, matrix, shares)

    def _decision(self, gram: Gram, **options: Any) -> Decision:
        """Run all stages on a Gram matrix, and return the decision on the original updates."""
        matrix = self._mixing(gram, options)
        decision = self._final_decision(gram, matrix, options)
        return self._of_updates(gram, matrix, decision, int(options.get("f", 0)))

    def _mixing(self, gram: Gram, options: Mapping[str, Any]) -> FloatArray:
        """Return ``(k, n + points)``: the weights of updates and points in each of the k rows that
        the last stage aggregates."""
        matrix = np.eye(gram.n, len(gram.products))
        seen = gram.with_equal_twins()
        for part, stage in self.pre:
            made = part.matrix(seen, **stage.chosen(options))
            matrix = _product(made, matrix, seen.n)
            seen = seen.mixed(made)
        return matrix

    def _final_decision(
        self, gram: Gram, matrix: FloatArray, options: Mapping[str, Any]
    ) -> Decision:
        """Return the decision of the last stage on the k sums with the weights ``matrix``."""
        assert isinstance(self.final, GramRule)
        chosen = {
            key: value
            for key, value in self.last.chosen(options).items()
            if key not in GIVEN or key not in self.final.points
        }
        return self.final.decide(gram.mixed(matrix), **chosen)

    def _of_updates(self, gram: Gram, matrix: FloatArray, decision: Decision, f: int) -> Decision:
        """Convert a decision on the rows of ``matrix`` into a decision on the original updates."""
        k = len(matrix)
        weights = decision.weights[:k] @ matrix
        weights[gram.n :] += decision.weights[k:]
        shares = _shared(np.asarray(decision.shares), matrix, gram.n).numpy()
        return Decision(weights, outlyingness_about(gram, weights, f), shares)

    def _by_columns(
        self,
        rows: Rows,
        gram: Gram,
        matrix: FloatArray,
        given: Mapping[str, Any],
        options: Mapping[str, Any],
        explained: bool,
    ) -> Verdict:
        assert isinstance(self.final, CoordinateRule)
        every, part = with_points(rows, self._vectors(rows, given), matrix)
        kept = self.final.keep(Columns(every, part, survivors=explained), self.last.chosen(options))
        shares = np.full(len(matrix), 1.0) if kept.survived is None else kept.survived
        if not explained:
            ones = torch.ones(rows.n, dtype=torch.float64)
            return Verdict(kept.aggregate, ones / rows.n, ones)
        return self._verdict(rows, kept.aggregate, matrix, shares)

    def _verdict(
        self, rows: Rows, aggregate: Tensor, matrix: FloatArray, shares: FloatArray
    ) -> Verdict:
        ones = torch.ones(rows.n, dtype=torch.float64)
        told = standing_out(rows, aggregate) if self.discerning else ones
        return Verdict(aggregate, _shared(shares, matrix, rows.n), told)


def _product(made: FloatArray, matrix: FloatArray, n: int) -> FloatArray:
    """Return the weights of the original rows and points in sums of sums. ``made``: weights of the
    inner sums; ``matrix``: weights of the original rows in each inner sum."""
    whole = made[:, :n] @ matrix
    beside = made.shape[1] - n
    if beside:
        whole[:, -beside:] += made[:, n:]
    return whole


def _shared(shares: FloatArray, matrix: FloatArray, n: int) -> Tensor:
    """Convert shares of the rows of ``matrix`` into shares of the original updates."""
    own = shares @ matrix[:, :n]
    total = float(own.sum())
    return torch.from_numpy(own / total if total > 0 else own)
