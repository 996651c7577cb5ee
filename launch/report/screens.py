"""Output of a run: plain lines, or a region at the bottom of the terminal that is redrawn in place,
with all other lines above the region."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Protocol, TextIO, cast

from rich.console import Console
from rich.text import Text

from gossip.run import shown_line, shown_lines

from .folding import EventFolder
from .live_frame import NO_LOSS, About, frame, losses
from .merging import Choice, PeerOutput, SharedLine, label
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
"""Beginnings of lines about the end of a peer or an error. Output of peers that arrived earlier is
shown before such a line."""
REDRAW_S = 0.25
NO_LOSS_STEPS = 10
"""Number of steps after which a script that logs a loss has usually logged one."""


class Screen(Protocol):
    """Output of a supervisor."""

    def output(self, peer: int, text: str, err: bool) -> None:
        """Show a line that a peer wrote."""

    def print_line(self, text: str) -> None:
        """Show a line about the run."""

    def tick(self, view: RunModel) -> None:
        """Update the output. This is called several times a second."""

    def close(self, view: RunModel) -> None:
        """Finish the output. This is called when the run is over."""


class LastingStream(io.TextIOBase):
    """Stream that survives the loss of its output: the reader ends (``| head``), the terminal
    closes, or the disk is full. Further text is then appended to the file ``spare``, if
    possible."""

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
                os.dup2(null, self.fileno())  # also for buffered text, and for other writers
                os.close(null)
        if self._lost:
            with contextlib.suppress(OSError), open(self.spare, "a", encoding="utf-8") as file:
                file.write(text)
        return len(text)


def _console(stream: LastingStream, soft_wrap: bool = False) -> Console:
    return Console(file=cast(TextIO, stream), highlight=False, soft_wrap=soft_wrap)


class _BaseScreen(ABC):
    """Base of screens: selects the lines to show, and the time at which they are shown."""

    def __init__(self, output: Choice, folder: str = "") -> None:
        self._streams = [LastingStream(stream) for stream in (sys.stdout, sys.stderr)]
        self._output, self._folder = PeerOutput(output), EventFolder()
        self._began = time.monotonic()
        self._loss_asked = False
        if folder:
            self._set_spare(folder)

    def _set_spare(self, folder: str) -> None:
        """Set the file in the run's folder that receives the lines of a lost stream."""
        for stream in self._streams:
            stream.spare = os.path.join(folder, SCREEN_LOG)

    @abstractmethod
    def _show(self, lines: Iterable[SharedLine], events: Iterable[str], now: float) -> None:
        """Show lines that peers wrote, and then lines about the run."""

    def output(self, peer: int, text: str, err: bool) -> None:
        now = time.monotonic()
        self._show(self._output.wrote(peer, text, err, now), (), now)

    def print_line(self, text: str) -> None:
        now = time.monotonic()
        rest = self._output.rest() if text.startswith(ENDS) else ()
        self._show(rest, self._folder.fold(text, now), now)

    def _show_due(self, view: RunModel, now: float) -> None:
        """Show the lines that no longer wait."""
        events = self._folder.due(now)
        if not self._loss_asked and lacks_loss(view):
            self._loss_asked = True
            events.append(NO_LOSS)
        self._show(self._output.poll_lines(view, now), events, now)

    def _show_rest(self, view: RunModel, now: float) -> None:
        lines = [*self._output.poll_lines(view, now), *self._output.rest()]
        self._show(lines, self._folder.rest(now), now)


class PlainScreen(_BaseScreen):
    """Screen of plain lines.

    Args:
        out: Stream for the launcher's lines and the stdout of peers; the stderr of peers goes to
            stderr.
        every_s: Seconds between two lines of progress.
        quiet: Whether to show only the output of peers and lines about an end.
        name: Function that returns the prefix for the lines of a peer.
        output: Selection of the output of peers, as in ``PeerOutput``.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        every_s: float = 1.0,
        quiet: bool = False,
        name: Callable[[int], str] = lambda peer: f"{peer}|",
        output: Choice = "all",
    ) -> None:
        super().__init__(output)
        if out is not None:
            self._streams[0] = LastingStream(out)
        self._console, self._errors = (_console(stream, soft_wrap=True) for stream in self._streams)
        self._every_s, self._quiet, self._name = every_s, quiet, name
        self._last = self._began
        self._last_round = -1

    def introduce(self, about: About) -> None:
        """Print a description of the run. From now on, the lines of a lost stream go to a file in
        the run's folder."""
        self._set_spare(about.folder)
        self.print_line(about.in_words())

    def tick(self, view: RunModel) -> None:
        now = time.monotonic()
        self._show_due(view, now)
        if now - self._last >= self._every_s:
            self._show_progress(view, now)

    def close(self, view: RunModel) -> None:
        now = time.monotonic()
        self._show_rest(view, now)
        self._show_progress(view, now)

    def _show_progress(self, view: RunModel, now: float) -> None:
        if view.progress.round > self._last_round:
            self._last, self._last_round = now, view.progress.round
            self.print_line(progress(view))

    def _show(self, lines: Iterable[SharedLine], events: Iterable[str], now: float) -> None:
        for line in lines:
            single = len(line.peers) == 1
            name = (
                self._name(line.peers[0]) if single else label(line, self._output.everybody(line))
            )
            (self._errors if line.err else self._console).print(peer_line(line, name))
        for event in events:
            if not self._quiet or event.startswith(ENDS):
                self._console.print(stamped(event, now - self._began))


class LiveScreen(_BaseScreen):
    """Screen with the state of the run at the bottom of the terminal, redrawn in place. Events and
    the output of peers are printed above it.

    The cursor stays visible, and no mode of the terminal is changed. So nothing has to be restored,
    however the launcher ends.
    """

    def __init__(self, about: About, output: Choice = "merged") -> None:
        super().__init__(output, about.folder)
        self._about = about
        self._region = _Region(_console(self._streams[0]))
        self._errors: Console | None = None
        if not sys.stderr.isatty():
            self._errors = _console(self._streams[1], soft_wrap=True)
        self._drawn_at = float("-inf")
        self._here = f"{os.getcwd()}{os.sep}"

    def tick(self, view: RunModel) -> None:
        now = time.monotonic()
        self._show_due(view, now)
        if now - self._drawn_at >= REDRAW_S:
            self._draw(view, now)

    def close(self, view: RunModel) -> None:
        now = time.monotonic()
        self._show_rest(view, now)
        self._draw(view, now)
        self._region.close()

    def _draw(self, view: RunModel, now: float) -> None:
        self._drawn_at = now
        lines = frame(self._about, view, now, self._began, self._region.size)
        self._region.draw([Text(), *lines], [])

    def _show(self, lines: Iterable[SharedLine], events: Iterable[str], now: float) -> None:
        if above := [*self._lines(lines), *self._events(events, now)]:
            self._region.above(above)

    def _lines(self, lines: Iterable[SharedLine]) -> list[Text]:
        """Return the lines for the terminal, and print the lines for a redirected stderr."""
        found = []
        for line in lines:
            text = peer_line(line, label(line, self._output.everybody(line)))
            if line.err and self._errors is not None:
                self._errors.print(text)
            else:
                found.append(text)
        return found

    def _events(self, lines: Iterable[str], now: float) -> list[Text]:
        """Return the lines with a time stamp. Long lines are wrapped within the column to the right
        of the time stamp."""
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
    """Region of lines at the bottom of a terminal. Without a terminal, the region is written only
    once, at the end."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._widths: list[int] = []  # widths of the drawn lines
        self._shown: list[Text] = []
        self._stderr: TextIO | None = None

    @property
    def size(self) -> Size:
        return Size(*shutil.get_terminal_size())  # The console keeps its initial width.

    def draw(self, lines: list[Text], above: list[Text]) -> None:
        """Replace the drawn lines by ``lines``, and print the lines ``above`` above them."""
        self._shown = lines
        if not self.console.is_terminal:
            self._write("", above)
            return
        self._catch_stderr()
        back = self._erased()
        for line in lines:  # The terminal may have become narrower since ``lines`` were made.
            line.truncate(max(self.size.width - 1, 1))
        self._widths = [line.cell_len for line in lines]
        self._write(back, [*above, *lines])

    def above(self, lines: list[Text]) -> None:
        """Print lines above the drawn lines."""
        if self._widths:
            self.draw(self._shown, lines)
        else:
            self._write("", lines)

    def close(self) -> None:
        """End the region. Its lines stay on the screen."""
        if not self.console.is_terminal:
            self._write("", self._shown)
        if self._stderr is not None:
            sys.stderr.flush()  # Write an incomplete line first.
            sys.stderr, self._stderr = self._stderr, None
        self._widths = []

    def _erased(self) -> str:
        """Return the escape codes that erase the drawn lines. If the terminal has become narrower,
        it has wrapped the lines, so they have more rows."""
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
        """Redirect the stderr of this process to lines above the region."""
        if self._stderr is None and sys.stderr.isatty():
            self._stderr, sys.stderr = sys.stderr, _Above(self)


class _Above(io.TextIOBase):
    """Stream that prints whole lines above a region."""

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
    output: Choice | None = None,
    name: Callable[[int], str] = lambda peer: f"{peer}|",
) -> PlainScreen | LiveScreen:
    """Return the screen of a run: a region of the terminal, or plain lines. If ``output`` is None,
    it is ``merged`` on a terminal and ``all`` elsewhere."""
    on_terminal = is_terminal() and not as_json
    choice: Choice = output or ("merged" if on_terminal else "all")
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
    """Whether the script has had enough time to log a loss, but has logged none."""
    has_loss = any(row.loss is not None for row in view.rows.values())
    return view.progress.step >= NO_LOSS_STEPS and not has_loss


def progress(view: RunModel) -> str:
    """Return one line about the progress of the run."""
    at = view.progress
    attempt = f" attempt {at.attempt}" if at.attempt else ""
    suspects = [str(row.peer) for row in view.rows.values() if row.suspected]
    figures = (
        f"round {at.round:5d}",
        *losses(view),
        f"server {at.server}{attempt}" if at.server is not None and not view.stages else "",
        f"{at.alive} alive",
        _taking_part(view),
        f"suspected {','.join(suspects)}" if suspects else "",
    )
    return "  ".join(filter(None, figures))


def _taking_part(view: RunModel) -> str:
    """Return a text about the participation in the last round that was a step. Later rounds may
    have been collective operations."""
    if view.progress.participation.last is None:
        return ""
    who, alive = view.progress.participation.last
    return f"{who} of {alive} took part" if who else "no usable update"


STAMP_WIDTH = 9
SCREEN_LOG = "screen.log"


def stamped(text: str, seconds: float) -> Text:
    """Return a line such as ``00:04.9 x 3 dead ...``, in the colour of its first character."""
    minutes, rest = divmod(seconds, 60)
    return Text.assemble(
        (f"{int(minutes):02d}:{rest:04.1f}  ", "dim"), (shown_lines(text), MARKS.get(text[:1], ""))
    )


def is_terminal() -> bool:
    """Whether stdout is a terminal that supports redrawing."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
