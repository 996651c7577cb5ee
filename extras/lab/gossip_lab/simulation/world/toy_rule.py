"""Aggregation rule of a simulated node, for toy vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from gossip.core import PeerId, Row, events

from .toy_payloads import Values, Vector, payload_of, payload_of_values, weighted_mean


class RuleResult(NamedTuple):
    """Aggregate ``(d,)`` of a rule, and its verdict on each row: the weight, and the outlyingness
    (1 is typical)."""

    aggregate: Values
    weights: tuple[float, ...]
    outlyingness: tuple[float, ...]
    length: float = 0.0  # typical length of an update, if the rule returns it


class RuleRefusal(NamedTuple):
    """The rule has no result for these updates, for the given ``reason``."""

    reason: str


Reducer = Callable[..., Values | RuleResult | RuleRefusal]
"""Function ``(rows, samples, f, previous, round_id) -> result``. ``rows`` are vectors ``(d,)``, and
``samples`` has the number of samples of each row. ``f`` is that of the present request; it is lower
after Byzantine peers were detected. ``previous`` is the last aggregate, or None. If the rule
returns lengths, it also receives the usual length of recent rounds as ``usual``. A result that is
only a vector ``(d,)`` has no verdicts."""

Step = Callable[[events.Aggregate], events.Aggregated]
"""Function that runs the steps ``measure``, ``decide`` and ``combine`` of a rule with shards that
decide together."""


@dataclass(frozen=True, slots=True)
class ToyRule:
    """Aggregation on a simulated node.

    Args:
        step: Function for rules with shards that decide together.
        second_reading: Function ``(row, round, now) -> update``: the update as it is in its owner's
            memory when the rule reads it.
    """

    reducer: Reducer = weighted_mean
    step: Step | None = None
    second_reading: Callable[[Row, int, float], Vector] | None = None

    def run(self, ask: events.Aggregate, now: float, peer: PeerId) -> events.Aggregated:
        """Aggregate the updates as they are in memory at present, on the node of ``peer``. As in a
        real node, updates that are no longer finite are left out and get the weight 0."""
        if self.second_reading is None or ask.step != "whole" or ask.mix:
            return self._aggregate(ask)
        rows = [
            row
            if row.peer == peer
            else replace(row, payload=payload_of(self.second_reading(row, ask.round_id, now)))
            for row in ask.rows
        ]
        counted = [row.payload.finite for row in rows]
        if rows and not any(counted):
            return events.Aggregated(ask.ticket, None, reason=events.NO_ROWS)
        left = tuple([row for row in rows if row.payload.finite])
        own = None if ask.own is None else sum(counted[: ask.own])
        answer = self._aggregate(replace(ask, rows=left, own=own))
        if answer.payload is None:
            return answer
        weights, far = iter(answer.weights), iter(answer.outlyingness)
        return replace(
            answer,
            weights=tuple([next(weights) if counts else 0.0 for counts in counted]),
            outlyingness=tuple([next(far) if counts else 1.0 for counts in counted]),
        )

    def _aggregate(self, ask: events.Aggregate) -> events.Aggregated:
        rows: list[list[float]] = [row.payload.data.tolist() for row in ask.rows]
        samples = [row.samples for row in ask.rows]
        if not rows or sum(samples) == 0:
            return events.Aggregated(ask.ticket, None, reason="nothing to aggregate")
        if ask.step != "whole":
            assert self.step is not None, "``step`` is missing: shards decide together"
            return self.step(ask)
        if ask.mix:
            assert ask.own is not None, "mixing is centred on the own row"
            center = rows[ask.own]
            rows = [[value - own for value, own in zip(row, center, strict=True)] for row in rows]
            samples = [1] * len(rows)
        previous = ask.previous.data.tolist() if ask.previous is not None else None
        usual = {"usual": ask.usual} if ask.usual else {}
        found = self.reducer(rows, samples, ask.f, previous, ask.round_id, **usual)
        if isinstance(found, RuleRefusal):
            return events.Aggregated(ask.ticket, None, reason=found.reason)
        if not isinstance(found, RuleResult):
            everything = sum(samples)
            found = RuleResult(
                found, tuple([weight / everything for weight in samples]), (1.0,) * len(rows)
            )
        values = found.aggregate
        if ask.own_share:
            assert ask.own is not None, "a share of the own row, which does not exist"
            pairs = zip(values, rows[ask.own], strict=True)
            values = [value + ask.own_share * (own - value) for value, own in pairs]
        result = payload_of_values(values, digest=True)
        if not result.finite:
            return events.Aggregated(ask.ticket, None, reason="the aggregate is not finite")
        outside = self._measure_outside(ask, previous)
        return events.Aggregated(
            ask.ticket,
            result,
            found.weights,
            found.outlyingness,
            outside=outside,
            length=found.length,
        )

    def _measure_outside(
        self, ask: events.Aggregate, previous: list[float] | None
    ) -> tuple[float, ...]:
        """Return the outlyingness of the rows in ``ask.outside``, computed as if the rule had
        received all rows."""
        if not ask.outside:
            return ()
        everybody = sorted((*ask.rows, *ask.outside), key=lambda row: row.peer)
        values = [row.payload.data.tolist() for row in everybody]
        samples = [row.samples for row in everybody]
        found = self.reducer(values, samples, ask.f, previous, ask.round_id)
        if isinstance(found, RuleRefusal):
            return ()
        if not isinstance(found, RuleResult):
            return (1.0,) * len(ask.outside)
        far = zip(everybody, found.outlyingness, strict=True)
        return tuple([value for row, value in far if row in ask.outside])
