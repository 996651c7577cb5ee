"""The pictures of a report as PNG files, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError

from .charts import STATES, Chart, LaneChart, LineChart
from .figures import clock, time_ticks

WIDTH_IN, DPI = 9.0, 150
COLOURS = (
    *("#1f6fc4", "#c2410c", "#12805c", "#a2237f", "#7a5cc9", "#8a6d00", "#0e7c86", "#b3263a"),
)
STATE_COLOURS = {
    "training": "#8fbf9f",
    "starting": "#7fb2d9",
    "paused": "#d8b64a",
    "quarantined": "#b58ad6",
    "dead": "#d4646b",
    "stopped": "#e0883a",
    "gone": "#4b525a",
    "done": "#d5dbe1",
}
INK, MARK = "#1b1f24", "#8a5a00"
MARK_WIDTH = 0.015
"""Width of a number above a picture, as a share of the picture's."""


def write(charts: Sequence[tuple[str, Chart]], folder: Path) -> list[Path]:
    """Draws each chart into ``folder / NAME.png``. Returns the files.

    Raises: ConfigError: matplotlib is not installed, or a file cannot be written.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise ConfigError(
            "PNGs need matplotlib, which is not installed", "pip install 'gossip-train[report]'"
        ) from error
    written = []
    for name, chart in charts:
        rows = len(chart.lanes) if isinstance(chart, LaneChart) else 0
        height = 1.4 + 0.22 * rows if rows else 3.4
        figure, axes = pyplot.subplots(figsize=(WIDTH_IN, height), dpi=DPI)
        path = folder / f"{name}.png"
        try:
            _draw(axes, chart)
            figure.tight_layout()
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(path)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
        finally:
            pyplot.close(figure)
        written.append(path)
    return written


def _draw(axes: Any, chart: Chart) -> None:
    match chart:
        case LineChart():
            _lines(axes, chart)
        case LaneChart():
            _lanes(axes, chart)
    for x, numbers in marks_of(chart):
        axes.axvline(x, color=MARK, linewidth=0.7, linestyle=":")
        axes.annotate(
            numbers,
            (x, 1.01),
            xycoords=("data", "axes fraction"),
            ha="center",
            fontsize=7,
            color=MARK,
        )
    axes.set_title(chart.title, loc="left", fontsize=10, pad=14)
    axes.set_xlim(0, chart.x_max)
    axes.spines[["top", "right"]].set_visible(False)
    if not isinstance(chart, LineChart) or chart.over_time:
        ticks = time_ticks(chart.x_max, 9)
        axes.set_xticks(ticks, [clock(at) for at in ticks])
    axes.tick_params(labelsize=8)


def marks_of(chart: Chart) -> list[tuple[float, str]]:
    """Return the places of marks and the numbers above. Marks that would lie on each other share a
    place."""
    found: list[tuple[float, str]] = []
    for mark in sorted(chart.marks, key=lambda mark: (mark.x, mark.number)):
        if found and mark.x - found[-1][0] < MARK_WIDTH * chart.x_max:
            found[-1] = found[-1][0], f"{found[-1][1]},{mark.number}"
        else:
            found.append((mark.x, str(mark.number)))
    return found


def _lines(axes: Any, chart: LineChart) -> None:
    for line in chart.lines:
        colour = INK if line.style < 0 else COLOURS[line.style % len(COLOURS)]
        dashes = "--" if line.style >= len(COLOURS) else "-"
        axes.plot(line.x, line.y, dashes, color=colour, linewidth=1.1, label=line.name)
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.16, linewidth=0)
    if chart.logarithmic:
        axes.set_yscale("log")
    if chart.bottom is not None:
        axes.set_ylim(bottom=chart.bottom, top=chart.top)
    if not chart.over_time:
        axes.set_xlabel("round", fontsize=8)
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)
    if chart.lines:
        _legend(axes)


def _lanes(axes: Any, chart: LaneChart) -> None:
    seen: set[str] = set()
    for at, (_, spans) in enumerate(chart.lanes):
        for span in spans:
            label: dict[str, Any] = {} if span.state in seen else {"label": STATES[span.state]}
            seen.add(span.state)
            colour = STATE_COLOURS[span.state]
            axes.barh(at, span.stop - span.start, 0.7, span.start, color=colour, **label)
    axes.set_yticks(range(len(chart.lanes)), [name for name, _ in chart.lanes])
    axes.invert_yaxis()
    if seen:
        _legend(axes)


def _legend(axes: Any) -> None:
    """Below the picture, where it lies on nothing."""
    corner = (0, -0.14)
    axes.legend(frameon=False, fontsize=7, ncols=4, loc="upper left", bbox_to_anchor=corner)
