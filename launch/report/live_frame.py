"""Lines at the bottom of the terminal while a run goes on: what was started, how far it is, whether
it is healthy, where the model will be, and a table of the peers.

Pure: from what is known of a run to lines that fit the terminal.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from gossip.run import shown

from .run_model import PeerRow, RunModel
from .words import counted, named, near, numbers

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
PEERS_MAX = 12
"""Maximum number of peers of which the table shows all. With more, it shows those that need
attention."""
BAR_WIDTH = 20
WIDTH_MIN = 20
ROWS_MIN = 3
NOTE_LINES = 2
"""Maximum number of lines of a note that does not fit beside its peer."""
BEHIND_S = 0.3
"""A peer may tell of its steps so much later than another; it is not behind then."""
NO_LOSS = "no loss is shown: add peer.log(loss=loss.item()) before optimizer.step()"
NOT_SAVED = 'your script\'s to save; peer.steps(N, save="ckpt") saves checkpoints'
STYLES = {
    "gone": "red",
    "stopped": "yellow",
    "done": "green",
    "elsewhere": "dim",
    "ended": "dim",
}
COLUMNS = (
    ("peer", 4),
    ("stage", 5),
    ("state", 12),
    ("step", 8),
    ("behind", 6),
    ("steps/s", 7),
    ("waits", 5),
    ("trust", 5),
)


@dataclass(frozen=True)
class About:
    """Description of the run that was started.

    Attributes:
        name: Of the run.
        what: Peers, topology and rule, in words.
        folder: Of the run, as it is shown.
        rounds: After which it ends by itself, if it was told so.
        model: Where its script saves the model, if that is known before it says so.
    """

    name: str
    what: str
    folder: str
    rounds: int | None = None
    model: str = ""

    def in_words(self) -> str:
        return f"{self.name}: {self.what}, in {self.folder}"


@dataclass(frozen=True)
class Size:
    """Size of the terminal, in characters."""

    width: int
    height: int


def frame(about: About, view: RunModel, now: float, began: float, size: Size) -> list[Text]:
    """The lines, none wider than the terminal, and fewer than it is high. ``now`` and ``began``:
    monotonic seconds."""
    width = max(size.width - 1, WIDTH_MIN)
    head = [
        Text(f"{about.name}: {about.what}", style="bold"),
        _progress(about, view, now, began, width),
        health(view),
        Text(f"model: {about.model or model(view)}", style="dim"),
        Text(f"files: {near(about.folder)}    stop: Ctrl-C", style="dim"),
    ]
    room = max(
        size.height - len(head) - 3, ROWS_MIN
    )  # the table's head, and a line above and below
    lines = [*head, *_table(view, now, width, room)]
    for line in lines:
        line.plain = shown(line.plain) if not line.plain.isprintable() else line.plain
        line.truncate(width, overflow="ellipsis")
    return lines[: max(size.height - 2, 1)]


def _progress(about: About, view: RunModel, now: float, began: float, width: int) -> Text:
    if view.round < 0:
        rows = own(view)
        here = len(rows) - len(view.missing)
        if _all_ended(rows):
            return Text(f"no round was done  {clock(now - began)}")
        return Text(f"starting: {here} of {counted(len(rows), 'peer')} here  {clock(now - began)}")
    total = view.steps or about.rounds
    return progress_line(view, now, total, width, "" if total else f"since {clock(now - began)}")


def progress_line(
    view: RunModel, now: float | None, total: int | None, width: int, since: str = ""
) -> Text:
    """Step, steps a second, loss and time left; without a known end no bar. ``now``: None: nobody
    trains any more."""
    trains = any(row.state in ("training", "stopped") for row in view.rows.values())
    rate = view.pace.per_s(now) if trains and now is not None else None
    each = view.local_steps
    figures = [f"{rate * each:.3g} steps/s" if rate is not None else "", *_figures(view)]
    if not total:
        return Text("  ".join(filter(None, (f"step {view.step * each}", *figures, since))))
    left = max(total - view.step, 0)
    figures.append(f"{clock(left / rate)} left" if rate and left else "")
    words = "  ".join(filter(None, (f"step {view.step * each}/{total * each}", *figures)))
    line, bar = Text(), min(BAR_WIDTH, width - cell_len(words) - 2)
    if bar >= 5:
        full = int(bar * min(view.step / total, 1.0))
        line.append("━" * full, "green").append("─" * (bar - full), "dim").append("  ")
    return line.append(words)


def _figures(view: RunModel) -> list[str]:
    return [
        f"loss {figure(view.loss)}" if view.loss is not None else "",
        f"acc {view.accuracy:.3f}" if view.accuracy is not None else "",
    ]


def _all_ended(rows: Sequence[PeerRow]) -> bool:
    return bool(rows) and all(row.state in ("gone", "done") for row in rows)


def own(view: RunModel) -> list[PeerRow]:
    """The peers of this launcher: of others it only hears."""
    return [row for row in view.rows.values() if row.state != "elsewhere"]


def health(view: RunModel) -> Text:
    """In a line, with what is wrong first."""
    rows = own(view)
    gone = [row for row in rows if row.state == "gone" and not (row.left or row.asked)]
    asked = sum(row.state == "gone" and row.asked for row in rows)
    wrong = [f"gone: {named(row.peer for row in gone)}"] if gone else []
    if stopped := [row.peer for row in rows if row.state == "stopped"]:
        wrong.append(f"stopped: {named(stopped)}")
    if suspected := [row.peer for row in view.rows.values() if row.suspected]:
        wrong.append(f"suspected: {named(suspected)}")
    if view.lost_rounds:
        wrong.append(f"{counted(len(view.lost_rounds), 'round')} lost")
    if view.participation.is_low:
        wrong.append(f"{view.participation.of_window:.0%} take part")
    training = sum(row.state == "training" for row in rows)
    done = sum(row.state == "done" for row in rows)
    of = counted(len(rows), "peer")
    trains, is_done = ("trains", "is done") if len(rows) == 1 else ("train", "are done")
    count = f"{training} of {of} {trains}" if training else f"{done} of {of} {is_done}"
    if training and done:
        count += f", {done} {'is' if done == 1 else 'are'} done"
    count += f", {asked} stopped" if asked else ""
    if training and len(rows) < len(view.rows):
        count += f", {view.alive} alive in all"
    if view.paused:
        return Text(f"paused: too few peers are alive; {count}", style="bold red")
    if wrong:
        lost = not training and not done and len(gone) == len(rows)
        state, style = ("failed", "bold red") if lost else ("degraded", "yellow")
        return Text(f"{state}: {count}; {'; '.join(wrong)}", style=style)
    if view.round < 0:
        return Text(f"waiting for peers {numbers(view.missing)}" if view.missing else "starting")
    return Text(f"{'healthy' if training else 'over'}: {count}", style="green")


def model(view: RunModel) -> str:
    """Return the place where the model will be."""
    if not view.saves_to:
        begun = view.saves_to is not None or view.round >= 0
        if not begun and _all_ended(own(view)):
            return "none was saved"
        return NOT_SAVED if begun else "the script has not said yet where it is saved"
    steps = (view.saves_every or 0) * view.local_steps
    every = f"every {steps} steps and at the end" if steps else "at the end"
    return f"{near(view.saves_to)}, {every}"


# --- the table ------------------------------------------------------------------------------------


def _table(view: RunModel, now: float, width: int, room: int) -> list[Text]:
    """Return the table of all peers or, where they are many or the terminal is low, of those that
    need attention, and the number of the others."""
    doubted = [row for row in view.rows.values() if row.state == "elsewhere" and row.suspected]
    everybody = [*own(view), *doubted]
    needy = [row for row in everybody if needs_attention(row, view)]
    few = everybody if len(everybody) <= PEERS_MAX else needy[:room]
    rows = [(row, _row(row, view, now, width)) for row in few]
    if sum(len(lines) for _, lines in rows) > room:
        rows = [(row, lines) for row, lines in rows if row in needy]
    columns = _columns(view)
    table, drawn = [Text(_line(columns, {n: n for n, _ in columns}), style="dim")], set[int]()
    for row, lines in rows:
        last = len(drawn) == len(everybody) - 1  # or there is one more line, for the others
        if len(table) + len(lines) + (not last) > room + 1:
            break
        table += lines
        drawn.add(row.peer)
    if others := [row for row in everybody if row.peer not in drawn]:
        table.append(Text(_others(others, view), style="dim"))
    return table


def needs_attention(row: PeerRow, view: RunModel) -> bool:
    """Whether somebody should look at the peer."""
    if row.state == "done":
        return False
    if view.round >= 0 and row.state != "training":
        return True
    return bool(row.skipped_by or row.suspected or row.quarantined or behind(row, view))


def behind(row: PeerRow, view: RunModel) -> int:
    """Steps that it lags behind the first."""
    gap, told, first = view.step - row.step, row.pace.last_at, view.pace.last_at
    if gap <= 0 or told is None or first is None or first - told <= BEHIND_S:
        return 0
    return gap


def _row(row: PeerRow, view: RunModel, now: float, width: int) -> list[Text]:
    """A peer's line, and others for a note that has no room in it."""
    state, trains = _state(row), row.state == "training"
    rate, waits = row.pace.per_s(now), row.pace.waiting(now)
    columns = _columns(view)
    cells = {
        "peer": str(row.peer),
        "stage": stage_word(row.peer, view),
        "state": state,
        "step": str(row.step * view.local_steps) if row.step else "-",
        "behind": str(behind(row, view) * view.local_steps) if trains else "-",
        "steps/s": f"{rate * view.local_steps:.3g}" if rate is not None and trains else "-",
        "waits": f"{waits:.0%}" if waits is not None and trains else "-",
        "trust": f"{row.trust:.2f}",
    }
    line = Text(_line(columns, cells))
    begin = COLUMNS[0][1]
    line.stylize(COLOURS[row.peer % len(COLOURS)], 0, begin)
    style = STYLES.get(state, "yellow" if state != row.state else "")
    at = sum(wide + 2 for _, wide in columns[: [name for name, _ in columns].index("state")])
    line.stylize(style, at, at + dict(columns)["state"])
    note, colour = _note(row), "magenta" if row.suspected else "dim"
    if not note:
        return [line]
    if line.cell_len + 2 + cell_len(note) <= width:
        return [line.append(f"  {note}", colour)]
    parts = textwrap.wrap(note, max(width - begin - 2, WIDTH_MIN - begin - 2))[:NOTE_LINES]
    return [line, *(Text(" " * (begin + 2) + part, colour) for part in parts)]


def _state(row: PeerRow) -> str:
    if row.state == "gone" and row.asked:
        return "ended"
    if row.state == "training" and row.quarantined:
        return "quarantined"
    if row.state == "training" and row.skipped_by:
        return f"skipped by {len(row.skipped_by)}"
    return row.state


def _note(row: PeerRow) -> str:
    """Why its trust is low, or how it ended; in a fault plan also how it lies."""
    lie = f"[{row.lie}]" if row.lie else ""
    why = row.doubt if row.suspected else ""
    return shown("  ".join(filter(None, (lie, why, row.exit if _state(row) == "gone" else ""))))


def _others(others: Sequence[PeerRow], view: RunModel) -> str:
    """Those that the table has no row for, counted by their states."""
    states: dict[str, int] = {}
    for row in others:
        states[_state(row)] = states.get(_state(row), 0) + 1
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    steps = [row.step * view.local_steps for row in others if row.state in ("training", "done")]
    spread = f"; {steps_word(steps)}" if steps else ""
    return f" +{len(others)}  {counts}{spread}"


def steps_word(steps: Sequence[int]) -> str:
    """``step 400``, ``steps 398 to 400``"""
    first, last = min(steps), max(steps)
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _columns(view: RunModel) -> list[tuple[str, int]]:
    """Those that this run has."""
    return [each for each in COLUMNS if each[0] != "stage" or view.stages]


def stage_word(peer: int, view: RunModel) -> str:
    """The number of a peer's stage; ``-``: it has none."""
    found = view.stages.get(peer)
    return "-" if found is None else str(found.number)


def _line(columns: Sequence[tuple[str, int]], cells: Mapping[str, str]) -> str:
    """One row; words to the left, figures to the right."""
    parts = []
    for name, width in columns:
        cell = cells[name]
        short = cell if cell_len(cell) <= width else set_cell_size(cell, width)
        parts.append(f"{short:{'<' if name == 'state' else '>'}{width}}")
    return "  ".join(parts)


# --- figures --------------------------------------------------------------------------------------


def figure(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.2e}"


def clock(seconds: float) -> str:
    """``0:21``, ``1:02:03``, ``3 d 4 h``"""
    whole = max(0, round(seconds))
    if whole >= 86400:
        return f"{whole // 86400} d {whole % 86400 // 3600} h"
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
