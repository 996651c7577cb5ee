"""Result of a played world as tidy rows, and curves from these rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossip.errors import UnknownName

from .learners import CHUNK
from .moments import Moment
from .parts import Parts
from .presence import slice_of

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

- ``worst``, ``mean``, ``p10``: worst, mean and tenth percentile of the accuracy (0 to 1) of the
  present honest replicas on the test samples; ``loss``: mean loss of these replicas.
- ``consensus_distance``: root mean square distance of the parameters of these replicas from their
  mean, divided by the norm of the mean.
- ``quarantined``: among the pairs of a present honest peer and a Byzantine peer, the share in which
  the honest peer has put the Byzantine peer into quarantine.
- ``falsely_quarantined``: the same share for pairs of a present honest peer and another honest
  peer.
- ``present``: number of present peers; ``samples``: total number of samples in all updates that
  were used so far.
"""


FALLING = ("loss", "consensus_distance", "falsely_quarantined")
"""Metrics for which lower values are better."""


class Row(NamedTuple):
    """One value of a run.

    Attributes:
        seed: Seed of the world.
        round: Number of rounds so far.
        virtual_s: Virtual time in seconds.
        bytes: Total bytes of all payloads sent so far.
        metric: One of ``METRICS``.
        value: Value of the metric.
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
        """Return the points of a metric's curve. ``by`` is the horizontal axis: ``round``,
        ``virtual_s`` or ``bytes``.

        Raises: ConfigError: There is no such metric or axis.
        """
        for what, name, known in (
            ("metric", metric, {*METRICS, *(row.metric for row in self.rows)}),
            ("axis", by, {"round", "virtual_s", "bytes"}),
        ):
            if name not in known:
                raise UnknownName(what, name, known)
        return [(getattr(row, by), row.value) for row in self.rows if row.metric == metric]

    def reach(self, target: float, metric: str = "mean", by: str = "virtual_s") -> float:
        """Return where the metric first reaches the target, on the axis ``by``; infinity if it does
        not. Metrics in ``FALLING`` reach the target from above."""
        sign = -1 if metric in FALLING else 1
        reached = (at for at, value in self.curve(metric, by) if sign * value >= sign * target)
        return next(reached, math.inf)

    @property
    def bytes(self) -> int:
        """Total bytes of all payloads sent in the run."""
        return self.rows[-1].bytes if self.rows else 0


def measure(moment: Moment, parts: Parts) -> list[Row]:
    """Return a row for each metric of a moment."""
    is_honest = parts.honest
    honest = np.flatnonzero(moment.present & is_honest)
    values = dict.fromkeys(METRICS, math.nan)
    values["present"] = float(moment.present.sum())
    values["samples"] = float(moment.samples)
    if len(honest):
        rows = honest[:1] if moment.is_replicated else honest
        parameters = moment.parameters[slice_of(rows)]
        accuracies, losses = parts.task.evaluate(parameters)
        values["worst"], values["mean"] = float(accuracies.min()), float(accuracies.mean())
        values["p10"] = float(np.quantile(accuracies, 0.1))
        values["loss"] = float(losses.mean())
        values["consensus_distance"] = consensus_distance(parameters)
        pairs = len(honest) * max(1, int((~is_honest).sum()))
        values["quarantined"] = float(moment.quarantined[~is_honest].sum() / pairs)
        others = len(honest) * max(1, int(is_honest.sum()) - 1)
        values["falsely_quarantined"] = float(moment.quarantined[is_honest].sum() / others)
    at = moment.rounds, moment.virtual_s, moment.bytes_sent
    return [Row(parts.settings.seed, *at, metric, values[metric]) for metric in METRICS]


def consensus_distance(parameters: Tensor) -> float:
    """Return the root mean square distance of the rows from their mean, divided by the norm of the
    mean. ``parameters``: ``(m, d)``."""
    center = parameters.mean(dim=0)
    parts = torch.split(parameters, CHUNK)  # a copy of all replicas at once would double the memory
    squares = torch.cat([(some - center).square().sum(dim=1) for some in parts])
    apart = squares.mean().sqrt()
    return float(apart / center.norm().clamp_min(1e-12))
