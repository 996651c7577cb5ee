"""Rule of a simulated node, on toy vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from gossip.core import PeerId, Row, events

from .toy_payloads import Values, Vector, payload_of, payload_of_values, weighted_mean


class RuleResult(NamedTuple):
    """An aggregate ``(d,)``, and its rule's verdict on each row: its weight, and its outlyingness
    (1: typical)."""

    aggregate: Values
    weights: tuple[float, ...]
    outlyingness: tuple[float, ...]
    length: float = 0.0  # of an update, if the rule returns it


class RuleRefusal(NamedTuple):
    """The rule has no result for the updates; ``reason`` is its text."""

    reason: str


Reducer = Callable[..., Values | RuleResult | RuleRefusal]
"""``(rows of (d,), samples of each, f, previous, round_id) -> (d,)``; a bare vector has no
verdicts. f is that of the present request: it falls as Byzantine peers are detected. previous is
the last aggregate, if there is one. A rule that returns lengths receives ``usual=`` of recent
rounds."""

Step = Callable[[events.Aggregate], events.Aggregated]
"""Runs the steps ``measure``, ``decide`` and ``combine`` of a rule with shards that decide
together."""


@dataclass(frozen=True, slots=True)
class ToyRule:
    """Aggregates updates.

    Args:
        step: Runs the rule if the shards decide together.
        second_reading: An update from its owner's memory at the time at which the rule reads it,
            ``(row, round, now) -> update``.
    """

    reducer: Reducer = weighted_mean
    step: Step | None = None
    second_reading: Callable[[Row, int, float], Vector] | None = None

    def run(self, ask: events.Aggregate, now: float, peer: PeerId) -> events.Aggregated:
        """Aggregate the updates as they are now in memory, for ``peer``. As in a node, updates
        that are no longer finite are left out and have no weight."""
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
        """Return the outlyingness of the rows outside, as if the rule had received all rows."""
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
