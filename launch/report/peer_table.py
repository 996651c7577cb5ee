"""Table of the peers of a run, for the screen of the launcher and of ``gossip top``.

Each peer has a line. The reason for its state is at the end of the line, or in lines below if there
is no room. All lines fit the terminal.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import ConsoleDimensions as Size
from rich.text import Text

from gossip.run import shown

from .peer_row import PeerRow
from .run_model import RunModel
from .words import clock, short_bytes

COLOURS = (
    "cyan",
    "magenta",
    "green",
    "yellow",
    "blue",
    "bright_red",
    "bright_cyan",
    "bright_magenta",
)
STYLES = {
    "gone": "red",
    "lost": "red",
    "silent": "yellow",
    "no quorum": "yellow",
    "stopped": "yellow",
    "done": "green",
    "elsewhere": "dim",
    "ended": "dim",
}
COLUMNS = (
    ("peer", 4),
    ("stage", 5),
    ("state", 12),
    ("step", 7),
    ("lag", 5),
    ("steps/s", 7),
    ("waits", 5),
    ("late", 4),
    ("part", 4),
    ("trust", 5),
    ("cpu", 4),
    ("mem", 4),
    ("pid", 7),
    ("sent", 6),
)
"""Names and widths of the columns, the most important first. A narrow terminal shows only the first
columns. A column without any value is omitted."""
UNKNOWN = "-"
SILENT_S = 15.0
"""Time without a report after which the state of a peer is unknown, in seconds. A peer reports at
least every 5 s."""
BEHIND_S = 0.3
"""Maximum delay of a peer's report of its step, in seconds. If its last report is not older than
that, relative to the first peer, the peer does not count as behind."""
LATE_SHARE = 0.5
"""Share of late rounds at which a peer counts as in trouble: at least half of the rounds are closed
without it."""
WIDTH_MIN = 20
REASON_BEGIN = 5
REASON_LINES = 3


@dataclass(frozen=True, slots=True)
class PeerLine:
    """Line of one peer.

    Attributes:
        state: State in one or two words.
        trouble: Severity of its problem; 0 means none.
        why: Reason for the state; "" if the state needs no reason.
    """

    row: PeerRow
    state: str
    trouble: int
    why: str

    @property
    def trains(self) -> bool:
        return self.row.state == "training" and self.state not in ("lost", "silent")

    @property
    def pid(self) -> int | None:
        """Pid of its trainer; None if there is none. In a run that is over, no process is left."""
        return None if self.state == "lost" else self.row.pid

    def trained_at(self, now: float) -> float:
        """Return the time at which the speed is computed: ``now``, or the last step if the peer
        does not train."""
        last = self.row.pace.last_at
        return now if self.trains or last is None else last


def peer_lines(view: RunModel, now: float, over: bool = False) -> list[PeerLine]:
    """Return the line of every peer, ordered by id. ``over``: whether the run is over."""
    return [_peer_line(row, view, now, over) for _, row in sorted(view.rows.items())]


def _peer_line(row: PeerRow, view: RunModel, now: float, over: bool) -> PeerLine:
    state, trouble, why = _state(row, now, over)
    if state == "done" and row.step < min(view.progress.steps or 0, view.progress.step):
        state, why = "left early", f"others continued from step {row.step}"
    if not trouble and row.state == "training" and behind(row, view):
        trouble = 2
    if not trouble and (row.figures.late_share(view.progress.round) or 0.0) >= LATE_SHARE:
        trouble = 1
    if row.suspected:
        trouble, why = max(trouble, 4), why or row.doubt
    lie = f"[{row.lie}]" if row.lie else ""
    return PeerLine(row, state, trouble, shown("  ".join(filter(None, (lie, why)))))


def _state(row: PeerRow, now: float, over: bool) -> tuple[str, int, str]:
    """Return the state in one or two words, its severity, and its reason."""
    silent_s = now - row.figures.last_at
    match row.state:
        case "gone":
            return ("ended", 0, "") if row.asked else ("gone", 0 if row.left else 9, row.exit)
        case "done":
            return "done", 0, ""
        case _ if over:
            waited = f"it waited for a quorum {row.pause}" if row.pause else ""
            return "lost", 8, "  ".join(filter(None, (row.doubt, waited)))
        case "stopped":
            return "stopped", 8, ""
        case "training" | "here" if silent_s > SILENT_S:
            return "silent", 7, f"no report for {clock(silent_s)}"
        case "training" if row.quarantined:
            return "quarantined", 6, row.doubt
        case "training" if row.pause:
            return "no quorum", 5, row.pause
        case "training" if row.skipped_by:
            return f"skipped by {len(row.skipped_by)}", 5, row.figures.skipped_for
        case "starting" if row.figures.rounds:
            return "starting", 3, ""
        case state:
            return state, 0, ""


def behind(row: PeerRow, view: RunModel) -> int:
    """Return the number of steps by which a peer lags behind the foremost peer."""
    gap, last, first = view.progress.step - row.step, row.pace.last_at, view.progress.pace.last_at
    if gap <= 0 or last is None or first is None or first - last <= BEHIND_S:
        return 0
    return gap


def height(lines: Sequence[PeerLine], width: int) -> int:
    """Return an upper bound of the height of the table. It counts lines for each reason, although a
    short reason needs none."""
    return 1 + sum(1 + len(_reason(line, width)) for line in lines)


def _reason(line: PeerLine, width: int) -> list[str]:
    """Return the reason for a state, wrapped into lines."""
    return textwrap.wrap(line.why, max(width - REASON_BEGIN, WIDTH_MIN))[:REASON_LINES]


def table(
    view: RunModel, lines: Sequence[PeerLine], now: float, room: Size, most: int = 10**6
) -> list[Text]:
    """Return a table that fits ``room``. It shows all peers, ordered by id. If they do not fit, it
    shows the peers with the most severe problems first, and a line with the number of the others.

    Args:
        most: Maximum number of peers for which all peers are shown. With more peers, only peers
            with a problem have a line.
    """
    cells = {line.row.peer: _cells(line, view, now) for line in lines}
    columns = [
        (name, wide)
        for name, wide in COLUMNS
        if any(each[name] != UNKNOWN for each in cells.values())
    ]
    found = [Text(_line(columns, {name: name for name, _ in columns}, room.width), style="dim")]
    chosen = [line for line in lines if line.trouble] if len(lines) > most else list(lines)
    if height(chosen, room.width) > room.height:
        chosen.sort(key=lambda line: (-line.trouble, line.row.peer))
    drawn = 0
    for line in chosen:
        texts = _row(line, columns, cells[line.row.peer], room.width)
        is_last = drawn == len(lines) - 1  # If not, the line about the other peers needs room.
        if len(found) + len(texts) + (not is_last) > room.height:
            break
        found += texts
        drawn += 1
    kept = {id(line) for line in chosen[:drawn]}
    if others := [line for line in lines if id(line) not in kept]:
        found.append(Text(_others(others, view), style="dim"))
    return found


def _cells(line: PeerLine, view: RunModel, now: float) -> dict[str, str]:
    """Return the text of each column by name; ``UNKNOWN`` for a missing value."""
    row, known, at = line.row, line.row.figures, line.trained_at(now)
    rate, stage, usage = row.pace.per_s(at), view.stages.get(row.peer), row.figures.usage
    return {
        "peer": str(row.peer),
        "stage": UNKNOWN if stage is None else str(stage.number),
        "state": line.state,
        "step": str(row.step * view.local_steps) if row.step else UNKNOWN,
        "lag": str(behind(row, view) * view.local_steps) if line.trains else UNKNOWN,
        "steps/s": UNKNOWN if rate is None else f"{rate * view.local_steps:.3g}",
        "waits": _percent(row.pace.waiting(at)),
        "late": _percent(known.late_share(view.progress.round)),
        "part": _percent(known.participation),
        "trust": f"{row.trust:.2f}",
        "cpu": _percent(known.cpu()),
        "mem": short_bytes(usage.memory) if usage and usage.memory else UNKNOWN,
        "pid": str(line.pid or UNKNOWN),
        "sent": short_bytes(usage.sent_bytes) if usage else UNKNOWN,
    }


def _row(
    line: PeerLine, columns: Sequence[tuple[str, int]], cells: Mapping[str, str], width: int
) -> list[Text]:
    """Return a peer's line, and further lines for a reason that does not fit in it."""
    text = Text(_line(columns, cells, width))
    begin, wide = COLUMNS[0][1], dict(columns)["state"]
    text.stylize(COLOURS[line.row.peer % len(COLOURS)], 0, begin)
    at = max(text.plain.find(line.state[:wide], begin), 0)
    text.stylize(STYLES.get(line.state, "yellow" if line.trouble else ""), at, at + wide)
    colour = "magenta" if line.row.suspected else "dim"
    if not line.why:
        return [text]
    if text.cell_len + 2 + cell_len(line.why) <= width:
        return [text.append(f"  {line.why}", colour)]
    return [text, *(Text(" " * REASON_BEGIN + each, colour) for each in _reason(line, width))]


def _others(lines: Sequence[PeerLine], view: RunModel) -> str:
    """Return the line about the peers that have no line of their own: the number of peers in each
    state."""
    states = Counter(line.state for line in lines)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    steps = [line.row.step * view.local_steps for line in lines if line.row.step]
    return f" +{len(lines)}  {counts}{_spread(steps) if steps else ''}"


def _spread(steps: Sequence[int]) -> str:
    first, last = min(steps), max(steps)
    return f"; step {first}" if first == last else f"; steps {first} to {last}"


def _line(columns: Sequence[tuple[str, int]], cells: Mapping[str, str], width: int) -> str:
    """Return a line with as many cells as fit. The state is left-aligned, all other cells are
    right-aligned."""
    gap = 2 if width >= sum(each for _, each in columns) + 2 * (len(columns) - 1) else 1
    parts, used = list[str](), 0
    for name, wide in columns:
        cell = cells[name]
        used += wide + (gap if parts else 0)
        if used > width:
            break
        short = cell if cell_len(cell) <= wide else set_cell_size(cell, wide)
        parts.append(f"{short:{'<' if name == 'state' else '>'}{wide}}")
    return (" " * gap).join(parts)


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"
