"""Weights of a stage's members by their samples, because each has a different part of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gossip.core import Aggregate, Row


def by_samples(work: Aggregate) -> Aggregate:
    """Return the work with scaled rows: their mean is the mean over all samples. The factor of a
    row is the number of rows times its share of the samples. Rules themselves do not weigh rows by
    samples."""
    total = sum(row.samples for row in work.rows)
    if not total or all(row.samples * len(work.rows) == total for row in work.rows):
        return work
    scale = len(work.rows) / total
    scaled = tuple([_scaled(row, row.samples * scale) for row in work.rows])
    return replace(work, rows=scaled)


def _scaled(row: Row, factor: float) -> Row:
    data = row.payload.data * np.float32(factor)
    return replace(row, payload=replace(row.payload, data=data))
