"""Lines at the bottom of the terminal during a run: description, progress, health, path of the
saved model, and a table of the peers. All lines fit the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from gossip.run import shown

from . import peer_table
from .peer_row import PeerRow
from .peer_table import WIDTH_MIN, PeerLine, Size, peer_lines
from .run_model import RunModel
from .words import clock, counted, figure, named, near, numbers

PEERS_MAX = 12
"""Maximum number of peers for which the table shows all peers. With more peers, it shows only those
that need attention."""
BAR_WIDTH = 20
ROWS_MIN = 3
NO_LOSS = "no loss is shown: add peer.log(loss=loss.item()) before optimizer.step()"
NOT_SAVED = 'saved only by your script; peer.epochs(N, save="ckpt") saves checkpoints'


@dataclass(frozen=True)
class About:
    """Description of the run that was started.

    Attributes:
        name: Name of the run.
        what: Peers, topology and rule, as text.
        folder: Folder of the run, as shown.
        rounds: Number of rounds after which the run ends; None if not set.
        model: Path of the saved model, if it is known before the script reports it; otherwise "".
    """

    name: str
    what: str
    folder: str
    rounds: int | None = None
    model: str = ""

    def in_words(self) -> str:
        return f"{self.name}: {self.what}, in {self.folder}"


def frame(about: About, view: RunModel, now: float, began: float, size: Size) -> list[Text]:
    """Return the lines, none wider than the terminal, and fewer than its height. ``now`` and
    ``began`` are monotonic seconds."""
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
    lines = [
        *head,
        *peer_table.table(view, _lines(view, now), now, Size(width, room + 1), PEERS_MAX),
    ]
    return fitted(lines, width)[: max(size.height - 2, 1)]


def fitted(lines: list[Text], width: int) -> list[Text]:
    """Return the lines, printable and cut to the width."""
    for line in lines:
        line.plain = shown(line.plain) if not line.plain.isprintable() else line.plain
        line.truncate(width, overflow="ellipsis")
    return lines


def _lines(view: RunModel, now: float) -> list[PeerLine]:
    """Return the lines of this launcher's peers, and of suspected peers of other launchers."""
    lines = peer_lines(view, now)
    own = [line for line in lines if line.row.state != "elsewhere"]
    return own + [line for line in lines if line.row.state == "elsewhere" and line.row.suspected]


def _progress(about: About, view: RunModel, now: float, began: float, width: int) -> Text:
    if view.progress.round < 0:
        rows, at = own(view), clock(now - began)
        if _all_ended(rows):
            return Text(f"no round was done  {at}")
        return Text(f"starting: {len(view.lives.here)} of {counted(len(rows), 'peer')} here  {at}")
    total = view.progress.steps or about.rounds
    return progress_line(view, now, total, width, "" if total else f"since {clock(now - began)}")


def progress_line(
    view: RunModel, now: float | None, total: int | None, width: int, since: str = ""
) -> Text:
    """Return a line with step, steps per second, loss and remaining time, and a bar if ``total`` is
    known. ``now``: None if the training is over."""
    trains = any(row.state in ("training", "stopped") for row in view.rows.values())
    rate = view.progress.pace.per_s(now) if trains and now is not None else None
    each = view.local_steps
    figures = [f"{rate * each:.3g} steps/s" if rate is not None else "", *losses(view)]
    if not total:
        return Text("  ".join(filter(None, (f"step {view.progress.step * each}", *figures, since))))
    left = max(total - view.progress.step, 0)
    figures.append(f"{clock(left / rate)} left" if rate and left else "")
    words = "  ".join(filter(None, (f"step {view.progress.step * each}/{total * each}", *figures)))
    line, bar = Text(), min(BAR_WIDTH, width - cell_len(words) - 2)
    if bar >= 5:
        full = int(bar * min(view.progress.step / total, 1.0))
        line.append("━" * full, "green").append("─" * (bar - full), "dim").append("  ")
    return line.append(words)


def losses(view: RunModel) -> list[str]:
    """Return texts of the loss and the accuracy, or "" if not known. The loss is omitted after a
    round without a usable update, because it is outdated."""
    loss, accuracy = view.progress.loss, view.progress.accuracy
    last = view.progress.participation.last
    return [
        f"loss {figure(loss)}" if loss is not None and (last is None or last[0]) else "",
        f"acc {accuracy:.3f}" if accuracy is not None else "",
    ]


def _all_ended(rows: Sequence[PeerRow]) -> bool:
    return bool(rows) and all(row.state in ("gone", "done") for row in rows)


def own(view: RunModel) -> list[PeerRow]:
    """Return the rows of this launcher's own peers."""
    return [row for row in view.rows.values() if row.state != "elsewhere"]


def health(view: RunModel) -> Text:
    """Return a line about the health of the run."""
    rows = own(view)
    gone = [row for row in rows if row.state == "gone" and not (row.left or row.asked)]
    asked = sum(row.state == "gone" and row.asked for row in rows)
    wrong = [f"gone: {named(row.peer for row in gone)}"] if gone else []
    if stopped := [row.peer for row in rows if row.state == "stopped"]:
        wrong.append(f"stopped: {named(stopped)}")
    if suspected := [row.peer for row in view.rows.values() if row.suspected]:
        wrong.append(f"suspected: {named(suspected)}")
    if view.progress.lost:
        wrong.append(f"{counted(len(view.progress.lost), 'round')} lost")
    if view.progress.participation.is_low:
        wrong.append(f"{view.progress.participation.of_window:.0%} take part")
    training = sum(row.state == "training" for row in rows)
    done = sum(row.state == "done" for row in rows)
    of = counted(len(rows), "peer")
    trains, is_done = ("trains", "is done") if len(rows) == 1 else ("train", "are done")
    count = f"{training} of {of} {trains}" if training else f"{done} of {of} {is_done}"
    if training and done:
        count += f", {done} {'is' if done == 1 else 'are'} done"
    count += f", {asked} stopped" if asked else ""
    if training and len(rows) < len(view.rows):
        count += f", {view.progress.alive} alive in all"
    if view.progress.paused:
        return Text(f"paused: too few peers are alive; {count}", style="bold red")
    if wrong:
        lost = not training and not done and len(gone) == len(rows)
        present = "degraded" if training or not done else "over"
        state, style = ("failed", "bold red") if lost else (present, "yellow")
        return Text(f"{state}: {count}; {'; '.join(wrong)}", style=style)
    if view.progress.round < 0:
        return Text(
            f"waiting for peers {numbers(view.lives.missing)}" if view.lives.missing else "starting"
        )
    return Text(f"{'healthy' if training else 'over'}: {count}", style="green")


def model(view: RunModel) -> str:
    """Return where and when the model is saved, as text."""
    if not view.progress.saves_to:
        begun = view.progress.saves_to is not None or view.progress.round >= 0
        if not begun and _all_ended(own(view)):
            return "none was saved"
        return NOT_SAVED if begun else "the script has not reported yet where it is saved"
    steps = (view.progress.saves_every or 0) * view.local_steps
    every = f"every {steps} steps and at the end" if steps else "at the end"
    return f"{near(view.progress.saves_to)}, {every}"
