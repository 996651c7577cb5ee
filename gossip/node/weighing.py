"""Members of a stage count by their samples: what each has of a step is another part of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gossip.core import Aggregate, Row


def by_samples(work: Aggregate) -> Aggregate:
    """With rows such that their mean is the mean over all samples: each times the number of rows
    and its part of their samples. Rules weigh no rows by samples themselves."""
    total = sum(row.samples for row in work.rows)
    if not total or all(row.samples * len(work.rows) == total for row in work.rows):
        return work
    scale = len(work.rows) / total
    scaled = tuple([_scaled(row, row.samples * scale) for row in work.rows])
    return replace(work, rows=scaled)


def _scaled(row: Row, factor: float) -> Row:
    data = row.payload.data * np.float32(factor)
    return replace(row, payload=replace(row.payload, data=data))
