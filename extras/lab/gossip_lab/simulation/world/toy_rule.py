"""Aggregation on a simulated node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gossip.core import PeerId, Row, events

from .toy_payloads import Vector, payload_of, payload_of_values, weighted_mean

Aggregator = Callable[[events.Aggregate], events.Aggregated]
"""Function that runs a rule on the rows of a request, or a step of a rule with shards that decide
together."""


def mean(ask: events.Aggregate) -> events.Aggregated:
    """Return the mean of the rows, weighted by their samples. In contrast to the rule of real runs,
    it needs no torch."""
    if not ask.rows:
        return events.Aggregated(ask.ticket, None, reason=events.NO_ROWS)
    rows: list[list[float]] = [row.payload.data.tolist() for row in ask.rows]
    samples = [1 if ask.mix else row.samples for row in ask.rows]
    own = None if ask.own is None else rows[ask.own]
    if ask.mix:
        assert own is not None, "mixing is centred on the own row"
        rows = [[value - center for value, center in zip(row, own, strict=True)] for row in rows]
    values = weighted_mean(rows, samples)
    if ask.own_share:
        assert own is not None, "a share of the own row, which does not exist"
        pairs = zip(values, own, strict=True)
        values = [value + ask.own_share * (here - value) for value, here in pairs]
    result = payload_of_values(values, digest=True)
    if not result.finite:
        return events.Aggregated(ask.ticket, None, reason="non_finite result")
    everything = sum(samples)
    return events.Aggregated(
        ask.ticket,
        result,
        tuple([weight / everything for weight in samples]),
        (1.0,) * len(rows),
        outside=(1.0,) * len(ask.outside),
    )


@dataclass(frozen=True, slots=True)
class ToyRule:
    """Aggregation on a simulated node.

    Args:
        aggregate: Rule of the run.
        second_reading: Function ``(row, round, now) -> update``: the update as it is in its owner's
            memory when the rule reads it.
    """

    aggregate: Aggregator = mean
    second_reading: Callable[[Row, int, float], Vector] | None = None

    def run(self, ask: events.Aggregate, now: float, peer: PeerId) -> events.Aggregated:
        """Aggregate the updates as they are in memory at present, on the node of ``peer``. As in a
        real node, updates that are no longer finite are left out and get the weight 0."""
        if self.second_reading is None or ask.step != "whole" or ask.mix:
            return self.aggregate(ask)
        rows = [
            row
            if row.peer == peer
            else replace(row, payload=payload_of(self.second_reading(row, ask.round_id, now)))
            for row in ask.rows
        ]
        counted = [row.payload.finite for row in rows]
        left = tuple([row for row in rows if row.payload.finite])
        own = None if ask.own is None else sum(counted[: ask.own])
        answer = self.aggregate(replace(ask, rows=left, own=own))
        if answer.payload is None:
            return answer
        weights, far = iter(answer.weights), iter(answer.outlyingness)
        return replace(
            answer,
            weights=tuple([next(weights) if counts else 0.0 for counts in counted]),
            outlyingness=tuple([next(far) if counts else 1.0 for counts in counted]),
        )
