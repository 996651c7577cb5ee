"""Charts of a report as data. ``svg`` draws them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .downsampling import Floats

STATES: dict[str, str] = {
    "training": "trains",
    "starting": "starts, or receives a state",
    "quarantined": "in quarantine",
    "dead": "unreachable for most other peers",
    "paused": "waits for a quorum",
    "stopped": "stopped (SIGSTOP)",
    "gone": "its process has ended",
    "done": "has finished",
}
"""Description of each state of a peer, in the order of the legend."""


Axis: TypeAlias = Literal["time", "round", "bytes"]
BAND = "; band: lowest to highest"
"""Suffix of the name of a curve that has a band."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An incident on a time axis. ``x``: seconds since the start."""

    number: int
    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """One curve: ``x`` and ``y`` of the same length. NaN in ``y`` interrupts it.

    Attributes:
        style: Number of the curve's colour; -1 means the colour of text.
        low, high: Bounds of a band around the curve; None without a band.
    """

    name: str
    x: Floats
    y: Floats
    style: int = -1
    low: Floats | None = None
    high: Floats | None = None


@dataclass(frozen=True, slots=True)
class LineChart:
    """Curves over time, over rounds, or over bytes. All curves have the same ``x``.

    Attributes:
        name: Anchor of the chart in the page.
        title: Quantity with its unit.
        about: One or two sentences below the title.
        bottom: Lower end of the y axis; None means the lowest value.
        logarithmic: Whether the y axis is logarithmic. All values must then be positive.
        over: Quantity of the x axis: seconds since the start, rounds, or bytes.
    """

    name: str
    title: str
    about: str
    lines: tuple[Line, ...]
    x_max: float
    marks: tuple[Mark, ...] = ()
    bottom: float | None = None
    top: float | None = None
    logarithmic: bool = False
    over: Axis = "time"


@dataclass(frozen=True, slots=True)
class Span:
    """State of a peer from ``start`` to ``stop``, in seconds since the start of the run."""

    start: float
    stop: float
    state: str


@dataclass(frozen=True, slots=True)
class LaneChart:
    """Chart with a row for each peer, which shows the states of the peer over time."""

    name: str
    title: str
    about: str
    lanes: tuple[tuple[str, tuple[Span, ...]], ...]
    x_max: float
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class HeatChart:
    """Heat map: the higher the value of a cell, the darker the cell.

    Attributes:
        rows: Names of the rows.
        columns: Common name of the columns. Each column has a number, too.
        values: ``(rows, columns)``, all non-negative.
    """

    name: str
    title: str
    about: str
    rows: tuple[str, ...]
    columns: str
    values: Floats


Chart = LineChart | LaneChart | HeatChart


@dataclass(frozen=True, slots=True)
class TextTable:
    """Table of text. ``numeric``: right-aligned columns.

    Attributes:
        anchors: HTML id of each row, or ().
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    anchors: tuple[str, ...] = ()
    folded: bool = False


@dataclass(slots=True)
class Section:
    """Section of a page: a heading with text, charts and tables."""

    name: str
    title: str
    text: list[str] = field(default_factory=list)
    parts: list[Chart | TextTable] = field(default_factory=list)
