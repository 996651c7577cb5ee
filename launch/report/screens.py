"""Output of a run: plain lines, or a few lines at the bottom of the terminal that are redrawn in
place while others pass above them."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TextIO, cast

from rich.console import Console
from rich.text import Text

from gossip.run import shown_line, shown_lines

from .folding import EventFolder
from .live_frame import NO_LOSS, About, figure, frame
from .merging import PeerOutput, SharedLine, label
from .peer_table import COLOURS, Size
from .run_model import RunModel

MARKS = {
    "x": "bold red",
    "!": "yellow",
    "?": "bold magenta",
    "-": "magenta",
    "+": "green",
    "~": "green",
    "*": "bold",
}
ENDS = ("x", "error")
"""Lines that tell of an end: what the peer has written before it is shown first."""
REDRAW_S = 0.25
NO_LOSS_STEPS = 10
"""A script that logs a loss at all has mostly done so by then."""


class Screen(Protocol):
    """Output of a supervisor."""

    def output(self, peer: int, text: str, err: bool) -> None:
        """A line that a peer wrote."""

    def print_line(self, text: str) -> None:
        """A line of ours about the run."""

    def tick(self, view: RunModel) -> None:
        """Called several times a second."""

    def close(self, view: RunModel) -> None:
        """The run is over."""


class LastingStream(io.TextIOBase):
    """A stream that may be lost: its reader leaves (``| head``), its terminal is closed, its disk
    is full. Then text goes to the file ``spare``, as far as there is room for it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lost = stream, False
        self.spare = os.devnull

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return not self._lost and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        if not self._lost:
            try:
                self._stream.write(text)
                self._stream.flush()
            except OSError:
                self._lost = True
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.fileno())  # the end of what is buffered, and what others write
                os.close(null)
        if self._lost:
            with contextlib.suppress(OSError), open(self.spare, "a", encoding="utf-8") as file:
                file.write(text)
        return len(text)


def _console(stream: LastingStream, soft_wrap: bool = False) -> Console:
    return Console(file=cast(TextIO, stream), highlight=False, soft_wrap=soft_wrap)


class PlainScreen:
    """Lines.

    Args:
        out: Where our lines and the peers' stdout go; their stderr goes to stderr.
        every_s: Seconds between two lines of progress.
        quiet: Only what a peer writes and what goes wrong.
        name: What stands before the lines that a peer writes.
        output: Whose lines are shown, as ``PeerOutput`` takes it.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        every_s: float = 1.0,
        quiet: bool = False,
        name: Callable[[int], str] = lambda peer: f"{peer}|",
        output: str = "all",
    ) -> None:
        self._streams = [LastingStream(stream) for stream in (out or sys.stdout, sys.stderr)]
        self._console, self._errors = (_console(stream, soft_wrap=True) for stream in self._streams)
        self._every_s, self._quiet, self._name = every_s, quiet, name
        self._output, self._folder = PeerOutput(output), EventFolder()
        self._began = time.monotonic()
        self._last = self._began
        self._last_round = -1
        self._loss_asked = False

    def introduce(self, about: About) -> None:
        """Say what was started. Once nobody reads the lines, they go to a file of the run."""
        for stream in self._streams:
            stream.spare = os.path.join(about.folder, SCREEN_LOG)
        self.print_line(about.in_words())

    def output(self, peer: int, text: str, err: bool) -> None:
        self._show(self._output.wrote(peer, text, err, time.monotonic()))

    def print_line(self, text: str) -> None:
        ends = text.startswith(ENDS)
        if ends:
            self._show(self._output.rest())
        if self._quiet and not ends:
            return
        now = time.monotonic()
        self._print(self._folder.fold(text, now), now)

    def tick(self, view: RunModel) -> None:
        now = time.monotonic()
        self._show(self._output.poll_lines(view, now))
        self._print(self._folder.due(now), now)
        if not self._quiet and now - self._last >= self._every_s and view.round > self._last_round:
            self._last, self._last_round = now, view.round
            self.print_line(progress(view))
            if not self._loss_asked and lacks_loss(view):
                self._loss_asked = True
                self.print_line(NO_LOSS)

    def close(self, view: RunModel) -> None:
        now = time.monotonic()
        self._show([*self._output.poll_lines(view, now), *self._output.rest()])
        self._print(self._folder.rest(now), now)
        if view.round > self._last_round:
            self._last_round = view.round
            self.print_line(progress(view))

    def _show(self, lines: Iterable[SharedLine]) -> None:
        for line in lines:
            single = len(line.peers) == 1
            name = (
                self._name(line.peers[0]) if single else label(line, self._output.everybody(line))
            )
            (self._errors if line.err else self._console).print(peer_line(line, name))

    def _print(self, lines: Iterable[str], now: float) -> None:
        for line in lines:
            self._console.print(stamped(line, now - self._began))


class LiveScreen:
    """The state of the run at the bottom of the terminal, redrawn in place; what happens and what
    peers write is printed above it.

    The cursor is never hidden and nothing of the terminal is set, so nothing is left of it,
    however the launcher ends.
    """

    def __init__(self, about: About, output: str = "merged") -> None:
        self._about = about
        streams = [LastingStream(stream) for stream in (sys.stdout, sys.stderr)]
        for stream in streams:
            stream.spare = os.path.join(about.folder, SCREEN_LOG)
        self._region = _Region(_console(streams[0]))
        self._errors: Console | None = None
        if not sys.stderr.isatty():
            self._errors = _console(streams[1], soft_wrap=True)
        self._output, self._folder = PeerOutput(output), EventFolder()
        self._began = time.monotonic()
        self._drawn_at = float("-inf")
        self._loss_asked = False
        self._here = f"{os.getcwd()}{os.sep}"

    def output(self, peer: int, text: str, err: bool) -> None:
        self._region.above(self._lines(self._output.wrote(peer, text, err, time.monotonic())))

    def print_line(self, text: str) -> None:
        now = time.monotonic()
        last = self._lines(self._output.rest()) if text.startswith(ENDS) else []
        self._region.above([*last, *self._events(self._folder.fold(text, now), now)])

    def tick(self, view: RunModel) -> None:
        now = time.monotonic()
        lines = [*self._lines(self._output.poll_lines(view, now))]
        lines += self._events(self._folder.due(now), now)
        if not self._loss_asked and lacks_loss(view):
            self._loss_asked = True
            lines += self._events([NO_LOSS], now)
        if lines or now - self._drawn_at >= REDRAW_S:
            self._draw(view, now, lines)

    def close(self, view: RunModel) -> None:
        now = time.monotonic()
        lines = self._lines([*self._output.poll_lines(view, now), *self._output.rest()])
        self._draw(view, now, [*lines, *self._events(self._folder.rest(now), now)])
        self._region.close()

    def _draw(self, view: RunModel, now: float, above: list[Text]) -> None:
        self._drawn_at = now
        size = self._region.size
        self._region.draw([Text(), *frame(self._about, view, now, self._began, size)], above)

    def _lines(self, lines: Iterable[SharedLine]) -> list[Text]:
        """Those for the terminal: stderr may go elsewhere."""
        found = []
        for line in lines:
            text = peer_line(line, label(line, self._output.everybody(line)))
            if line.err and self._errors is not None:
                self._errors.print(text)
            else:
                found.append(text)
        return found

    def _events(self, lines: Iterable[str], now: float) -> list[Text]:
        """Folded at words, so that they stand in a column of their own."""
        found = []
        for line in lines:
            whole = stamped(line.replace(self._here, ""), now - self._began)
            stamp, body = whole.divide([STAMP_WIDTH])
            first, *others = body.wrap(
                self._region.console, max(self._region.size.width - STAMP_WIDTH - 1, 10)
            ) or [Text()]
            found += [stamp + first, *(Text(" " * STAMP_WIDTH) + other for other in others)]
        return found


class _Region:
    """The lines at the bottom of a terminal. Elsewhere only the last ones are written."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._widths: list[int] = []  # of the lines that stand there
        self._shown: list[Text] = []
        self._stderr: TextIO | None = None

    @property
    def size(self) -> Size:
        found = shutil.get_terminal_size()  # a console keeps the width that it was made with
        return Size(found.columns, found.lines)

    def draw(self, lines: list[Text], above: list[Text]) -> None:
        """Puts ``lines`` in the place of those that stand there, and ``above`` over them."""
        self._shown = lines
        if not self.console.is_terminal:
            self._write("", above)
            return
        self._catch_stderr()
        back = self._erased()
        for line in lines:  # they may have been made for a wider terminal
            line.truncate(max(self.size.width - 1, 1))
        self._widths = [line.cell_len for line in lines]
        self._write(back, [*above, *lines])

    def above(self, lines: list[Text]) -> None:
        """Over those that stand there, which are as they were."""
        if self._widths:
            self.draw(self._shown, lines)
        else:
            self._write("", lines)

    def close(self) -> None:
        """Leave the lines where they are."""
        if not self.console.is_terminal:
            self._write("", self._shown)
        if self._stderr is not None:
            sys.stderr.flush()  # what it has of a line
            sys.stderr, self._stderr = self._stderr, None
        self._widths = []

    def _erased(self) -> str:
        """Return the codes that erase the lines. A terminal that has become narrower has broken
        them."""
        width = self.size.width
        rows = sum(max(1, -(-each // width)) for each in self._widths)
        return f"\r\x1b[{rows}A\x1b[J" if rows else "\r"

    def _write(self, first: str, lines: Iterable[Text]) -> None:
        with self.console.capture() as captured:
            for line in lines:
                self.console.print(line, soft_wrap=True)
        written = first + captured.get()
        if written:
            self.console.file.write(written)
            self.console.file.flush()

    def _catch_stderr(self) -> None:
        """Keep what this process itself writes to stderr out of the region."""
        if self._stderr is None and sys.stderr.isatty():
            self._stderr, sys.stderr = sys.stderr, _Above(self)


class _Above(io.TextIOBase):
    """Takes whole lines, and puts them over a region."""

    def __init__(self, region: _Region) -> None:
        self._region, self._rest = region, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        self._region.above([Text(line) for line in lines])
        return len(text)

    def flush(self) -> None:
        if self._rest:
            self.write("\n")

    def isatty(self) -> bool:
        return True


def screen_for(
    about: About,
    as_json: bool = False,
    quiet: bool = False,
    output: str | None = None,
    name: Callable[[int], str] = lambda peer: f"{peer}|",
) -> PlainScreen | LiveScreen:
    """Return the screen of a run: at the bottom of a terminal, or in lines. Output is ``merged`` on
    a terminal and ``all`` elsewhere, unless somebody has chosen."""
    on_terminal = is_terminal() and not as_json
    choice = output or ("merged" if on_terminal else "all")
    if on_terminal and not quiet:
        return LiveScreen(about, choice)
    out = sys.stderr if as_json else None
    screen = PlainScreen(out, every_s=10.0, quiet=quiet, name=name, output=choice)
    screen.introduce(about)
    return screen


def peer_line(line: SharedLine, name: str) -> Text:
    return Text.assemble(
        (f"{name} ", COLOURS[line.peers[0] % len(COLOURS)] if len(line.peers) == 1 else "bold"),
        shown_line(line.text),
    )


def lacks_loss(view: RunModel) -> bool:
    """Whether the script has had time to log a loss, and has not."""
    logged = view.loss is not None or any(row.loss is not None for row in view.rows.values())
    return view.step >= NO_LOSS_STEPS and not logged


def progress(view: RunModel) -> str:
    """One line on how far the run is."""
    attempt = f" attempt {view.attempt}" if view.attempt else ""
    suspects = [str(row.peer) for row in view.rows.values() if row.suspected]
    figures = (
        f"round {view.round:5d}",
        f"loss {figure(view.loss)}" if view.loss is not None else "",
        f"acc {view.accuracy:.3f}" if view.accuracy is not None else "",
        f"server {view.server}{attempt}" if view.server is not None and not view.stages else "",
        f"{view.alive} alive",
        _taking_part(view),
        f"suspected {','.join(suspects)}" if suspects else "",
    )
    return "  ".join(filter(None, figures))


def _taking_part(view: RunModel) -> str:
    """In the last round that was a step. Behind it there may be collective operations."""
    if view.participation.last is None:
        return ""
    who, alive = view.participation.last
    return f"{who} of {alive} took part" if who else "no usable update"


STAMP_WIDTH = 9
SCREEN_LOG = "screen.log"


def stamped(text: str, seconds: float) -> Text:
    """``00:04.9  x 3 dead ...``, coloured by its mark."""
    minutes, rest = divmod(seconds, 60)
    return Text.assemble(
        (f"{int(minutes):02d}:{rest:04.1f}  ", "dim"), (shown_lines(text), MARKS.get(text[:1], ""))
    )


def is_terminal() -> bool:
    """Whether somebody looks at a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
