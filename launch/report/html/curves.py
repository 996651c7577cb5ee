"""Curves of a swarm: the mean of its peers, with a band from the lowest to the highest peer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gossip.launch.report.words import counted

from .charts import BAND, Line
from .columns import Points
from .downsampling import BUCKETS, Buckets, Floats
from .recorded import RecordedRun

LISTED_MAX = 12
"""Maximum number of peers that have rows of their own in a table or a chart."""
LEAST = 24
ROUNDS_EACH = 4
"""Mean number of rounds per point of a curve, in a short run."""


def buckets_for(run: RecordedRun) -> Buckets:
    """Return buckets for the time of a run. In a short run, a bucket has ``ROUNDS_EACH`` rounds on
    average."""
    longest = max((len(run.series.steps.x(peer)) for peer in run.series.steps.peers), default=0)
    rounds = max(len(run.commits), longest)
    return Buckets(run.duration_s, max(LEAST, min(BUCKETS, rounds // ROUNDS_EACH)))


def honest_line(run: RecordedRun, points: Points, since: float, buckets: Buckets) -> Line:
    """Return the curve of the values of honest peers, or of all peers if all are Byzantine.
    ``since``: x value at the start of the axis."""
    peers, who = honest(run, points.peers), "honest peer"
    if not peers:
        peers, who = points.peers, "peer"
    rows = {p: buckets.curve(points.x(p) - since, points.y(p)) for p in peers}
    return swarm_line(rows, buckets.centers, who)


def swarm_line(rows: Mapping[int, Floats], x: Floats, who: str = "peer") -> Line:
    """Return the mean of the peers' curves, with a band from the lowest to the highest."""
    every = list(rows.values())
    present = np.isfinite(every).sum(0)
    with np.errstate(invalid="ignore"):
        mean = np.nansum(every, 0) / present
    if len(rows) == 1:
        return Line(f"peer {next(iter(rows))}", x, mean)
    # Some peers are dead at times, or joined later.
    fewer = "up to " * bool((present[present > 0] < len(rows)).any())
    name = f"mean of {fewer}{counted(len(rows), who)}{BAND}"
    return Line(name, x, mean, -1, np.fmin.reduce(every), np.fmax.reduce(every))


def honest(run: RecordedRun, peers: list[int]) -> list[int]:
    """Return the peers that the fault plan does not make Byzantine."""
    liars = {peer for peer, row in run.view.rows.items() if row.lie}
    return [peer for peer in peers if peer not in liars]
