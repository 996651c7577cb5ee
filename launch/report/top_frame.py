"""Screen of ``gossip top``: how the run stands, a table of its peers with those in trouble first
where not all of them fit, and the last events.

Pure: from the model of the run to lines that fit the terminal.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from gossip.observe import CommitRow
from gossip.run import shown
from gossip.topologies import with_option

from . import live_frame, run_state
from .folding import folded
from .live_frame import COLOURS, NO_LOSS, Size, behind, clock
from .run_model import PeerRow, RunModel
from .run_reader import Happening, RunReader
from .screens import MARKS, lacks_loss
from .words import counted, named, near, short_bytes

SILENT_S = 15.0
"""A peer tells of itself every 5 s at least: of one that trains and has not for so long, nothing is
known any more."""
LATE_SHARE = 0.5
"""Share of late rounds from which on a peer is in trouble: most rounds are closed without it."""
EVENTS_LEAST, EVENTS_MOST = 4, 16
REASON_BEGIN = 5
REASON_LINES = 3
MACHINE_LINES = 2
EVENT_BEGIN = 13  # columns for the time and the count
SERVED_ROUNDS = 100
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
    ("sent", 6),
    ("cpu", 4),
    ("mem", 5),
)
"""Columns and their widths. The least important is last: a narrower terminal has no room for it."""
STYLES = {
    "gone": "red",
    "lost": "red",
    "silent": "yellow",
    "no quorum": "yellow",
    "stopped": "yellow",
    "done": "green",
    "elsewhere": "dim",
}


@dataclass(frozen=True)
class Standing:
    """How the run stands as a whole.

    Attributes:
        state: In a word or a few, as ``gossip ls`` has it.
        over: Whether nothing more will come.
        where: Hosts of its launchers.
    """

    state: str
    over: bool
    where: str = ""


@dataclass(frozen=True, slots=True)
class PeerLine:
    """Line of one peer.

    Attributes:
        state: In a word or two.
        trouble: 0: none; the more, the sooner somebody should look.
        why: Of its state; "": it needs no reason.
    """

    row: PeerRow
    state: str
    trouble: int
    why: str


def frame(reader: RunReader, standing: Standing, now: float, size: Size) -> list[Text]:
    """The lines, none wider than the terminal, and no more than it is high. ``now``: seconds since
    1970; of a run that is over, when it ended."""
    width = max(size.width - 1, live_frame.WIDTH_MIN)
    lines = peer_lines(reader, standing, now)
    head = [
        Text(_title(reader, standing, now), style="bold"),
        _progress(reader, now, standing.over, width),
        _health(reader, standing, lines),
        Text(_serving(reader, width), style="dim"),
        *_machines(reader, standing, width),
        *([Text(NO_LOSS, style="dim")] if lacks_loss(reader.view) else []),
    ]
    room = max(size.height - len(head) - 3, live_frame.ROWS_MIN)
    events = min(max(room - _height(lines, width), EVENTS_LEAST), EVENTS_MOST, max(room - 4, 0))
    table = _table(reader.view, lines, now, width, room - events)
    last, earlier = _events(reader, width, events)
    found = [*head, Text(), *table, *([_not_shown(reader, earlier, width), *last] if last else [])]
    for line in found:
        line.plain = shown(line.plain) if not line.plain.isprintable() else line.plain
        line.truncate(width, overflow="ellipsis")
    return found[: max(size.height, 1)]


# --- the run --------------------------------------------------------------------------------------


def _title(reader: RunReader, standing: Standing, now: float) -> str:
    run = reader.settings
    peers = counted(max(run.peers, len(reader.view.rows)), "peer")
    topology = run.topology
    if run.server_weights:
        topology = with_option(topology, "weights", run.server_weights)
    what = f"{peers}, {topology}, {run.aggregator} (f={run.f})" if run.aggregator else peers
    if stages := {each.number for each in reader.view.stages.values()}:
        what += f", {len(stages)} stages"
    if run.local_steps > 1:
        what += f", {run.local_steps} local steps"
    if run.fragments > 1:
        what += f" in {run.fragments} fragments"
    what += ", overlap" if run.overlap else ""
    since = clock(now - reader.began) if reader.began is not None else ""
    where = f"on {standing.where}" if standing.where else ""
    return "  ".join(filter(None, (reader.name, standing.state, since, what, where)))


def _progress(reader: RunReader, now: float, over: bool, width: int) -> Text:
    rows = reader.view.rows
    if reader.view.round < 0:
        here = len(rows) - len(reader.view.missing)
        return Text(f"no round yet: {here} of {counted(len(rows), 'peer')} here")
    return live_frame.progress_line(reader.view, None if over else now, _total(reader), width)


def _total(reader: RunReader) -> int | None:
    return reader.view.steps or reader.settings.rounds


def _health(reader: RunReader, standing: Standing, lines: Sequence[PeerLine]) -> Text:
    if standing.over:
        ended = sum(line.state == "done" for line in lines)
        of = counted(len(lines), "peer")
        lost = [line.row.peer for line in lines if line.state == "lost"]
        without = f"; lost, without a last word: {named(lost)}" if lost else ""
        told = f"over: {ended} of {of} came to the end{without}; model: {_model(reader.view)}"
        return Text(told, style="red" if lost else "")
    line = live_frame.health(reader.view)
    if silent := [each.row.peer for each in lines if each.state == "silent"]:
        line.append(f"; silent: {named(silent)}", style="yellow")
    return line


def _machines(reader: RunReader, standing: Standing, width: int) -> list[Text]:
    """How the machines do; no line where none has told of itself."""
    line, is_ill = reader.view.machines.line(standing.over)
    style = "yellow" if is_ill else "dim"
    return [Text(part, style) for part in textwrap.wrap(shown(line), width)[:MACHINE_LINES]]


def _model(view: RunModel) -> str:
    return near(view.saves_to) if view.saves_to else "not saved through gossip"


def _serving(reader: RunReader, width: int) -> str:
    """Return the line about the servers: of the last rounds, most often first, as many as there is
    room for."""
    last = list(reader.view.commits)[-SERVED_ROUNDS:]
    if not last:
        return "no server: each peer averages with some others" if reader.view.round >= 0 else ""
    if reader.view.stages:
        return _serving_stages(last)
    again = sum(commit.made_at > 0 for commit in last)
    line = f"served: round {last[-1].round} by {last[-1].server}; " + (
        f"{again} of the last {len(last)} needed a backup server; "
        if again
        else f"the last {len(last)}: "
    )
    counts = Counter(commit.server for commit in last).most_common()
    parts = [f"{peer} {count}x" for peer, count in counts]
    for most in range(len(parts), 0, -1):
        more = f", {len(parts) - most} others" if most < len(parts) else ""
        if len(line) + len(told := ", ".join(parts[:most]) + more) <= width:
            return line + told
    return line


def _serving_stages(last: Sequence[CommitRow]) -> str:
    """The last commit of each stage: its round and who has made it."""
    newest = {commit.stage: commit for commit in last}
    told = ", ".join(
        f"stage {stage} round {commit.round} by {commit.server}"
        for stage, commit in sorted(newest.items())
    )
    again = sum(commit.made_at > 0 for commit in last)
    more = (
        f"; {again} of the last {counted(len(last), 'commit')} needed a backup server"
        if again
        else ""
    )
    return f"served: {told}{more}"


# --- the peers ------------------------------------------------------------------------------------


def peer_lines(reader: RunReader, standing: Standing, now: float) -> list[PeerLine]:
    """Return the line of every peer, by number."""
    return [_peer_line(row, reader, standing, now) for _, row in sorted(reader.view.rows.items())]


def _peer_line(row: PeerRow, reader: RunReader, standing: Standing, now: float) -> PeerLine:
    state, trouble, why = _state(row, standing, now)
    if state == "done" and row.step < min(reader.view.steps or 0, reader.view.step):
        state, why = "left early", f"others went on from step {row.step}"
    if not trouble and row.state == "training" and behind(row, reader.view):
        trouble = 2
    if not trouble and (row.figures.late_share(reader.view.round) or 0.0) >= LATE_SHARE:
        trouble = 1
    if row.suspected:
        trouble, why = max(trouble, 4), why or row.doubt
    lie = f"[{row.lie}]" if row.lie else ""
    return PeerLine(row, state, trouble, "  ".join(filter(None, (lie, why))))


def _state(row: PeerRow, standing: Standing, now: float) -> tuple[str, int, str]:
    """In a word or two, how bad that is, and why it is so."""
    silent_s = now - row.figures.last_at
    match row.state:
        case "gone":
            return ("ended", 0, "") if row.asked else ("gone", 0 if row.left else 9, row.exit)
        case "done":
            return "done", 0, ""
        case _ if standing.over:
            waited = f"it waited for a quorum {row.pause}" if row.pause else ""
            return "lost", 8, "  ".join(filter(None, (row.doubt, waited)))
        case "stopped":
            return "stopped", 8, ""
        case "training" | "here" if silent_s > SILENT_S:
            return "silent", 7, f"nothing heard for {clock(silent_s)}"
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


def _height(lines: Sequence[PeerLine], width: int) -> int:
    """Return the height of the table, or a little more: a short reason has room beside its peer."""
    return 1 + sum(1 + len(_reason(line, width)) for line in lines)


def _reason(line: PeerLine, width: int) -> list[str]:
    """Return the reason of a state, in lines."""
    return textwrap.wrap(shown(line.why), max(width - REASON_BEGIN, 20))[:REASON_LINES]


def _table(
    view: RunModel, lines: Sequence[PeerLine], now: float, width: int, room: int
) -> list[Text]:
    """All peers by number, or those who fit: most trouble first, and the number of the others."""
    left_out = set() if any(map(_trains, lines)) else {"lag"}
    left_out |= set() if view.stages else {"stage"}
    columns = [each for each in COLUMNS if each[0] not in left_out]
    table = [Text(_cells(columns, {name: name for name, _ in columns}, width), style="dim")]
    if _height(lines, width) > room:
        lines = sorted(lines, key=lambda line: (-line.trouble, line.row.peer))
    for drawn, line in enumerate(lines):
        texts = _row(line, columns, view, now, width)
        last = drawn == len(lines) - 1  # or there is one more line, for the others
        if len(table) + len(texts) + (not last) > room:
            table.append(Text(_others(lines[drawn:], view), style="dim"))
            break
        table += texts
    return table


def _trains(line: PeerLine) -> bool:
    return line.row.state == "training" and line.state not in ("lost", "silent")


def trained_at(line: PeerLine, now: float) -> float:
    """When its speed is looked at: of one that trains no more, as it was when it did."""
    last = line.row.pace.last_at
    return now if _trains(line) or last is None else last


def _row(
    line: PeerLine, columns: Sequence[tuple[str, int]], view: RunModel, now: float, width: int
) -> list[Text]:
    """A peer's line, and others for a reason that has no room in it."""
    row, known, trains = line.row, line.row.figures, _trains(line)
    at = trained_at(line, now)
    rate, waits = row.pace.per_s(at), row.pace.waiting(at)
    late, part, cpu = known.late_share(view.round), known.participation, known.cpu()
    cells = {
        "peer": str(row.peer),
        "stage": live_frame.stage_word(row.peer, view),
        "state": line.state,
        "step": str(row.step * view.local_steps) if row.step else "-",
        "lag": str(behind(row, view) * view.local_steps) if trains else "-",
        "steps/s": f"{rate * view.local_steps:.3g}" if rate is not None else "-",
        "waits": _percent(waits),
        "late": _percent(late),
        "part": _percent(part),
        "trust": f"{row.trust:.2f}",
        "sent": short_bytes(known.usage.sent_bytes) if known.usage else "-",
        "cpu": _percent(cpu),
        "mem": short_bytes(known.usage.memory) if known.usage and known.usage.memory else "-",
    }
    text = Text(_cells(columns, cells, width))
    begin = COLUMNS[0][1]
    text.stylize(COLOURS[row.peer % len(COLOURS)], 0, begin)
    style = STYLES.get(line.state, "yellow" if line.trouble else "")
    wide = dict(columns)["state"]
    at = max(text.plain.find(line.state[:wide], begin), 0)
    text.stylize(style, at, at + wide)
    why, colour = shown(line.why), "magenta" if row.suspected else "dim"
    if not why:
        return [text]
    if text.cell_len + 2 + cell_len(why) <= width:
        return [text.append(f"  {why}", colour)]
    return [text, *(Text(" " * REASON_BEGIN + each, colour) for each in _reason(line, width))]


def _others(lines: Sequence[PeerLine], view: RunModel) -> str:
    """Those that the table has no row for, counted by their states."""
    states = Counter(line.state for line in lines)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    steps = [line.row.step * view.local_steps for line in lines if line.row.step]
    spread = f"; {live_frame.steps_word(steps)}" if steps else ""
    return f" +{len(lines)}  {counts}{spread}"


def _cells(columns: Sequence[tuple[str, int]], cells: Mapping[str, str], width: int) -> str:
    """One row, as many of its cells as fit; words to the left, figures to the right."""
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
    return "-" if share is None else f"{share:.0%}"


# --- what happened --------------------------------------------------------------------------------


def _not_shown(reader: RunReader, earlier: int, width: int) -> Text:
    """How many events there were before those that are shown, and where they are, if that fits."""
    if not earlier:
        return Text()
    count = f"  {counted(earlier, 'event')} before"
    where = f" (all: gossip report {run_state.word_for(reader.folder)})"
    return Text(count + where if len(count) + cell_len(where) <= width else count, style="dim")


def _events(reader: RunReader, width: int, room: int) -> tuple[list[Text], int]:
    """The last that happened, in so many lines, and how much happened before; what happened several
    times is told once, with a count."""
    found, told = list[Text](), 0
    happened = _happened(reader)
    for happening, count in reversed(folded(happened, room)):
        stamp = clock(happening.at - (reader.began or happening.at))
        times = f"{count}x" if count > 1 else ""
        words = shown(_near(happening, reader.folder))
        mark = MARKS.get(happening.text[:1], "")
        lines = textwrap.wrap(words, max(width - EVENT_BEGIN, 20)) or [""]
        if found and len(found) + len(lines) > room:
            break
        first = Text.assemble((f"{stamp:>7} {times:>4} ", "dim"), (lines[0], mark))
        others = [Text(" " * EVENT_BEGIN + line, mark) for line in lines[1:]]
        found[:0] = [first, *others]
        told += count
    return found[:room], reader.happened + len(reader.notes) - told


def _happened(reader: RunReader) -> list[Happening]:
    """Return the events and the notes of people, by time."""
    noted = [Happening(note.wall, f"# {note.text} ({note.by})") for note in reader.notes]
    if not noted:
        return list(reader.happenings)
    return sorted([*reader.happenings, *noted], key=lambda each: each.at)


def _near(happening: Happening, folder: Path) -> str:
    return happening.text.replace(f"{folder}/", "")
