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
"""State of a peer -> its description. A later state hides earlier ones."""


Axis: TypeAlias = Literal["time", "round", "bytes"]
BAND = "; band: lowest to highest"
"""Suffix of the name of a line with a band."""


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
        style: Number of its colour; -1 means that of the text.
        low, high: Bounds of a band around it, or None.
    """

    name: str
    x: Floats
    y: Floats
    style: int = -1
    low: Floats | None = None
    high: Floats | None = None


@dataclass(frozen=True, slots=True)
class LineChart:
    """Curves over time, over rounds, or over bytes. All have the same ``x``.

    Attributes:
        name: Name of the chart's anchor.
        title: Quantity with its unit.
        about: One or two sentences below the title.
        bottom: Natural lower end of the y axis, if any.
        logarithmic: Whether the y axis is logarithmic; all values are positive then.
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
    """Rows of a few peers, each with the states of the peer over time."""

    name: str
    title: str
    about: str
    lanes: tuple[tuple[str, tuple[Span, ...]], ...]
    x_max: float
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class HeatChart:
    """Rows of cells, the darker the higher their values.

    Attributes:
        rows: Names of the rows.
        columns: Name of all columns together; each has its number.
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
        anchors: An id for each row, or ().
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
