"""Curves of training: logged values, speed, consensus distance, trust."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gossip.core import TrustSettings
from gossip.launch.report.words import counted, lasted

from . import curves
from .charts import Line, LineChart, Mark, Section
from .columns import Points
from .downsampling import BUCKETS, Buckets
from .figures import number, peers
from .recorded import RecordedRun

SPREAD_LOG = 20.0
"""Ratio of the 95th to the 5th percentile of the values, above which the axis is logarithmic."""
CURVES_MAX = 8
LEVELS = TrustSettings()
TITLES = {"loss": "Loss", "accuracy": "Accuracy"}


def section(run: RecordedRun, marks: tuple[Mark, ...]) -> Section:
    found = Section("training", "Training")
    for name, metric in run.series.metrics.items():
        lost = run.series.logged.lost.get(name, 0)
        about = f"{counted(lost, 'value')} left out: not finite." if lost else ""
        found.parts.append(_by_time(run, name, metric.by_time, about, marks))
        if chart := by_round({run.state.name: run}, name):
            found.parts.append(chart)
    if not run.series.metrics:
        found.text.append(
            "The script logged no loss. Log it: peer.log(loss=loss.item()) before optimizer.step()."
        )
    if speed := _speed(run, marks):
        found.parts.append(speed)
    if run.series.consensus.peers:
        about = "Distance of the peers' parameters from their mean, as each peer measures it."
        chart = _by_time(run, "consensus", run.series.consensus, about, marks)
        found.parts.append(replace(chart, title="Consensus distance"))
    return found


def named(run: RecordedRun, peer: int) -> str:
    """Return the name of a peer, with its stage in a pipeline, and "(Byzantine)" if the fault plan
    makes it so."""
    row, place = run.view.rows.get(peer), run.view.stages.get(peer)
    stage = "" if place is None else f", stage {place.number}"
    return f"peer {peer}{stage}{' (Byzantine)' if row is not None and row.lie else ''}"


def _by_time(
    run: RecordedRun, name: str, points: Points, about: str, marks: tuple[Mark, ...]
) -> LineChart:
    buckets = curves.buckets_for(run)
    lines = (curves.honest_line(run, points, run.began, buckets),)
    each = f"Each point is a mean over {lasted(buckets.width)}."
    return LineChart(
        f"chart-{_anchor(name)}",
        TITLES.get(name, f"Logged: {name}"),
        f"{about} {each}".strip(),
        lines,
        run.duration_s,
        marks,
        logarithmic=wants_log(lines),
    )


def by_round(runs: Mapping[str, RecordedRun], name: str) -> LineChart | None:
    """Return the chart of a metric over rounds. If there are several runs, each has a curve. Return
    None if no run logged the metric by round. ``runs``: run by label."""
    logged = {
        label: (run, metric.by_round)
        for label, run in runs.items()
        if (metric := run.series.metrics.get(name)) is not None and metric.by_round.peers
    }
    last = max((float(points.all_x().max()) for _, points in logged.values()), default=0.0)
    if last <= 0:
        return None
    buckets = Buckets(last, int(max(curves.LEAST, min(BUCKETS, last // curves.ROUNDS_EACH))))
    lines = tuple(curves.honest_line(*each, 0.0, buckets) for each in logged.values())
    about = f"Each point is a mean over {counted(math.ceil(buckets.width), 'round')}."
    if len(runs) > 1:
        about = f"{about} Each curve is the mean of the honest peers of a run."
        lines = tuple(
            replace(line, name=label, style=style, low=None, high=None)
            for style, (label, line) in enumerate(zip(logged, lines, strict=True))
        )
    return LineChart(
        f"chart-{_anchor(name)}-by-round",
        f"{TITLES.get(name, f'Logged: {name}')} by round",
        about,
        lines,
        last,
        over="round",
        logarithmic=wants_log(lines),
    )


def _anchor(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)[:40]


def wants_log(lines: tuple[Line, ...]) -> bool:
    """Whether the values spread so much that a linear axis would hide most of them."""
    means = np.concatenate([np.empty(0), *(line.y for line in lines)])
    lowest = np.concatenate([means, *(line.low for line in lines if line.low is not None)])
    means, lowest = means[np.isfinite(means)], lowest[np.isfinite(lowest)]
    if not len(means) or lowest.min() <= 0:
        return False
    low, high = np.percentile(means, (5, 95))
    return bool(high / low > SPREAD_LOG)


def _speed(run: RecordedRun, marks: tuple[Mark, ...]) -> LineChart | None:
    """Return the chart of the speed of the peer with the most steps. So steps that a peer skips by
    receiving a state do not count."""
    buckets, steps = curves.buckets_for(run), run.series.steps
    edges = np.linspace(0.0, run.duration_s, buckets.count + 1)
    x, foremost = steps.foremost()
    if len(x) < 2:
        return None
    done = np.interp(edges, x - run.began, foremost, left=np.nan, right=np.nan)
    line = Line("foremost peer", buckets.centers, np.diff(done) / np.diff(edges))
    about = f"Of the peer with the most steps. Each point is a mean over {lasted(buckets.width)}."
    ends = [float(np.nanmax(steps.y(peer))) for peer in steps.peers]
    if max(ends) - min(ends) > run.view.local_steps:
        about += f" The peers ended between step {number(min(ends))} and step {number(max(ends))}."
    return LineChart(
        "chart-speed", "Speed, steps per second", about, (line,), run.duration_s, marks, bottom=0.0
    )


def trust(run: RecordedRun, marks: tuple[Mark, ...]) -> Section:
    found = Section("trust", "Trust")
    points = run.commits.trust if run.commits.trust.peers else run.series.trust
    if not points.peers:
        found.text.append("This run recorded no trust.")
        return found
    found.parts.append(_trust_chart(run, points, marks))
    found.text.append(f"Suspected: {peers(run.view.trust.suspicions)}.")
    return found


def unseen_liars(run: RecordedRun) -> list[int]:
    """Return the Byzantine peers of the plan that were never suspected."""
    return sorted(set(run.plan.byzantine) - run.view.trust.suspicions.keys())


def _trust_chart(run: RecordedRun, trust: Points, marks: tuple[Mark, ...]) -> LineChart:
    """Return a chart with a curve for each of the least trusted suspects, and a curve for the
    lowest trust of the other peers."""
    about = (
        f"1 is full trust. A peer is suspected below {number(LEVELS.suspect_below)}, and "
        f"quarantined below {number(LEVELS.quarantine_below)}."
    )
    buckets = curves.buckets_for(run)
    held = {p: buckets.held(trust.x(p) - run.began, trust.y(p)) for p in trust.peers}
    doubted = [peer for peer in trust.peers if peer in run.view.trust.suspicions]
    doubted = sorted(doubted, key=lambda peer: float(trust.y(peer).min()))[:CURVES_MAX]
    lines = [
        Line(named(run, peer), buckets.centers, held.pop(peer), style)
        for style, peer in enumerate(sorted(doubted))
    ]
    if held:
        others = counted(len(held), "other peer" if lines else "peer")
        lowest = np.fmin.reduce(list(held.values()))
        lines.append(Line(f"lowest of {others}", buckets.centers, lowest))
    return LineChart(
        "chart-trust",
        "Trust over time",
        about,
        tuple(lines),
        run.duration_s,
        marks,
        bottom=0.0,
        top=1.05,
    )
