"""Where a run's words go: plain lines, or one table that is redrawn in place while
lines pass above it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gossip.run import shown, shown_line, shown_lines

from .view import PeerRow, RunView

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
MARKS = {
    "x": "bold red",
    "!": "yellow",
    "?": "bold magenta",
    "-": "magenta",
    "+": "green",
    "~": "green",
    "*": "bold",
}


class Screen(Protocol):
    """What a supervisor talks to."""

    def output(self, peer: int, text: str, err: bool) -> None:
        """A line that a peer wrote."""

    def say(self, text: str) -> None:
        """A line of ours about the run."""

    def tick(self, view: RunView) -> None:
        """Called several times a second."""

    def close(self, view: RunView) -> None:
        """The run is over."""


class PlainScreen:
    """Lines.

    Args:
        out: Where our lines and the peers' stdout go; their stderr goes to stderr.
        every_s: Seconds between two lines of progress.
        quiet: Only what a peer writes and what goes wrong.
        name: What stands before the lines that a peer writes.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        every_s: float = 1.0,
        quiet: bool = False,
        name: Callable[[int], str] = lambda peer: f"{peer}|",
    ) -> None:
        self._console = Console(file=out or sys.stdout, highlight=False, soft_wrap=True)
        self._errors = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._every_s, self._quiet, self._name = every_s, quiet, name
        self._began = time.monotonic()
        self._last = self._began
        self._last_round = -1

    def output(self, peer: int, text: str, err: bool) -> None:
        line = Text.assemble(
            (f"{self._name(peer)} ", COLOURS[peer % len(COLOURS)]), shown_line(text)
        )
        (self._errors if err else self._console).print(line)

    def say(self, text: str) -> None:
        if self._quiet and not text.startswith(("x", "error")):
            return
        self._console.print(stamped(text, time.monotonic() - self._began))

    def tick(self, view: RunView) -> None:
        now = time.monotonic()
        if not self._quiet and now - self._last >= self._every_s and view.round > self._last_round:
            self._last, self._last_round = now, view.round
            self.say(progress(view))

    def close(self, view: RunView) -> None:
        if view.round > self._last_round:
            self._last_round = view.round
            self.say(progress(view))


class LiveScreen:
    """A table of the peers that is redrawn in place; what happens is printed above it."""

    def __init__(self, title: str, rounds: int | None) -> None:
        self._console = Console(highlight=False)
        self._title, self._rounds = title, rounds
        self._began = time.monotonic()
        self._live = Live(
            Text("starting"), console=self._console, refresh_per_second=8, transient=False
        )
        self._live.start()

    def output(self, peer: int, text: str, err: bool) -> None:
        self._console.print(
            Text.assemble((f"{peer}| ", COLOURS[peer % len(COLOURS)]), shown_line(text)),
            soft_wrap=True,
        )

    def say(self, text: str) -> None:
        self._console.print(stamped(text, time.monotonic() - self._began), soft_wrap=True)

    def tick(self, view: RunView) -> None:
        self._live.update(self._draw(view))

    def close(self, view: RunView) -> None:
        self._live.update(self._draw(view), refresh=True)
        self._live.stop()

    def _draw(self, view: RunView) -> Group:
        of = f"/{self._rounds}" if self._rounds else ""
        head = f"{self._title}  round {max(view.round, 0)}{of}  {_figures(view)}"
        table = Table(box=None, padding=(0, 1), pad_edge=False)
        table.add_column("peer", justify="right", no_wrap=True, min_width=4)
        table.add_column("state", no_wrap=True, min_width=12)
        for name, width in (("round", 5), ("loss", 8), ("acc", 5), ("trust", 5)):
            table.add_column(name, justify="right", no_wrap=True, min_width=width)
        table.add_column("", no_wrap=True, overflow="ellipsis")
        for row in view.rows.values():
            table.add_row(*_cells(row, view))
        return Group(Text(head, style="bold", no_wrap=True), table)


def _cells(row: PeerRow, view: RunView) -> tuple[Text, ...]:
    state: str = row.state
    style = {"gone": "red", "stopped": "yellow", "done": "green"}.get(state, "")
    if row.state == "training" and row.skipped_by:
        state, style = f"skipped by {len(row.skipped_by)}", "yellow"
    if row.quarantined and row.state == "training":
        state, style = "quarantined", "magenta"
    server = " serves" if row.peer == view.server and row.state == "training" else ""
    why = "; ".join(row.reasons[:1]) if row.suspected else ""
    note = "  ".join(
        filter(
            None, (f"[{row.lie}]" if row.lie else "", why, row.exit if row.state == "gone" else "")
        )
    )
    return (
        Text(str(row.peer), style=COLOURS[row.peer % len(COLOURS)]),
        Text(f"{state}{server}", style=style),
        Text(str(row.round) if row.round >= 0 else "-"),
        Text(_figure(row.loss)),
        Text(_figure(row.accuracy)),
        Text(f"{row.trust:.2f}", style="magenta" if row.suspected else ""),
        Text(shown(note), style="dim"),
    )


def progress(view: RunView) -> str:
    """One line on how far the run is."""
    return f"round {view.round:5d}  {_figures(view)}"


def _figures(view: RunView) -> str:
    attempt = f" attempt {view.attempt}" if view.attempt else ""
    accuracy = f"  acc {view.accuracy:.3f}" if view.accuracy is not None else ""
    server = f"  server {view.server}{attempt}" if view.server is not None else ""
    suspects = [str(row.peer) for row in view.rows.values() if row.suspected]
    suspected = f"  suspected {','.join(suspects)}" if suspects else ""
    return f"loss {_figure(view.loss)}{accuracy}{server}  {view.alive} alive{suspected}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if abs(value) < 1000 else f"{value:.2e}"


def stamped(text: str, seconds: float) -> Text:
    """``00:04.9 x 3 dead ...``, coloured by its mark."""
    minutes, rest = divmod(seconds, 60)
    return Text.assemble(
        (f"{int(minutes):02d}:{rest:04.1f}  ", "dim"), (shown_lines(text), MARKS.get(text[:1], ""))
    )


def is_terminal() -> bool:
    """Whether somebody looks at a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
