"""Curves of peers: one each of a few, and of many what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .charts import Line
from .columns import Points
from .downsampling import BUCKETS, Buckets, Floats
from .recorded import RecordedRun

EACH_MAX = 12
"""Maximum number of peers that have a curve each. With more there are percentiles."""
GROUPS = 20
"""Rows of a picture of all peers: of more peers than these each row is a group."""
HEAT_COLUMNS = 100
LEAST = 24


def buckets_for(run: RecordedRun, rounds_each: int = 2, most: int = BUCKETS) -> Buckets:
    """Parts of the time of a run, of so many rounds each where it was short."""
    longest = max((len(run.series.steps.x(peer)) for peer in run.series.steps.peers), default=0)
    rounds = max(len(run.commits), longest)
    return Buckets(0.0, run.duration_s, max(LEAST, min(most, rounds // rounds_each)))


def of_points(
    points: Points, run: RecordedRun, buckets: Buckets, named: Callable[[int], str]
) -> tuple[Line, ...]:
    """Means of what each peer has logged in each part of the time."""
    rows = [buckets.curve(points.x(peer) - run.began, points.y(peer)) for peer in points.peers]
    return of_rows(points.peers, rows, buckets.centers, named)


def of_rows(
    peers: Sequence[int], rows: Sequence[Floats], x: Floats, named: Callable[[int], str]
) -> tuple[Line, ...]:
    """Curves of peers, one row each; of more than ``EACH_MAX`` their median, where 80 % of them
    are, and the lowest and the highest."""
    if len(peers) <= EACH_MAX:
        return tuple(
            Line(named(peer), x, row, style)
            for style, (peer, row) in enumerate(zip(peers, rows, strict=True))
        )
    every = np.array(rows)
    known = np.isfinite(every).any(axis=0)
    found = np.full((5, every.shape[1]), np.nan)
    found[:, known] = np.nanpercentile(every[:, known], (0, 10, 50, 90, 100), axis=0)
    lowest, tenth, median, ninetieth, highest = found
    return (
        Line(f"median of {len(peers)} peers (band: 80 % of them)", x, median, -1, tenth, ninetieth),
        Line("lowest peer", x, lowest, 0),
        Line("highest peer", x, highest, 1),
    )


def groups_of(peers: Sequence[int]) -> tuple[tuple[str, ...], dict[int, int]]:
    """Names of at most ``GROUPS`` rows, and peer -> its row."""
    if len(peers) <= GROUPS:
        return tuple(f"peer {peer}" for peer in peers), {p: at for at, p in enumerate(peers)}
    parts = np.array_split(np.array(peers), GROUPS)
    names = tuple(f"{part[0]} to {part[-1]}" for part in parts)
    return names, {int(peer): at for at, part in enumerate(parts) for peer in part}
