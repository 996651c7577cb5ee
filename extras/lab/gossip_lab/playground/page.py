"""The report of a played world or of a sweep, as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossip.launch.report import bytes_word, html, words
from gossip_lab import estimates

from .grids import facts_of
from .played import PlayedRun
from .run_commands import RunCommand
from .sweeps import Sweep, plain
from .tasks import Task
from .world import World

CURVES = {
    "worst": "Accuracy of the worst peer",
    "mean": "Mean accuracy",
    "p10": "Accuracy of the tenth percentile of peers",
    "loss": "Mean loss",
    "consensus_distance": "Consensus distance",
    "quarantined": "Byzantine peers in quarantine",
    "falsely_quarantined": "Honest peers in quarantine",
    "present": "Present peers",
}
"""Metric -> title of its chart."""
QUARANTINED = ("quarantined", "falsely_quarantined")
"""Metrics without a chart if no peer was ever in quarantine."""
SHARES = ("worst", "mean", "p10", *QUARANTINED)
"""Metrics from 0 to 1."""
AXES: Mapping[html.Axis, str] = {"time": "virtual_s", "round": "round", "bytes": "bytes"}
"""Horizontal axis of a chart -> column of a row that it shows."""
POINTS = 120
PEERS_SHOWN, CLASSES_SHOWN = 100, 40
FOOTER = "Made from the rows of the playground alone: time is virtual, bytes are those of payloads."
FOOTER_OF_RUNS = "Made from the files of the runs: bytes are all that their peers have sent."
_Floats: TypeAlias = NDArray[np.float64]


def page_of_run(world: World, run: PlayedRun, task: Task) -> str:
    """Return the page of a played world.

    Raises: ConfigError: jinja2 is not installed.
    """
    sections = [
        _curves({"": [run]}),
        _placement(task),
        _world([world], ()),
    ]
    title = f"{world.peers} peers, {world.topology}, {world.aggregator}"
    return html.render_page(title, _facts(run), sections, FOOTER)


def page_of_sweep(sweep: Sweep) -> str:
    """Return the page of a sweep, with means over the seeds and 95 % confidence intervals.

    Raises: ConfigError: jinja2 is not installed.
    """
    runs: dict[str, list[PlayedRun]] = {}
    for cell, result in sweep.results.items():
        if result.run.rows and not result.stopped and not result.error:
            name = ", ".join(map(plain, sweep.setting_of(cell)))
            runs.setdefault(name, []).append(result.run)
    head, rows = sweep.table_cells()
    numeric = frozenset(range(len(sweep.settings), len(head)))
    table = html.TextTable("After the last round", head, tuple(rows), numeric)
    results = html.Section("results", "Results", [*sweep.errors], [table])
    sections = [results, _curves(runs), _world([c.world for c in sweep.grid.cells], sweep.settings)]
    facts = [
        html.Fact("Cells", str(len(sweep.grid.cells))),
        html.Fact("Played", str(len(sweep.results) - len(sweep.errors))),
        html.Fact("Errors", str(len(sweep.errors))),
    ]
    title = f"Sweep over {', '.join(sweep.grid.varied) or 'one world'}"
    are_runs = any(isinstance(cell.world, RunCommand) for cell in sweep.grid.cells)
    return html.render_page(title, facts, sections, FOOTER_OF_RUNS if are_runs else FOOTER)


def _facts(run: PlayedRun) -> list[html.Fact]:
    if not run.rows:
        return []
    last = run.rows[-1]
    values = {row.metric: row.value for row in run.rows if row.round == last.round}
    return [
        html.Fact("Rounds", f"{last.round:,}"),
        html.Fact("Virtual time", words.lasted(last.virtual_s)),
        html.Fact("Sent", bytes_word(last.bytes)),
        *(html.Fact(CURVES[name], html.number(values[name])) for name in ("mean", "worst")),
    ]


def _curves(runs: Mapping[str, Sequence[PlayedRun]]) -> html.Section:
    """Draw a chart for each metric and axis, with a curve for each setting."""
    found = html.Section("curves", "Curves")
    if any(len(each) > 1 for each in runs.values()):
        found.text.append("Means over the seeds; the bands are intervals of 95 %.")
    for metric, title in CURVES.items():
        for axis, column in AXES.items():
            if (chart := _chart(metric, title, axis, column, runs)) is not None:
                found.parts.append(chart)
    return found


def _chart(
    metric: str, title: str, axis: html.Axis, column: str, runs: Mapping[str, Sequence[PlayedRun]]
) -> html.LineChart | None:
    every = [each.curve(metric, column) for several in runs.values() for each in several]
    x = np.unique([at for curve in every for at, _ in curve])
    if not len(x) or (metric in QUARANTINED and not any(y for curve in every for _, y in curve)):
        return None
    # Settings differ in the times and bytes of their evaluations, so the points are interpolated.
    if len(x) > POINTS or axis != "round":
        x = np.linspace(x[0], x[-1], POINTS)
    lines = []
    for style, (name, several) in enumerate(runs.items()):
        values = np.array([_interpolated(each.curve(metric, column), x) for each in several])
        mean, low, high = _band(values)
        if metric in SHARES:
            low, high = low.clip(0.0, 1.0), high.clip(0.0, 1.0)
        only = len(runs) == 1
        own = {} if len(several) == 1 else {"low": low, "high": high}
        lines.append(html.Line(name or title, x, mean, -1 if only else style, **own))
    bottom = None if metric == "consensus_distance" else 0.0
    return html.LineChart(
        f"chart-{metric}-by-{axis}", title, "", tuple(lines), float(x[-1]), bottom=bottom, over=axis
    )


def _interpolated(curve: Sequence[tuple[float, float]], x: _Floats) -> _Floats:
    at, values = np.array(curve, np.float64).T
    return np.asarray(np.interp(x, at, values, left=np.nan, right=np.nan), np.float64)


def _band(values: _Floats) -> tuple[_Floats, _Floats, _Floats]:
    """Return the mean over the rows, and the lower and upper end of its 95 % confidence interval.
    All are NaN where a row has no value."""
    known = np.isfinite(values).all(axis=0)
    ends = np.full((values.shape[1], 2), np.nan)
    for at in np.flatnonzero(known):  # empty if a setting was evaluated only once
        ends[at] = estimates.Estimate(tuple(values[:, at].tolist())).interval
    return values.mean(axis=0), ends[:, 0], ends[:, 1]


def _placement(task: Task) -> html.Section:
    """Draw the number of samples of each class, for each peer."""
    labels = task.data.labels.numpy()
    shown = range(0, len(task.shares), -(-len(task.shares) // PEERS_SHOWN))
    classes = min(task.data.classes, CLASSES_SHOWN)
    counts = np.stack(
        [np.bincount(labels[task.shares[peer]], minlength=task.data.classes) for peer in shown],
        axis=1,
    )[:classes]
    about = "The darker, the more samples of a class the peer draws from."
    if shown.step > 1:
        about += f" Every {shown.step}th peer is shown."
    if classes < task.data.classes:
        about += f" The first {classes} of {task.data.classes} classes are shown."
    names = tuple(f"class {at}" for at in range(classes))
    chart = html.HeatChart(
        "placement", "Samples by class", about, names, "peer", counts.astype(np.float64)
    )
    return html.Section("data", "Who holds which labels", [], [chart])


def _world(worlds: Sequence[World | RunCommand], varied: Sequence[str]) -> html.Section:
    every = [facts_of(world) for world in worlds]
    rows = [
        (name, ", ".join(dict.fromkeys(plain(world[name]) for world in every))) for name in every[0]
    ]
    table = html.TextTable("Fields", ("Field", "Value"), tuple(rows))
    return html.Section("world", "The worlds" if varied else "The world", [], [table])
