"""How training went: what scripts logged, time for a step, speed, consensus distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gossip.observe import events, select

from . import curves
from .charts import Line, LineChart, Mark, Section
from .columns import Points
from .downsampling import Floats
from .figures import lasted, number
from .recorded import RecordedRun

SPREAD_LOG = 20.0
"""Values of which a twentieth are so many times as great as another twentieth are drawn on a
logarithmic axis."""
JUMP, LEAP = 2.0, 3
"""A peer that is so many times as fast as usual, for more steps than ``LEAP``, takes over
rounds that others have done."""


@dataclass(frozen=True, slots=True)
class Topic:
    """Subject of a picture. ``name``: Name of its anchor."""

    name: str
    title: str
    about: str


def section(run: RecordedRun, marks: tuple[Mark, ...]) -> Section:
    found = Section("training", "Training")
    found.parts += [_logged(run, name, marks) for name in run.series.logged.names]
    if "loss" not in run.series.logged.by_time and run.series.losses.peers:
        topic = Topic("loss", "Loss", "As rounds report it.")
        found.parts.append(_chart(run, topic, run.series.losses, marks))
    if not run.series.logged.by_time and not run.series.losses.peers:
        found.text.append(
            "The script logged no loss. peer.log(loss=loss.item()) before optimizer.step() does."
        )
    if speed := _speed(run, marks):
        found.parts.append(speed)
    if computing := _computing(run, marks):
        found.parts.append(computing)
    if run.series.consensus.peers:
        about = "How far the parameters of the peers are from their mean, as each peer measures it."
        topic = Topic("consensus", "Consensus distance", about)
        found.parts.append(_chart(run, topic, run.series.consensus, marks))
    return found


def _logged(run: RecordedRun, name: str, marks: tuple[Mark, ...]) -> LineChart:
    lost = run.series.logged.lost.get(name, 0)
    about = f"{lost:,} values were no finite numbers, and are left out." if lost else ""
    title = {"loss": "Loss", "accuracy": "Accuracy"}.get(name, f"Logged: {name}")
    return _chart(run, Topic(name, title, about), run.series.logged.by_time[name], marks)


def named(run: RecordedRun, peer: int) -> str:
    """With its stage, where it has one, and that it lies, where it is to."""
    row, place = run.view.rows.get(peer), run.view.stages.get(peer)
    stage = "" if place is None else f", stage {place.number}"
    return f"peer {peer}{stage}{' (lies)' if row is not None and row.lie else ''}"


def _chart(run: RecordedRun, topic: Topic, points: Points, marks: tuple[Mark, ...]) -> LineChart:
    buckets = curves.buckets_for(run, rounds_each=4)
    lines = curves.of_points(points, run, buckets, lambda peer: named(run, peer))
    each = f"Each point is the mean of {lasted(buckets.width)}."
    return LineChart(
        f"chart-{''.join(c if c.isalnum() else '-' for c in topic.name)[:40]}",
        topic.title,
        f"{topic.about} {each}".strip(),
        lines,
        run.duration_s,
        marks,
        logarithmic=wants_log(lines),
    )


def wants_log(lines: tuple[Line, ...]) -> bool:
    """Whether a curve would hide most of its values on a linear axis."""
    every = np.concatenate([np.empty(0), *(line.y for line in lines)])
    every = every[np.isfinite(every)]
    if not len(every) or every.min() <= 0:
        return False
    low, high = np.percentile(every, (5, 95))
    return bool(high / low > SPREAD_LOG)


def _speed(run: RecordedRun, marks: tuple[Mark, ...]) -> LineChart | None:
    buckets = curves.buckets_for(run, rounds_each=6, most=160)
    edges = np.linspace(0.0, run.duration_s, buckets.count + 1)
    peers = [peer for peer in run.series.steps.peers if len(run.series.steps.x(peer)) > 1]
    if not peers:
        return None
    taken = {peer: list[float]() for peer in peers}
    for event in select(run.events, events.Restored):
        if event.peer in taken:
            taken[event.peer].append(event.t)
    rows = [_rate(run, peer, np.array(taken[peer]), edges) for peer in peers]
    ends = [float(np.nanmax(run.series.steps.y(p))) for p in peers]
    about = (
        f"Means of {lasted(buckets.width)}. Rounds that a peer only took over after an absence "
        "do not count."
    )
    if max(ends) - min(ends) > run.view.local_steps:
        about += f" They ended between step {number(min(ends))} and step {number(max(ends))}."
    lines = curves.of_rows(peers, rows, buckets.centers, lambda peer: named(run, peer))
    return LineChart(
        "chart-speed", "Speed, steps per second", about, lines, run.duration_s, marks, bottom=0.0
    )


def _rate(run: RecordedRun, peer: int, taken: Floats, edges: Floats) -> Floats:
    """Steps a second between edges. Who went back to an earlier step did none meanwhile, nor who
    took over what others had done. ``taken``: when it took over a state of theirs."""
    x = run.series.steps.x(peer) - run.began
    done = np.diff(np.maximum.accumulate(run.series.steps.y(peer)))
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = done / np.diff(x)
    moving = pace[np.isfinite(pace) & (done > 0)]
    usual = float(np.median(moving)) if len(moving) else 0.0
    leap = LEAP * run.view.local_steps
    others = np.isin(np.arange(1, len(x)), np.searchsorted(x, taken - run.began))
    done = np.where((done > leap) & ((pace > JUMP * usual) | others), 0.0, done)
    total = np.concatenate([[0.0], np.cumsum(done)])
    until = np.interp(edges, x, total, left=np.nan, right=np.nan)
    return np.asarray(np.diff(until) / np.diff(edges), np.float64)


def _computing(run: RecordedRun, marks: tuple[Mark, ...]) -> LineChart | None:
    commits = run.commits
    known = np.isfinite(commits.took_s)
    if not known.any():
        return None
    buckets = curves.buckets_for(run, rounds_each=4)
    of, who, took = commits.of[known], commits.who[known], commits.took_s[known]
    t = commits.t[of] - run.began
    rows = [buckets.means(t[who == p], took[who == p] * 1000) for p in commits.peers]
    lines = curves.of_rows(commits.peers, rows, buckets.centers, lambda peer: named(run, peer))
    about = (
        "From the start of a step until the peer has its update; waiting for others is not in it. "
        f"Each point is the mean of {lasted(buckets.width)}."
    )
    return LineChart(
        "chart-computing",
        "Time for a step, ms",
        about,
        lines,
        run.duration_s,
        marks,
        bottom=0.0,
        logarithmic=False,
    )
