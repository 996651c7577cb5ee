"""Charts as shapes of inline SVG, which is stretched to the width of the page. The text of a chart
is HTML around the SVG, so that it keeps its size on any screen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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

WIDE, HIGH = 1000, 220
"""Size of a chart of curves, in units of the SVG. A unit of the height is a pixel."""
ROW = 20
"""Height of the row of a peer, in pixels."""
COLOURS = 8
STATES_MAX = 8
"""Maximum number of states that the description of a peer's row lists."""
NARROW_PX, BADGE_PX = 270, 20
"""Widths of a plot on the narrowest supported screen, and of a badge, in pixels."""
LANES_MAX = 4
HEAT_TICKS = 10
TICK_TEXT: Mapping[Axis, Callable[[float], str]] = {
    "bytes": short_bytes,
    "time": clock,
    "round": number,
}
HOVERS_MAX = 120
"""Maximum number of positions of a chart that show values under the mouse pointer."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Tick of an axis. ``at``: percent of the axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Badge:
    """Number of an incident above a chart. ``lane``: 0 is next to the chart."""

    at: float
    text: str
    title: str
    lane: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Path of the SVG with its CSS classes. ``title``: text that appears under the mouse
    pointer."""

    kind: str
    path: str
    title: str = ""
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Drawing:
    """Chart in the form that the template needs.

    Attributes:
        kind: CSS classes: ``lines`` or ``lanes``, and ``by-AXIS`` for curves over rounds or bytes.
        label: Description for screen readers.
        height: Height of the plot in pixels.
        legend: (class, text) of each drawn series.
        hovers: Texts with the values in equal parts of the x axis, from left to right.
    """

    kind: str
    label: str
    height: int
    shapes: tuple[Shape, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...] = ()
    rows: tuple[str, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()
    badges: tuple[Badge, ...] = ()
    hovers: tuple[str, ...] = ()


def draw(chart: Chart) -> Drawing:
    """Return the drawing of a chart."""
    match chart:
        case LineChart():
            return _lines(chart)
        case LaneChart():
            return _lanes(chart)
        case HeatChart():
            return _heat(chart)


def _label(chart: Chart, told: Sequence[str]) -> str:
    sentences = (f"{chart.title}. {chart.about}", *told[:12])
    return " ".join([f"{each.strip().rstrip('.')}." for each in sentences])


def _mark_lines(marks: Sequence[Mark], x_max: float, high: int) -> list[Shape]:
    return [
        Shape("mark", f"M{min(mark.x / x_max, 1) * WIDE:.0f} 0V{high}") for mark in marks if x_max
    ]


# --- curves ---------------------------------------------------------------------------------------


def _lines(chart: LineChart) -> Drawing:
    low, high = _range(chart)
    place = _PlotScale(chart.x_max, low, high, chart.logarithmic)
    bands = [Shape(f"band {_style(line.style)}", place.band(line)) for line in chart.lines]
    curves = [
        Shape(f"line {_style(line.style)}", place.path(line.x, line.y)) for line in chart.lines
    ]
    ticks = _log_ticks(low, high) if chart.logarithmic else value_ticks(low, high)
    return Drawing(
        "lines" if chart.over == "time" else f"lines by-{chart.over}",
        _label(chart, list(_words_of_lines(chart))),
        HIGH,
        (*_mark_lines(chart.marks, chart.x_max, HIGH), *bands, *curves),
        _x_ticks(chart.x_max, chart.over),
        tuple(Tick(place.percent(at), number(at)) for at in ticks),
        legend=tuple((f"key {_style(line.style)}", line.name) for line in chart.lines),
        badges=_badges(chart.marks, chart.x_max),
        hovers=tuple(_hovers(chart)),
    )


def _style(number_of: int) -> str:
    if number_of < 0:
        return "main"
    return f"c{number_of % COLOURS}" + (" dashed" if number_of >= COLOURS else "")


def _range(chart: LineChart) -> tuple[float, float]:
    values = [each for line in chart.lines for each in (line.y, line.low, line.high)]
    every = np.concatenate([np.empty(0), *(each for each in values if each is not None)])
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
    """Scale from values to positions in a chart."""

    def __init__(self, x_max: float, low: float, high: float, logarithmic: bool) -> None:
        self._x = WIDE / x_max if x_max > 0 else 0.0
        self._log = logarithmic
        self._low, self._high = self._scaled(np.array([low, high]))

    def _scaled(self, values: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log10(values) if self._log else values

    def _share(self, values: Floats) -> Floats:
        """Return the heights of values as shares of the height of the chart."""
        gap = (self._high - self._low) or 1.0
        return np.asarray((self._scaled(values) - self._low) / gap, np.float64)

    def percent(self, value: float) -> float:
        return round(100 * float(self._share(np.array(value))), 2)

    def _points(self, x: Floats, y: Floats) -> str:
        up = np.clip(HIGH * (1 - self._share(y)), -HIGH, 2 * HIGH)
        corners = zip(np.round(x * self._x, 1).tolist(), np.round(up, 1).tolist(), strict=True)
        return "L".join(f"{here:g} {level:g}" for here, level in corners)

    def path(self, x: Floats, y: Floats) -> str:
        """Return the path of a curve, interrupted at missing values. A single point becomes a short
        stroke."""
        return "".join(f"M{self._points(x[part], y[part])}h3" for part in _known_parts(y))

    def band(self, line: Line) -> str:
        if line.low is None or line.high is None:
            return ""
        x, low, high = line.x, line.low, line.high
        return "".join(
            f"M{self._points(x[part], high[part])}L{self._points(x[part][::-1], low[part][::-1])}Z"
            for part in _known_parts(low + high)
        )


def _known_parts(values: Floats) -> list[slice]:
    """Return the longest slices without a missing value."""
    known = np.ma.masked_invalid(values)
    return list(np.ma.clump_unmasked(known))  # type: ignore[no-untyped-call]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return tick positions at powers of ten. If these are fewer than three, add 2 and 5 times the
    powers."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1,), (1, 2, 5)):
        every = [factor * 10.0**at for at in range(first, last + 1) for factor in factors]
        found = [at for at in every if low * (1 - 1e-9) <= at <= high * (1 + 1e-9)]
        if len(found) >= 3:
            break
    return found[:: math.ceil(len(found) / 6) or 1]


def _x_ticks(x_max: float, over: Axis = "time") -> tuple[Tick, ...]:
    if x_max <= 0:
        return ()
    ticks = time_ticks(x_max) if over == "time" else value_ticks(0, x_max, 6)
    return tuple(Tick(round(100 * at / x_max, 2), TICK_TEXT[over](at)) for at in ticks)


def _place_words(x: float, over: Axis) -> str:
    if over == "bytes":
        return bytes_word(x)
    return clock(x, exact=True) if over == "time" else f"round {x:,.0f}"


def _hovers(chart: LineChart) -> Iterator[str]:
    """Yield a text with the values of all curves for each equal part of the x axis; "" for a part
    without values."""
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


def _words_of_lines(chart: LineChart) -> Iterator[str]:
    for line in chart.lines:
        known = line.y[np.isfinite(line.y)]
        if len(known):
            yield (
                f"{line.name}: from {number(float(known[0]))} to {number(float(known[-1]))}, "
                f"lowest {number(float(known.min()))}, highest {number(float(known.max()))}"
            )


# --- rows of peers --------------------------------------------------------------------------------


def _bar(left: float, width: float, row: int) -> str:
    """Return the path of a bar in a row."""
    return f"M{left:.1f} {row * ROW + 3}h{width:.1f}v{ROW - 6}h-{width:.1f}z"


def _words_of_span(span: Span) -> str:
    return (
        f"{STATES[span.state]}, {clock(span.start, exact=True)} to {clock(span.stop, exact=True)}"
    )


def _lanes(chart: LaneChart) -> Drawing:
    scale, seen = WIDE / chart.x_max, set[str]()
    shapes, told = list[Shape](), list[str]()
    for at, (name, spans) in enumerate(chart.lanes):
        for span in spans:
            path = _bar(span.start * scale, max((span.stop - span.start) * scale, 1.0), at)
            shapes.append(Shape(f"s-{span.state}", path, f"{name}: {_words_of_span(span)}"))
            seen.add(span.state)
        words = [_words_of_span(span) for span in spans if span.state not in ("training", "done")]
        more = f", and {len(words) - STATES_MAX} more" if len(words) > STATES_MAX else ""
        told.append(f"{name}: {', '.join(words[:STATES_MAX]) or 'trains'}{more}")
    high = ROW * max(1, len(chart.lanes))
    return Drawing(
        "lanes",
        _label(chart, told),
        high,
        (*shapes, *_mark_lines(chart.marks, chart.x_max, high)),
        _x_ticks(chart.x_max),
        rows=tuple(name for name, _ in chart.lanes),
        legend=tuple((f"key s-{state}", words) for state, words in STATES.items() if state in seen),
        badges=_badges(chart.marks, chart.x_max),
    )


def _heat(chart: HeatChart) -> Drawing:
    rows, columns = chart.values.shape
    wide, most = WIDE / columns, float(chart.values.max()) or 1.0
    shapes = [
        Shape(
            "heat",
            _bar(column * wide, wide, row),
            f"{chart.rows[row]}, {chart.columns} {column}: {number(float(value))}",
            round(value / most, 3),
        )
        for (row, column), value in np.ndenumerate(chart.values)
        if value
    ]
    highest = zip(chart.rows, chart.values.argmax(axis=1).tolist(), strict=True)
    told = [f"{name}: most at {chart.columns} {at}" for name, at in highest]
    each = math.ceil(columns / HEAT_TICKS)
    ticks = [Tick(round(100 * (at + 0.5) / columns, 2), str(at)) for at in range(0, columns, each)]
    return Drawing(
        "lanes", _label(chart, told), ROW * rows, tuple(shapes), tuple(ticks), rows=chart.rows
    )


# --- marks ----------------------------------------------------------------------------------------


def _badges(marks: Sequence[Mark], x_max: float) -> tuple[Badge, ...]:
    """Return the badges of incidents, stacked where they would overlap on a narrow screen. Badges
    for which no room is left are dropped, because the table has all incidents."""
    ends = [-math.inf] * LANES_MAX
    found = []
    for mark in sorted(marks, key=lambda mark: mark.x):
        share = min(max(mark.x / x_max, 0.0), 1.0) if x_max > 0 else 0.0
        left = share * NARROW_PX
        lane = next((lane for lane, end in enumerate(ends) if left >= end), None)
        if lane is not None:
            ends[lane] = left + BADGE_PX
            found.append(Badge(round(100 * share, 2), str(mark.number), mark.text, lane))
    return tuple(found)
