"""Charts as inline SVG, stretched to the width of the page. Their text is HTML beside the SVG, so
that letters keep their size on any screen."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossip.launch.report.words import bytes_word, clock, short_bytes

from .charts import (
    BAND,
    STATES,
    Axis,
    Chart,
    HeatChart,
    LaneChart,
    Line,
    LineChart,
    Mark,
    Span,
)
from .downsampling import Floats
from .figures import number, time_ticks, value_ticks

WIDE, HIGH = 1000, 400
"""Size of a picture in units of the SVG."""
ROW = 20
"""Height of a peer's row, in units of the SVG."""
COLOURS = 8
STATES_MAX = 8
"""Maximum number of states of a peer's lane that its description names."""
NARROW_PX, BADGE_PX = 270, 20
"""Width of a plot on the narrowest supported screen, and of a badge, in pixels."""
LANES_MAX = 4
HEAT_TICKS = 10
HOVERS_MAX = 120
"""Maximum number of places of a picture that show their values under a pointer."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Tick of an axis. ``at``: percent of the axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Badge:
    """The number of an incident above a picture. ``lane``: 0 is next to the picture."""

    at: float
    text: str
    title: str
    lane: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """Picture in the form that the template needs.

    Attributes:
        kind: CSS classes: ``lines`` or ``lanes``, and ``by-AXIS`` for curves over rounds or bytes.
        body: The SVG.
        legend: (class, text) of each drawn series.
        label: Description for screen readers.
        height: Height of the plot in pixels; 0 means as its rows need.
        hovers: Values at equal parts of the x axis, from left to right.
    """

    kind: str
    name: str
    title: str
    about: str
    body: str
    label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    rows: tuple[str, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()
    badges: tuple[Badge, ...] = ()
    badge_lanes: int = 0
    height: int = 0
    hovers: tuple[str, ...] = ()


def draw(chart: Chart) -> Drawing:
    """Return the picture of a chart."""
    match chart:
        case LineChart():
            return _lines(chart)
        case LaneChart():
            return _lanes(chart)
        case HeatChart():
            return _heat(chart)


def _sentences(told: Sequence[str]) -> str:
    return " ".join([f"{each.strip().rstrip('.')}." for each in told])


def _svg(height: int, inner: str, label: str) -> str:
    # The label may contain text from the files of a run.
    return (
        f'<svg viewBox="0 0 {WIDE} {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="{html.escape(label)}" focusable="false">{inner}</svg>'
    )


# --- curves ---------------------------------------------------------------------------------------


def _lines(chart: LineChart) -> Drawing:
    low, high = _range(chart)
    place = _PlotScale(chart.x_max, low, high, chart.logarithmic)
    inner = [_mark_lines(chart.marks, chart.x_max, HIGH)]
    for line in chart.lines:
        style = _style(line.style)
        if line.low is not None and line.high is not None:
            inner.append(f'<path class="band {style}" d="{place.band(line)}"/>')
    for line in chart.lines:
        style = _style(line.style)
        inner.append(f'<path class="line {style}" d="{place.path(line.x, line.y)}"/>')
    label = _words_of_lines(chart)
    ticks = _log_ticks(low, high) if chart.logarithmic else value_ticks(low, high)
    y = tuple(Tick(place.percent(at), number(at)) for at in ticks)
    return Drawing(
        "lines" if chart.over == "time" else f"lines by-{chart.over}",
        chart.name,
        chart.title,
        chart.about,
        _svg(HIGH, "".join(inner), label),
        label,
        _x_ticks(chart.x_max, chart.over),
        y,
        legend=tuple((f"key {_style(line.style)}", line.name) for line in chart.lines),
        height=220,
        hovers=tuple(_hovers(chart)),
        **_badges(chart.marks, chart.x_max),
    )


def _style(number_of: int) -> str:
    if number_of < 0:
        return "main"
    return f"c{number_of % COLOURS}" + (" dashed" if number_of >= COLOURS else "")


def _range(chart: LineChart) -> tuple[float, float]:
    values = [line.y for line in chart.lines]
    values += [each for line in chart.lines for each in (line.low, line.high) if each is not None]
    every = np.concatenate([np.empty(0), *values])
    every = every[np.isfinite(every)]
    if not len(every):
        return 0.0, 1.0
    low, high = float(every.min()), float(every.max())
    if chart.logarithmic:
        return low, max(high, low * 1.01) * 1.1
    low = low if chart.bottom is None else chart.bottom
    high = high if chart.top is None else chart.top
    gap = (high - low) or abs(high) or 1.0
    return low, high + (0.05 * gap if chart.top is None else 0.0)


class _PlotScale:
    """Scale from values to places in a picture."""

    def __init__(self, x_max: float, low: float, high: float, logarithmic: bool) -> None:
        self._x = WIDE / x_max if x_max > 0 else 0.0
        self._log = logarithmic
        self._low, self._high = self._scaled(low), self._scaled(high)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def percent(self, value: float) -> float:
        gap = (self._high - self._low) or 1.0
        return round(100 * (self._scaled(value) - self._low) / gap, 2)

    def _y(self, values: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.log10(values) if self._log else values
        gap = (self._high - self._low) or 1.0
        return np.clip(HIGH * (1 - (scaled - self._low) / gap), -HIGH, 2 * HIGH)

    def path(self, x: Floats, y: Floats) -> str:
        """Return the path of a curve, interrupted at missing values. A single point is a short
        stroke."""
        at, up = np.round(x * self._x, 1), np.round(self._y(y), 1)
        found, before = [], False
        for here, level in zip(at.tolist(), up.tolist(), strict=True):
            known = math.isfinite(level)
            if known:
                found.append(f"{'L' if before else 'M'}{here:g} {level:g}")
                if not before:
                    found.append("h3")
            before = known
        return "".join(found)

    def band(self, line: Line) -> str:
        assert line.low is not None
        assert line.high is not None
        known = np.isfinite(line.low) & np.isfinite(line.high)
        found = []
        for part in np.split(np.arange(len(known)), np.flatnonzero(np.diff(known)) + 1):
            if not len(part) or not known[part[0]]:
                continue
            x = np.round(line.x[part] * self._x, 1).tolist()
            top = np.round(self._y(line.high[part]), 1).tolist()
            bottom = np.round(self._y(line.low[part]), 1).tolist()
            corners = [*zip(x, top, strict=True), *zip(x[::-1], bottom[::-1], strict=True)]
            found.append("M" + "L".join(f"{here:g} {level:g}" for here, level in corners) + "Z")
        return "".join(found)


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    powers = [10.0**at for at in range(first, last + 1)]
    if len(powers) > 6:
        return powers[:: math.ceil(len(powers) / 6)]
    if len(powers) >= 3:
        return powers
    fine = [factor * 10.0**at for at in range(first - 1, last + 1) for factor in (1, 2, 5)]
    return [at for at in fine if low <= at <= high]


def _x_ticks(x_max: float, over: Axis = "time") -> tuple[Tick, ...]:
    if x_max <= 0:
        return ()
    ticks = time_ticks(x_max) if over == "time" else value_ticks(0, x_max, 6)
    return tuple(Tick(round(100 * at / x_max, 2), _tick_text(at, over)) for at in ticks)


def _tick_text(at: float, over: Axis) -> str:
    if over == "bytes":
        return short_bytes(at)
    return clock(at) if over == "time" else number(at)


def _place_words(x: float, over: Axis) -> str:
    if over == "bytes":
        return bytes_word(x)
    return clock(x, exact=True) if over == "time" else f"round {x:,.0f}"


def _hovers(chart: LineChart) -> Iterator[str]:
    """Yield the values of all curves at equal parts of the x axis; "" if there is none."""
    x = chart.lines[0].x if chart.lines else np.empty(0)
    each = math.ceil(len(x) / HOVERS_MAX) or 1
    for at in range(each // 2, len(x), each):
        known = [line for line in chart.lines if math.isfinite(line.y[at])]
        told = [f"{line.name.removesuffix(BAND)}: {_value(line, at)}" for line in known]
        yield "\n".join([_place_words(x[at], chart.over), *told]) if told else ""


def _value(line: Line, at: int) -> str:
    value = number(float(line.y[at]))
    if line.low is None or line.high is None or line.low[at] == line.high[at]:
        return value
    return f"{value} ({number(float(line.low[at]))} to {number(float(line.high[at]))})"


def _words_of_lines(chart: LineChart) -> str:
    told = [f"{chart.title}. {chart.about}"]
    for line in chart.lines[:12]:
        known = line.y[np.isfinite(line.y)]
        if len(known):
            told.append(
                f"{line.name}: from {number(float(known[0]))} to {number(float(known[-1]))}, "
                f"lowest {number(float(known.min()))}, highest {number(float(known.max()))}"
            )
    return _sentences(told)


# --- rows of peers --------------------------------------------------------------------------------


def _from_to(span: Span) -> str:
    return f"{clock(span.start, exact=True)} to {clock(span.stop, exact=True)}"


def _lanes(chart: LaneChart) -> Drawing:
    scale = WIDE / chart.x_max
    inner, seen, told = [], set(), [f"{chart.title}. {chart.about}"]
    for at, (name, spans) in enumerate(chart.lanes):
        words = []
        for span in spans:
            left, width = span.start * scale, max((span.stop - span.start) * scale, 1.0)
            seen.add(span.state)
            said = f"{name}: {STATES[span.state]}, {_from_to(span)}"
            inner.append(
                f'<rect class="s-{span.state}" x="{left:.1f}" y="{at * ROW + 3}" '
                f'width="{width:.1f}" height="{ROW - 6}"><title>{html.escape(said)}</title></rect>'
            )
            if span.state not in ("training", "done"):
                words.append(f"{STATES[span.state]} {_from_to(span)}")
        more = f", and {len(words) - STATES_MAX} more" if len(words) > STATES_MAX else ""
        told.append(f"{name}: {', '.join(words[:STATES_MAX]) or 'trains'}{more}")
    high = ROW * max(1, len(chart.lanes))
    marks = _mark_lines(chart.marks, chart.x_max, high)
    label = _sentences(told[:13])
    return Drawing(
        "lanes",
        chart.name,
        chart.title,
        chart.about,
        _svg(high, "".join([*inner, marks]), label),
        label,
        _x_ticks(chart.x_max),
        (),
        rows=tuple(name for name, _ in chart.lanes),
        legend=tuple((f"key s-{state}", words) for state, words in STATES.items() if state in seen),
        **_badges(chart.marks, chart.x_max),
    )


def _mark_lines(marks: Sequence[Mark], x_max: float, high: int) -> str:
    return "".join(
        f'<path class="mark" d="M{min(mark.x / x_max, 1) * WIDE:.0f} 0V{high}"/>' for mark in marks
    )


def _heat(chart: HeatChart) -> Drawing:
    rows, columns = chart.values.shape
    wide, most = WIDE / columns, float(chart.values.max()) or 1.0
    inner = []
    for (row, column), value in np.ndenumerate(chart.values):
        if value:
            words = f"{chart.rows[row]}, {chart.columns} {column}: {number(float(value))}"
            inner.append(
                f'<rect class="heat" x="{column * wide:.1f}" y="{row * ROW + 1}" '
                f'width="{wide:.1f}" height="{ROW - 2}" fill-opacity="{value / most:.3f}">'
                f"<title>{html.escape(words)}</title></rect>"
            )
    highest = chart.values.argmax(axis=1).tolist()
    named = list(zip(chart.rows, highest, strict=True))
    told = [f"{chart.title}. {chart.about}"]
    told += [f"{name}: most at {chart.columns} {at}" for name, at in named[:12]]
    label = _sentences(told)
    each = math.ceil(columns / HEAT_TICKS)
    ticks = [Tick(round(100 * (at + 0.5) / columns, 2), str(at)) for at in range(0, columns, each)]
    return Drawing(
        "lanes",
        chart.name,
        chart.title,
        chart.about,
        _svg(ROW * rows, "".join(inner), label),
        label,
        tuple(ticks),
        (),
        rows=chart.rows,
    )


# --- marks ----------------------------------------------------------------------------------------


def _badges(marks: Sequence[Mark], x_max: float) -> dict[str, Any]:
    """Return the badges of incidents, stacked where they would overlap on a narrow screen. Badges
    without a place are dropped; the table has all incidents."""
    ends = [-math.inf] * LANES_MAX
    found = []
    for mark in sorted(marks, key=lambda mark: mark.x):
        share = min(max(mark.x / x_max, 0.0), 1.0) if x_max > 0 else 0.0
        left = share * NARROW_PX
        lane = next((lane for lane, end in enumerate(ends) if left >= end), None)
        if lane is not None:
            ends[lane] = left + BADGE_PX
            found.append(Badge(round(100 * share, 2), str(mark.number), mark.text, lane))
    lanes = max((badge.lane + 1 for badge in found), default=0)
    return {"badges": tuple(found), "badge_lanes": lanes}
