"""Pre-aggregations, and rules made of several stages: ``nnm+trimmed_mean``, ``compose(nnm, krum)``.

A pre-aggregation is a matrix W found from the Gram matrix G: the rule after it works on the rows W
X. A Gram rule needs only W G W^T, without another read of the updates. For a coordinate rule the
sums are computed block by block in cache. Weights and outlyingness of the result are those of the
original updates.
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
    """Stage before a rule: ``(gram, *, f, ...) -> W``, ``(k, n)`` or ``(k, n + points)``, each row
    adding up to 1."""

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
        at_least: The smallest number of updates for a given f (and options, by name).
        inputs: Number of updates for ``rows`` rows (and options, by name).
        points: As for ``gram_rule``.
        translation, scale, absolute: As for ``gram_rule``.
        symmetric: Whether the order of the updates does not matter.
        robust: A robust rule remains robust after it: f attackers corrupt no more rows than the
            rule tolerates. "bounded" and False as for ``rule``, and also bind the rule that
            follows.
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
        """Parameters that are not fixed, without the first."""
        own = [*self.part.parameters.items()][1:]
        return {key: parameter for key, parameter in own if key not in self.options}

    def chosen(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of ``options`` that the stage takes, and the fixed ones."""
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
    the options of one.
    Raises: AggregationError: The last is not a rule, or another one is not a pre-aggregation.
    """
    for part in parts:
        if not isinstance(part, PreAggregation | Rule | Stage):
            raise AggregationError(
                f"compose takes pre-aggregations and a rule, got {type(part).__name__} {part!r}"[
                    :200
                ],
                "load('nnm+trimmed_mean') reads text; @rule and @pre_aggregation make stages of "
                "functions",
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
        # The points of all stages, in one Gram matrix. The median needs the earlier stages.
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
        """The stages on one Gram matrix, if the last one is a rule that decides by sums. None if
        that rule needs the median, which is known only after the earlier stages have run."""
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
            # The median of the results of earlier stages, which are available only here.
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
        """Return the decision of all stages about the updates behind a Gram matrix."""
        matrix = self._mixing(gram, options)
        decision = self._final_decision(gram, matrix, options)
        return self._of_updates(gram, matrix, decision, int(options.get("f", 0)))

    def _mixing(self, gram: Gram, options: Mapping[str, Any]) -> FloatArray:
        """Return ``(k, n + points)``: the combinations of updates for the last stage."""
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
        """Return the decision of the last stage, on the rows that ``matrix`` makes."""
        assert isinstance(self.final, GramRule)
        chosen = {
            key: value
            for key, value in self.last.chosen(options).items()
            if key not in GIVEN or key not in self.final.points
        }
        return self.final.decide(gram.mixed(matrix), **chosen)

    def _of_updates(self, gram: Gram, matrix: FloatArray, decision: Decision, f: int) -> Decision:
        """Convert a decision on the rows of ``matrix`` into one on the original updates."""
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
    """Return the matrix that computes the sums ``made`` of the rows of ``matrix`` (and of the same
    points) from the original rows."""
    whole = made[:, :n] @ matrix
    beside = made.shape[1] - n
    if beside:
        whole[:, -beside:] += made[:, n:]
    return whole


def _shared(shares: FloatArray, matrix: FloatArray, n: int) -> Tensor:
    """Return the shares of the original updates, from shares of the rows of ``matrix``."""
    own = shares @ matrix[:, :n]
    total = float(own.sum())
    return torch.from_numpy(own / total if total > 0 else own)
