"""The pictures of a report as data: what is drawn, not how. ``svg`` draws them."""

from __future__ import annotations

from dataclasses import dataclass, field

from .downsampling import Floats

STATES: dict[str, str] = {
    "training": "trains",
    "starting": "starts, or takes over a state",
    "quarantined": "in quarantine",
    "dead": "out of reach for most of the others",
    "paused": "waits for a quorum",
    "stopped": "stopped (SIGSTOP)",
    "gone": "its process has ended",
    "done": "has finished",
}
"""State of a peer -> its description. A later state hides those before it."""


BAND = "; band: lowest to highest"
"""In the name of a line that has one."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An incident on a time axis. ``x``: seconds since the start."""

    number: int
    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """One curve: ``x`` and ``y`` of the same length, NaN in ``y`` where it is interrupted.

    Attributes:
        style: Number of its colour; -1: that of the text.
        low, high: A band around it, or None.
    """

    name: str
    x: Floats
    y: Floats
    style: int = -1
    low: Floats | None = None
    high: Floats | None = None


@dataclass(frozen=True, slots=True)
class LineChart:
    """Curves over time, or over rounds. All have the same ``x``.

    Attributes:
        name: Of its anchor.
        title: What is drawn, with its unit.
        about: One sentence or two below the title.
        bottom: Of the y axis, where it has a natural one.
        logarithmic: Whether the y axis is; all values are positive then.
        over_time: Whether x is seconds since the start; otherwise it is rounds.
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
    over_time: bool = True


@dataclass(frozen=True, slots=True)
class Span:
    """State of a peer from ``start`` to ``stop``, in seconds since the start of the run."""

    start: float
    stop: float
    state: str


@dataclass(frozen=True, slots=True)
class LaneChart:
    """A row for each of a few peers, cut into what it did."""

    name: str
    title: str
    about: str
    lanes: tuple[tuple[str, tuple[Span, ...]], ...]
    x_max: float
    marks: tuple[Mark, ...] = ()


Chart = LineChart | LaneChart


@dataclass(frozen=True, slots=True)
class TextTable:
    """Cells are text. ``numeric``: columns that are written to the right.

    Attributes:
        anchors: An id for each row, or empty.
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    anchors: tuple[str, ...] = ()
    folded: bool = False


@dataclass(slots=True)
class Section:
    """A heading with what stands under it."""

    name: str
    title: str
    text: list[str] = field(default_factory=list)
    parts: list[Chart | TextTable] = field(default_factory=list)
