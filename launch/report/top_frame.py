"""Screen of ``gossip top``: the state of the run, a table of its peers, and the last events. All
lines fit the terminal. If not all peers fit, those with a problem come first."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from gossip.run import shown
from gossip.topologies import with_option

from . import live_frame, peer_table, run_state
from .folding import folded
from .live_frame import NO_LOSS
from .peer_table import PeerLine, Size, peer_lines
from .run_reader import RunReader
from .screens import MARKS, lacks_loss
from .words import clock, counted, named, near

EVENTS_LEAST, EVENTS_MOST = 4, 16
MACHINE_LINES = 2
EVENT_BEGIN = 13  # width of the time and the number of occurrences, in columns
SERVED_ROUNDS = 100


def frame(reader: RunReader, now: float, size: Size) -> list[Text]:
    """Return the lines, none wider than the terminal, and at most as many as its height. ``now`` is
    in seconds since 1970; for a run that is over, it is the time of the end."""
    width = max(size.width - 1, peer_table.WIDTH_MIN)
    over = reader.state.over
    lines = peer_lines(reader.view, now, over)
    saves_to = reader.view.progress.saves_to
    saved = near(saves_to) if saves_to else "not saved through gossip"
    head = [
        Text(_title(reader, now), style="bold"),
        _progress(reader, now, over, width),
        _health(reader, over, lines),
        *([Text(f"model: {saved}", style="dim")] if over else []),
        Text(_serving(reader), style="dim"),
        *_machines(reader, over, width),
        *([Text(NO_LOSS, style="dim")] if lacks_loss(reader.view) else []),
    ]
    room = max(size.height - len(head) - 3, live_frame.ROWS_MIN)
    left = max(room - peer_table.height(lines, width), EVENTS_LEAST)
    events = min(left, EVENTS_MOST, max(room - 4, 0))
    table = peer_table.table(reader.view, lines, now, Size(width, room - events))
    last, earlier = _events(reader, width, events)
    found = [*head, Text(), *table, *([_not_shown(reader, earlier, width), *last] if last else [])]
    return live_frame.fitted(found, width)[: max(size.height, 1)]


# --- the run --------------------------------------------------------------------------------------


def _title(reader: RunReader, now: float) -> str:
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
    since = clock(now - reader.view.began) if reader.view.began is not None else ""
    state = reader.state
    where = f"on {', '.join(state.hosts)}" if state.hosts and state.state != "elsewhere" else ""
    return "  ".join(filter(None, (state.name, state.in_words, since, what, where)))


def _progress(reader: RunReader, now: float, over: bool, width: int) -> Text:
    if reader.view.progress.round < 0:
        if over:
            return Text("no round was done")
        here, of = len(reader.view.lives.here), counted(len(reader.view.rows), "peer")
        return Text(f"no round yet: {here} of {of} here")
    total = reader.view.progress.steps or reader.settings.rounds
    return live_frame.progress_line(reader.view, None if over else now, total, width)


def _health(reader: RunReader, over: bool, lines: Sequence[PeerLine]) -> Text:
    if over:
        ended = sum(line.state == "done" for line in lines)
        of = counted(len(lines), "peer")
        lost = [line.row.peer for line in lines if line.state == "lost"]
        without = f"; lost, without a last report: {named(lost)}" if lost else ""
        return Text(f"over: {ended} of {of} finished{without}", style="red" if lost else "")
    line = live_frame.health(reader.view)
    if silent := [each.row.peer for each in lines if each.state == "silent"]:
        line.append(f"; silent: {named(silent)}", style="yellow")
    return line


def _machines(reader: RunReader, over: bool, width: int) -> list[Text]:
    """Return the lines about the machines; no lines if no machine was reported."""
    line, is_ill = reader.view.machines.line(over)
    style = "yellow" if is_ill else "dim"
    return [Text(part, style) for part in textwrap.wrap(shown(line), width)[:MACHINE_LINES]]


def _serving(reader: RunReader) -> str:
    """Return the line about the server of the last commit, in a pipeline of each stage."""
    last = list(reader.view.commits)[-SERVED_ROUNDS:]
    if not last:
        return (
            "no server: each peer averages with some others"
            if reader.view.progress.round >= 0
            else ""
        )
    newest = {commit.stage: commit for commit in last}
    makers = ", ".join(
        f"stage {stage} " * bool(reader.view.stages) + f"round {commit.round} by {commit.server}"
        for stage, commit in sorted(newest.items())
    )
    again = sum(commit.made_at > 0 for commit in last)
    backup = f"; {again} of the last {len(last)} needed a backup server" if again else ""
    return f"served: {makers}{backup}"


# --- what happened --------------------------------------------------------------------------------


def _not_shown(reader: RunReader, earlier: int, width: int) -> Text:
    """Return a line with the number of earlier events and, if it fits, the command that shows
    them."""
    if not earlier:
        return Text()
    count = f"  {counted(earlier, 'event')} before"
    where = f" (all: gossip report {run_state.word_for(reader.folder)})"
    return Text(count + where if len(count) + cell_len(where) <= width else count, style="dim")


def _events(reader: RunReader, width: int, room: int) -> tuple[list[Text], int]:
    """Return the last events in at most ``room`` lines, and the number of earlier events. Repeated
    events share one line, with their number."""
    found, drawn = list[Text](), 0
    for happening, count in reversed(folded(reader.happenings, room)):
        stamp = clock(happening.at - (reader.view.began or happening.at))
        times = f"{count}x" if count > 1 else ""
        words = shown(happening.text.replace(f"{reader.folder}/", ""))
        mark = MARKS.get(happening.text[:1], "")
        lines = textwrap.wrap(words, max(width - EVENT_BEGIN, 20)) or [""]
        if found and len(found) + len(lines) > room:
            break
        first = Text.assemble((f"{stamp:>7} {times:>4} ", "dim"), (lines[0], mark))
        others = [Text(" " * EVENT_BEGIN + line, mark) for line in lines[1:]]
        found[:0] = [first, *others]
        drawn += count
    return found[:room], reader.happened - drawn
