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
from typing import Any, overload

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
    whole,
    within_reach,
)
from .columns import Columns
from .gram import Decision, FloatArray, Gram, in_typical
from .gram_rules import GIVEN, GramRule, combined, statistics, typical, with_points
from .kernels import Rows, middle


class PreAggregation:
    """Stage before a rule: ``(gram, *, f, ...) -> W``, ``(k, n)`` or ``(k, n + points)``, each row
    adding up to 1."""

    def __init__(
        self,
        function: Callable[..., FloatArray],
        name: str,
        at_least: Callable[..., int],
        inputs: Callable[..., int],
        points: Sequence[str],
        translation: bool,
        scale: bool,
        symmetric: bool,
        absolute: Sequence[str],
        robust: Robust = True,
    ) -> None:
        self.__doc__, self.__name__, self.__module__ = function.__doc__, name, function.__module__
        self.function, self.name = function, name
        self.at_least, self.inputs = at_least, inputs
        self.points = tuple(point.removesuffix("?") for point in points)
        self.optional = frozenset(
            point.removesuffix("?") for point in points if point.endswith("?")
        )
        self.translation, self.scale, self.symmetric, self.absolute = (
            translation,
            scale,
            symmetric,
            frozenset(absolute),
        )
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


@overload
def pre_aggregation(function: Callable[..., FloatArray]) -> PreAggregation: ...
@overload
def pre_aggregation(
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
) -> Callable[[Callable[..., FloatArray]], PreAggregation]: ...
def pre_aggregation(
    function: Callable[..., FloatArray] | None = None,
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

    def decorate(function: Callable[..., FloatArray]) -> PreAggregation:
        own = name or str(getattr(function, "__name__", "pre_aggregation"))
        return PreAggregation(
            function, own, at_least, inputs, points, translation, scale, symmetric, absolute, robust
        )

    return decorate(function) if function is not None else decorate


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
    *before, last = stages or (Stage(_nothing(), {}),)
    wrong = [stage.part.name for stage in before if not isinstance(stage.part, PreAggregation)]
    if wrong or not isinstance(last.part, Rule) or not before:
        raise AggregationError(
            f"{wrong[0] if wrong else last.part.name} is at the wrong position in a composition",
            "pre-aggregations come first, one rule comes last: compose(nnm, trimmed_mean), "
            "nnm+trimmed_mean",
        )
    return ComposedRule(tuple(before), last)


def _nothing() -> PreAggregation:
    return PreAggregation(
        lambda gram: np.eye(gram.n),
        "nothing",
        plain_bound,
        lambda rows: rows,
        (),
        True,
        True,
        True,
        (),
    )


class ComposedRule(Rule):
    """Pre-aggregations and a rule, as one rule."""

    takes_rows = True

    def __init__(self, before: tuple[Stage, ...], last: Stage) -> None:
        assert isinstance(last.part, Rule)
        self.before, self.last, self.final = before, last, last.part
        self.pre = tuple(
            (stage.part, stage) for stage in before if isinstance(stage.part, PreAggregation)
        )
        first = inspect.Parameter("updates", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters: dict[str, inspect.Parameter] = {"updates": first}
        points = [*self.final.points] if isinstance(self.final, GramRule) else []
        optional = set(self.final.optional) if isinstance(self.final, GramRule) else set()
        for part, _ in self.pre:
            optional |= part.optional - set(points)
            points += [point for point in part.points if point not in points]
        for point in points:
            if point in GIVEN:
                default = (
                    None if point in optional or point == "previous" else inspect.Parameter.empty
                )
                parameters[point] = inspect.Parameter(
                    point, inspect.Parameter.KEYWORD_ONLY, default=default
                )
        for stage in (*before, last):
            for key, parameter in stage.open.items():
                parameters.setdefault(key, parameter)
        super().__init__(
            self._call,
            "+".join(stage.part.name for stage in (*before, last)),
            self.final.at_least,
            self.final.discerning,
            translation=self.final.translation and all(part.translation for part, _ in self.pre),
            scale=self.final.scale and all(part.scale for part, _ in self.pre),
            robust=min(
                (self.final.robust, *(part.robust for part, _ in self.pre)),
                key=(False, "bounded", True).index,
            ),
            parameters=parameters,
        )
        self.fixed_f = min(
            (int(stage.options["f"]) for stage in (*before, last) if "f" in stage.options),
            default=None,
        )
        self.symmetric = self.final.symmetric and all(part.symmetric for part, _ in self.pre)
        fixed = [stage.options.get(key) for stage in (*before, last) for key in stage.part.absolute]
        if any(value is not None for value in fixed):
            self.scale, self.robust = False, self.robust and "bounded"
        # The points of all stages, in one Gram matrix.
        gatherer = GramRule(self._decision, self.name, plain_bound, True, parameters=parameters)
        gatherer.points, gatherer.optional = (
            tuple(point for point in points if point != "median"),
            frozenset(optional),
        )
        self._gatherer = gatherer

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
        gram = self._gatherer.statistics(rows, None, None, **given)
        if self.by_sums is not None:
            return self._by_sums(rows, gram, {**options, **given})
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
            return _verdict_of(combined(rows, points, own.weights), own)
        chosen = self.last.chosen(options)
        kept = self.final.finish(rows, points, decision.weights, matrix, chosen, survivors=True)
        shares = np.asarray(decision.shares)
        if kept.survived is not None:
            shares = np.zeros(len(matrix))
            shares[np.flatnonzero(decision.weights[: len(matrix)])] = (
                kept.survived / kept.survived.sum()
            )
        return self._verdict(rows, kept.aggregate, matrix, shares)

    def _by_sums(self, rows: Rows, gram: Gram, options: Mapping[str, Any]) -> Verdict:
        """Return the verdict from one Gram matrix and a weighted sum, as for updates that are cut
        in shards."""
        decision = self._decision(gram, **options)
        weights = decision.weights
        return _verdict_of(combined(rows, self._vectors(rows, options), weights), decision)

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
        distances = gram.distances_to(weights)
        told = in_typical(distances, gram.resolution, typical(distances, f))
        shares = _shared(np.asarray(decision.shares), matrix, gram.n).numpy()
        return Decision(weights, told, shares)

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


def _verdict_of(aggregate: Tensor, decision: Decision) -> Verdict:
    shares, told = np.asarray(decision.shares), np.asarray(decision.outlyingness)
    return Verdict(aggregate, torch.from_numpy(shares), torch.from_numpy(told))


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
