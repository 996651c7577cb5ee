"""Gram rules for updates that are cut into shards, each with its own server: measure, decide,
combine.

Every server measures its shard. One server adds up the measurements and decides. Every server then
aggregates its shard with the weights of that decision. Measurements are sent as a flat float64
array, ``[resolution, remembers, upper triangle of the products]``. ``remembers`` is 1 if the server
has a last aggregate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gossip.errors import AggregationError, TooFewUpdates

from .base import Updates, within_reach
from .gram import Decision, FloatArray, Gram
from .gram_rules import GramRule, precision_of
from .kernels import Rows
from .registry import BoundRule

_AHEAD = 2  # elements before the triangle

Part = tuple[Sequence[int], FloatArray]
"""Chosen rows of a shard, and the measurements of all its rows."""


class ShardedRule:
    """The three steps of a rule that decides ``by_sums``.

    Each server measures its shard with the judge's gradient from its own trainer, so the gradient
    of a round consists of shards from several trainers.

    All servers measure the same points in the same order. If a server has no last aggregate (after
    a state transfer), its measurements report this, and the decision uses no last aggregate.
    """

    def __init__(self, bound: BoundRule) -> None:
        rule = bound.rule.by_sums
        assert isinstance(rule, GramRule), f"{bound.name} does not add up over shards"
        self.bound, self.rule = bound, rule
        self._remembers = "previous" in rule.points
        ends = ("origin", "previous", "center")
        self.points = (
            *["origin"] * (self._remembers or "origin" in rule.points),
            *[point for point in rule.points if point not in ends],
            *["previous"] * self._remembers,
        )

    def measure(
        self,
        updates: Updates,
        previous: Tensor | None = None,
        gradient: Tensor | None = None,
        inside: Sequence[int] | None = None,
    ) -> FloatArray:
        """Return the measurements of these columns that a decision needs.

        Args:
            updates: n vectors ``(d,)`` or ``(n, d)``, all finite, at least one: those of a shard.
            previous: ``(d,)``: the last aggregate of the same shard.
            gradient: ``(d,)``: the judge's gradient, of the same shard.
            inside: Rows from which points such as the median are computed; None means all.
        Raises: AggregationError: The rule needs a gradient, and it is missing or invalid.
        """
        rows = within_reach(Rows.of(updates), self.rule.name)
        vectors = self._vectors(_chosen(rows, inside), previous, gradient)
        gram = self.rule.gram_of(rows, vectors)
        place, there = rows.n + len(self.points), rows.n + len(vectors)
        products = np.zeros((place, place))
        products[:there, :there] = gram.products
        head = [gram.resolution, float("previous" in vectors)]
        return np.concatenate([head, products[np.triu_indices(place)]])

    def decide(self, parts: Sequence[Part], *, f: int, round_id: int = 0) -> Decision:
        """Return one decision for all shards: the weights of the chosen rows, in their order, and
        of ``points``.

        Raises: AggregationError: The measurements of a shard have the wrong size, or allow no
            decision.
        """
        whole: Gram | None = None
        grams = [self._unpacked(measured) for _, measured in parts]
        forgotten = self._remembers and not all(remembers for _, remembers in grams)
        with np.errstate(all="ignore"):  # an attacker's measurements may overflow
            for (chosen, _), (gram, _) in zip(parts, grams, strict=True):
                if max(chosen, default=0) >= gram.n:
                    raise AggregationError(
                        f"{self.rule.name}: a part of {gram.n} updates has no update {max(chosen)}"
                    )
                one = (_without_last_point(gram) if forgotten else gram).rows(chosen)
                whole = one if whole is None else whole + one
            assert whole is not None
            # The gradient is only needed to measure; the decision uses the inner products.
            options = self.bound.chosen({"f": f, "round_id": round_id, "gradient": whole})
            options.pop("gradient", None)
            tolerated = int(options.get("f", f))
            need = self.bound.rule.least(tolerated, options=options)
            if whole.n < need:
                raise TooFewUpdates(self.rule.name, tolerated, need, whole.n)
            try:
                decision = self.rule.decide(whole, **options)
            except (ArithmeticError, np.linalg.LinAlgError) as error:
                raise AggregationError(
                    f"{self.rule.name}: the parts are not inner products of vectors: {error}"
                ) from error
        weights = np.concatenate([decision.weights, np.zeros(int(forgotten))])
        self._check(weights, whole.n)
        return Decision(weights, decision.outlyingness, decision.shares)

    def combine(
        self,
        updates: Updates,
        weights: Sequence[float],
        previous: Tensor | None = None,
        gradient: Tensor | None = None,
        inside: Sequence[int] | None = None,
    ) -> Tensor:
        """Return ``(d,)``: the sum of these columns and points, with the weights of a decision.

        Args:
            weights: Weights of the rows, then of ``points``.
            inside: As for ``measure``.
        Raises: AggregationError: The weights are not valid.
        """
        rows = within_reach(Rows.of(updates), self.rule.name)
        given = np.asarray(weights, dtype=np.float64)
        if given.shape != (rows.n + len(self.points),):
            raise AggregationError(
                f"{self.rule.name}: {len(given)} weights for {rows.n} updates, points {self.points}"
            )
        self._check(given, rows.n)
        beside = {
            point: weight
            for point, weight in zip(self.points, given[rows.n :], strict=True)
            if weight
        }
        if "previous" in beside and previous is None:
            raise AggregationError(
                f"{self.rule.name}: the last aggregate has a weight, but this server has none"
            )
        # Do not compute a point without a weight, such as the median in most rules.
        vectors = (
            self._vectors(_chosen(rows, inside), previous, gradient, frozenset(beside))
            if beside
            else {}
        )
        used = np.concatenate([given[: rows.n], [beside[point] for point in vectors]])
        return self.rule.finish(rows, vectors, used, None, {}).aggregate

    def _vectors(
        self,
        rows: Rows,
        previous: Tensor | None,
        gradient: Tensor | None,
        wanted: frozenset[str] | None = None,
    ) -> dict[str, Tensor]:
        """Return the points of these columns. ``wanted``: names of the points to return; None means
        all available ones."""
        given = {"previous": previous, "gradient": gradient}
        found = self.rule.vectors_of(
            rows,
            {point: vector for point, vector in given.items() if vector is not None},
            wanted=wanted,
        )
        if "origin" in self.points:
            found = {
                "origin": torch.zeros(1, dtype=rows.dtype, device=rows.device).expand(rows.d),
                **found,
            }
        return {
            point: found[point]
            for point in self.points
            if point in found and (wanted is None or point in wanted)
        }

    def _unpacked(self, measured: FloatArray) -> tuple[Gram, bool]:
        """Return the Gram matrix in measurements, and whether it includes the last aggregate.
        Raises AggregationError."""
        triangle = measured[_AHEAD:]
        width = int((np.sqrt(8.0 * len(triangle) + 1) - 1) / 2)
        n = width - len(self.points)
        if n < 1 or width * (width + 1) // 2 != len(triangle):
            raise AggregationError(
                f"{self.rule.name}: measurements of length {len(measured)} fit no number of updates"
            )
        products = np.zeros((width, width))
        upper = np.triu_indices(width)
        products[upper] = triangle
        products.T[upper] = triangle
        resolution = max(0.0, float(measured[0]))
        return Gram(products, n, self.points, resolution, precision_of(torch.float32)), measured[
            1
        ] == 1.0

    def _check(self, weights: FloatArray, n: int) -> None:
        # The deciding server may be Byzantine. Its weights must not scale the aggregate beyond the
        # sum of the updates.
        counted = (
            np.delete(weights, n + self.points.index("origin"))
            if "origin" in self.points
            else weights
        )
        if not float(np.abs(counted).sum()) <= n + 1e-6:
            raise AggregationError(
                f"{self.rule.name}: weights of {float(np.abs(counted).sum()):.3g} in total, for "
                f"{n} updates"
            )


def _chosen(rows: Rows, chosen: Sequence[int] | None) -> Rows:
    return rows if chosen is None else Rows.of([rows.row(at) for at in chosen])


def _without_last_point(gram: Gram) -> Gram:
    return replace(gram, products=gram.products[:-1, :-1], points=gram.points[:-1])
