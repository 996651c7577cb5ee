"""Result of a played world: tidy rows, and the curves in them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .mishaps import Mishaps
from .moments import Moment
from .presence import slice_of
from .tasks import Task

CHUNK = 2**10
METRICS = (
    "worst",
    "mean",
    "p10",
    "loss",
    "consensus_distance",
    "quarantined",
    "falsely_quarantined",
    "present",
    "samples",
)
"""Metrics of the rows.

- ``worst``, ``mean``, ``p10``: accuracy (0 to 1) on the test samples, of the worst, the mean and
  the tenth percentile of present honest replicas; ``loss``: their mean loss.
- ``consensus_distance``: root mean square distance of their parameters from the mean, over its
  norm.
- ``quarantined``: share of pairs of a present honest peer and a Byzantine one in which the first
  has the second in quarantine.
- ``falsely_quarantined``: the same share for pairs of a present honest peer and another honest one.
- ``present``: present peers; ``samples``: samples in all updates that were used so far.
"""


FALLING = ("loss", "consensus_distance", "falsely_quarantined")
"""Metrics for which lower values are better."""


class Row(NamedTuple):
    """One value of a run.

    Attributes:
        seed: Seed of the world.
        round: Number of rounds so far.
        virtual_s: Virtual time in seconds.
        bytes: Bytes of payloads that were sent so far.
        metric: One of ``METRICS``.
        value: Its value.
    """

    seed: int
    round: int
    virtual_s: float
    bytes: int
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class PlayedRun:
    """Result of a played world.

    Attributes:
        rows: One row per evaluated round and metric.
    """

    rows: tuple[Row, ...]

    def curve(self, metric: str, by: str = "round") -> list[tuple[float, float]]:
        """Return the points of a metric over ``round``, ``virtual_s`` or ``bytes``."""
        return [(getattr(row, by), row.value) for row in self.rows if row.metric == metric]

    def reach(self, target: float, metric: str = "mean", by: str = "virtual_s") -> float:
        """Return the first value on the axis ``by`` at which the metric is at least the target, or
        at most the target for metrics in ``FALLING``; infinity if there is none."""
        sign = -1 if metric in FALLING else 1
        reached = (at for at, value in self.curve(metric, by) if sign * value >= sign * target)
        return next(reached, math.inf)

    @property
    def bytes(self) -> int:
        """Bytes of payloads that were sent in the run."""
        return self.rows[-1].bytes if self.rows else 0


def measure(moment: Moment, task: Task, mishaps: Mishaps, seed: int) -> list[Row]:
    """Return a row for each metric of a moment."""
    n = len(moment.present)
    byzantine = np.zeros(n, bool)
    byzantine[sorted(mishaps.byzantine)] = True
    honest = np.flatnonzero(moment.present & ~byzantine)
    values = dict.fromkeys(METRICS, math.nan)
    values["present"] = float(moment.present.sum())
    values["samples"] = float(moment.samples)
    if len(honest):
        rows = honest[:1] if moment.is_replicated else honest
        parameters = moment.parameters[slice_of(rows)]
        accuracies, losses = task.evaluate(parameters)
        values["worst"], values["mean"] = float(accuracies.min()), float(accuracies.mean())
        values["p10"] = float(np.quantile(accuracies, 0.1))
        values["loss"] = float(losses.mean())
        values["consensus_distance"] = consensus_distance(parameters)
        pairs = len(honest) * max(1, int(byzantine.sum()))
        values["quarantined"] = float(moment.quarantined[byzantine].sum() / pairs)
        others = len(honest) * max(1, n - int(byzantine.sum()) - 1)
        values["falsely_quarantined"] = float(moment.quarantined[~byzantine].sum() / others)
    at = moment.rounds, moment.virtual_s, moment.bytes_sent
    return [Row(seed, *at, metric, values[metric]) for metric in METRICS]


def consensus_distance(parameters: Tensor) -> float:
    """Return the root mean square distance of the rows ``(m, d)`` from their mean, over the norm of
    that mean."""
    center = parameters.mean(dim=0)
    parts = torch.split(
        parameters, CHUNK
    )  # copying all replicas would need as much memory as these
    squares = torch.cat([(some - center).square().sum(dim=1) for some in parts])
    apart = squares.mean().sqrt()
    return float(apart / center.norm().clamp_min(1e-12))
