"""Draws the end of a run as a message-sequence chart: a vertical line for each peer, time running
downwards, and an arrow for each message.

Every event of the chart has its own row, so that nothing overlaps. The times are on the left.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from gossip.core import PeerId

from .chart import Chart, ChartLine
from .play import SimulationResult

ROWS = 90
ROW_PX = 18
COLUMN_PX = 170
LEFT_PX = 110
RIGHT_PX = 190
TOP_PX = 30
CHARACTER_PX = 7
BOLD = ' font-weight="bold"'
STUB = 0.3  # relative length of the arrow of a message that never arrived
COLOURS = {"rounds": "#1f5fbf", "joining": "#8a3fbf", "membership": "#7a7a7a"}
GREEN, RED, ORANGE, INK = "#16803c", "#c81e1e", "#b45309", "#222222"
WRAP = 150
_MEMBERSHIP = ("S1", "S2", "S3", "S4", "S5", "S6", "S7", "L1")
_WORDS = {
    "started": GREEN,
    "died": RED,
    "halted": RED,
    "committed": GREEN,
    "aggregates": COLOURS["rounds"],
    "reported": ORANGE,
    "fault": RED,
}


@dataclass(slots=True)
class _Arrow:
    """A message: the row in which it was sent, the rows in which it arrived, and in ``fate`` the
    reason why it did not arrive."""

    sent: int | None
    line: ChartLine
    arrived: list[int] = field(default_factory=list)
    fate: str = ""


def relevant(lines: Iterable[ChartLine], invariant: str, rows: int = ROWS) -> list[ChartLine]:
    """Return the last events that concern the invariant. For an invariant of rounds, for example,
    events of the membership are left out."""
    about_members = invariant in _MEMBERSHIP
    kept = [line for line in lines if _concerns(line, about_members)]
    return kept[-rows:]


def _concerns(line: ChartLine, about_members: bool) -> bool:
    if line.what in ("lost", "altered"):
        return False  # shown by the arrows of the messages
    if about_members:
        return line.group == "membership" or line.what in (
            "started",
            "died",
            "halted",
            "reported",
            "fault",
        )
    return line.group != "membership"


def draw(outcome: SimulationResult, chart: Chart, rows: int = ROWS) -> str:
    """Return the picture of a run's end, as the text of an SVG file.

    Args:
        outcome: Result of the run. Its violation selects the events, and is described below them.
        chart: Log of the run.
        rows: Maximum number of events.
    """
    found = outcome.violation
    lines = relevant(chart.lines, found.invariant if found else "", rows)
    peers = sorted(
        {line.peer for line in lines if line.peer >= 0}
        | {line.other for line in lines if line.other >= 0}
        | ({found.peer} if found and found.peer >= 0 else set())
    )
    x = {peer: LEFT_PX + COLUMN_PX // 2 + i * COLUMN_PX for i, peer in enumerate(peers)}
    heading = _heading(outcome)
    top = TOP_PX + 16 * len(heading) + 26
    notes = (line for line in lines if line.peer >= 0 and line.message is None)
    ends = (x[line.peer] + RIGHT_PX // 5 + CHARACTER_PX * len(_note(line)) for line in notes)
    width = max(LEFT_PX + COLUMN_PX * max(1, len(peers)) + RIGHT_PX, *ends, 0)
    ending = textwrap.wrap(str(found), WRAP) if found else ["no invariant was violated"]
    bottom = top + ROW_PX * (len(lines) + 1)
    height = bottom + 30 + 16 * len(ending)
    body = [
        *(
            _text(12, TOP_PX + 16 * i, words, style=BOLD if i == 0 else "")
            for i, words in enumerate(heading)
        ),
        *_lifelines(lines, x, top, bottom),
        *_times(lines, top),
    ]
    for arrow in _arrows(lines, [line for line in chart.lines if line.what == "lost"]):
        body += _draw_arrow(arrow, x, top, len(lines))
    for row, line in enumerate(lines):
        if line.peer < 0:
            body += _draw_band(line, width, top, row)
        elif line.message is None and line.other < 0:
            body += _draw_note(line, x[line.peer], top, row)
    # Texts last, so that they are above arrows.
    body.sort(key=lambda shape: shape.startswith("<text"))
    colour = RED if found else GREEN
    body.append(
        f'<rect x="8" y="{bottom + 8}" width="{width - 16}" height="{14 + 16 * len(ending)}" '
        f'fill="{colour}" fill-opacity="0.1"/>'
    )
    body += [_text(14, bottom + 26 + 16 * i, words, colour, BOLD) for i, words in enumerate(ending)]
    return (
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="DejaVu Sans Mono, Menlo, Consolas, '
            'monospace" font-size="11">\n'
            '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="3" '
            'orient="auto"><path d="M0,0 L7,3 L0,6 z" fill="context-stroke"/></marker></defs>\n'
            f'<rect width="{width}" height="{height}" fill="white"/>\n'
        )
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _heading(outcome: SimulationResult) -> list[str]:
    schedule = outcome.schedule
    title = (
        f"seed {schedule.seed}: {schedule.peers} peers, {schedule.weighted_topology}, "
        f"{schedule.aggregator}"
    )
    faults = "; ".join(map(str, schedule.faults)) or "no faults"
    return [title, *textwrap.wrap(f"faults: {faults}", WRAP)]


def _arrows(lines: Sequence[ChartLine], lost: Iterable[ChartLine] = ()) -> list[_Arrow]:
    """Return the arrows, and match each arrival with the event in which the message was sent. A
    duplicated message arrives twice, and a forged message was never sent. ``lost`` has the reasons
    why messages did not arrive."""
    found: list[_Arrow] = []
    on_the_way: dict[tuple[PeerId, PeerId], list[_Arrow]] = {}
    for row, line in enumerate(lines):
        if line.what in ("sent", "lied"):
            arrow = _Arrow(row, line)
            found.append(arrow)
            on_the_way.setdefault((line.peer, line.other), []).append(arrow)
        elif line.what == "arrived":
            candidates = [
                a
                for a in on_the_way.get((line.other, line.peer), ())
                if a.line.message == line.message
            ]
            fresh = [a for a in candidates if not a.arrived] or candidates[-1:]
            if fresh:
                fresh[0].arrived.append(row)
            else:
                found.append(_Arrow(None, line, [row]))
    for end in lost:
        candidates = [
            a for a in on_the_way.get((end.peer, end.other), ()) if a.line.message == end.message
        ]
        for arrow in [a for a in candidates if not a.arrived and not a.fate and a.line.t <= end.t][
            -1:
        ]:
            arrow.fate = end.text.partition(":")[0].replace("_", " ")
    return found


def _draw_arrow(arrow: _Arrow, x: dict[PeerId, int], top: int, rows: int) -> list[str]:
    line = arrow.line
    colour = (
        ORANGE
        if line.what == "lied"
        else GREEN
        if line.text.startswith("Commit r")
        else COLOURS[line.group]
    )
    if arrow.sent is None:  # sent before the picture begins, or forged
        y = _y(top, arrow.arrived[0])
        towards = 1 if x[line.other] > x[line.peer] else -1
        start = x[line.peer] + towards * 40
        return [
            _path((start, y), (x[line.peer], y), colour, "2 3"),
            _label(start, y, line.text, towards, colour),
        ]
    x1 = x[line.peer]
    x2 = x[line.other]
    y1 = _y(top, arrow.sent)
    towards = 1 if x2 > x1 else -1
    shapes = [
        _label(x1, y1, f"lied: {line.text}" if line.what == "lied" else line.text, towards, colour)
    ]
    for number, row in enumerate(arrow.arrived):
        shapes.append(_path((x1, y1), (x2, _y(top, row)), colour, "5 3" if number else ""))
    if not arrow.arrived:
        x3, y3 = x1 + STUB * (x2 - x1), y1 + 6
        shapes.append(
            f'<path d="M{x1},{y1} L{x3:.0f},{y3}" stroke="{colour}" stroke-opacity="0.55" '
            'fill="none"/>'
        )
        shapes.append(_text(x3 - 3, y3 + 4, f"✕ {arrow.fate}".strip(), RED))
    return shapes


def _draw_band(line: ChartLine, width: int, top: int, row: int) -> list[str]:
    """Draw a band across the whole picture for a fault of the network."""
    y = _y(top, row)
    stroke = f'stroke="{RED}" stroke-opacity="0.35" stroke-width="{ROW_PX - 4}"'
    return [
        f'<path d="M{LEFT_PX},{y} L{width - 8},{y}" {stroke} fill="none"/>',
        _label(LEFT_PX, y + 6, line.text[:110], 1, RED),
    ]


def _draw_note(line: ChartLine, x: int, top: int, row: int) -> list[str]:
    y, colour = _y(top, row), _WORDS.get(line.what, INK)
    mark = (
        _text(x - 5, y + 5, "✖", RED, f'{BOLD} font-size="15"')
        if line.what in ("died", "halted")
        else f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>'
    )
    return [mark, _label(x, y + 6, _note(line), 1, colour)]


def _note(line: ChartLine) -> str:
    """Return the text next to an event on a peer's line."""
    word = {"reported": "", "link": "link "}.get(line.what, f"{line.what} ")
    return f"{word}{line.text}"[:64]


def _lifelines(
    lines: Sequence[ChartLine], x: dict[PeerId, int], top: int, bottom: int
) -> list[str]:
    """Draw the vertical lines of the peers: solid while a peer runs, dotted while it does not."""
    shapes = []
    for peer, at in x.items():
        shapes.append(_text(at - 22, top - 12, f"peer {peer}", style=BOLD))
        begins, alive = top, True
        own = [
            (row, line)
            for row, line in enumerate(lines)
            if line.peer == peer and line.what in ("started", "died", "halted")
        ]
        if own and own[0][1].what == "started":
            alive = False
        for row, line in [*own, (None, None)]:
            ends = bottom if row is None else _y(top, row)
            dots = "" if alive else ' stroke-dasharray="1 5"'
            shapes.append(
                f'<path d="M{at},{begins} L{at},{ends}" stroke="{INK}" stroke-opacity="0.5"{dots}/>'
            )
            begins, alive = ends, line is not None and line.what == "started"
    return shapes


def _times(lines: Sequence[ChartLine], top: int) -> list[str]:
    """Draw a time label in each row with a time other than that of the row above."""
    shown, shapes = "", []
    for row, line in enumerate(lines):
        if (words := f"{line.t:.4f} s") != shown:
            shapes.append(_text(12, _y(top, row) + 4, words, "#555555"))
            shown = words
    return shapes


def _y(top: int, row: int) -> int:
    return top + ROW_PX * row + ROW_PX // 2


def _path(begins: tuple[float, float], ends: tuple[float, float], colour: str, dashes: str) -> str:
    (x1, y1), (x2, y2) = begins, ends
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<path d="M{x1:.0f},{y1} L{x2:.0f},{y2}" stroke="{colour}" fill="none"{dashed} '
        'marker-end="url(#tip)"/>'
    )


def _label(x: float, y: float, words: str, towards: int, colour: str) -> str:
    anchor = "start" if towards > 0 else "end"
    # A white outline keeps the text readable where an arrow passes behind it.
    edge = 'paint-order="stroke" stroke="white" stroke-width="3"'
    place = f'x="{x + 7 * towards:.0f}" y="{y - 2:.0f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}" font-size="10" {edge}>{escape(words)}</text>'


def _text(x: float, y: float, words: str, colour: str = INK, style: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}"{style}>{escape(words)}</text>'
