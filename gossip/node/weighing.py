"""Weights of rows, which rules do not support. In a pipeline, members of a stage are weighed by
their samples, because each has a different part of a step. In gossip rounds, neighbours are weighed
by the plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gossip.core import Aggregate, Payload, Row
from gossip.vectors import is_finite


def by_samples(work: Aggregate) -> Aggregate:
    """Return the work with scaled rows, so that the mean of the rows is the mean over all samples.
    The factor of a row is the number of rows times its share of the samples. Rules themselves do
    not weigh rows by samples."""
    total = sum(row.samples for row in work.rows)
    if not total or all(row.samples * len(work.rows) == total for row in work.rows):
        return work
    scale = len(work.rows) / total
    scaled = tuple([_scaled(row, row.samples * scale) for row in work.rows])
    return replace(work, rows=scaled)


def _scaled(row: Row, factor: float) -> Row:
    data = row.payload.data * np.float32(factor)
    return replace(row, payload=replace(row.payload, data=data))


def by_pull(work: Aggregate) -> Aggregate:
    """Return the work with the vectors of neighbours moved towards the local one by ``Row.pull``. A
    non-finite vector is not moved, so that the rule detects it."""
    if work.own is None or all(row.pull == 1.0 for row in (*work.rows, *work.outside)):
        return work
    own = work.rows[work.own].payload.data
    rows, outside = ([_pulled(row, own) for row in some] for some in (work.rows, work.outside))
    return replace(work, rows=tuple(rows), outside=tuple(outside))


def _pulled(row: Row, own: np.ndarray) -> Row:
    if row.pull == 1.0:
        return row
    data = (row.payload.data - own) * np.float32(row.pull) + own
    payload = Payload(data, data.nbytes) if is_finite(data) else row.payload
    return replace(row, payload=payload, pull=1.0)
