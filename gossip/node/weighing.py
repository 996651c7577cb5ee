"""Applies weights to the rows of an aggregation, because rules themselves have none. In a pipeline,
each peer of a stage is weighed by its number of samples in the step. In gossip rounds, each
neighbour is weighed by the round's plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gossip.core import Aggregate, Payload, Row
from gossip.vectors import is_finite


def by_samples(work: Aggregate) -> Aggregate:
    """Return the work with scaled rows, so that the mean of the rows is the mean over all samples.
    The factor of a row is the number of rows times the row's share of the samples."""
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
    """Return the work with the vectors of neighbours moved towards the local vector: each
    difference from it is multiplied by ``Row.pull``. A vector that becomes non-finite is left as it
    was."""
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
