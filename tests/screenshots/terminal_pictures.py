"""Pictures of the terminal: a real run with faults at 80, 120 and 200 columns, as `gossip run`,
`gossip top` and `gossip explain` show it; and what can be seen in them without eyes.

    python tests/screenshots/terminal_pictures.py --into shots
    python tests/screenshots/terminal_pictures.py --into shots --docs docs   # those of the docs

Each command runs in a pseudo-terminal of its own, and a terminal emulator (pyte) draws what it
writes. Ten seconds after the first step the screen must tell what was started, how far it is, how
it is, and where the model will be. No line may be cut.

Exit codes: 0 nothing was found, 1 something was, 2 there is no pyte.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import itertools
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
SIZES = {80: 34, 120: 36, 200: 40}
"""Columns -> rows."""
PEERS = 6
FAULTS = ("sign_flip:5*10", "crash:4@60", "hang:3@120+2s")
LOOK_AFTER_S = 9.0
"""After the first step: the latest fault is over then, on two cores at least nearly."""
STEP = re.compile(r"step [1-9]")
TOP_HEAD = re.compile(r"peer +state +step")
START_S, END_S = 90.0, 120.0
PAUSE_S = 0.1
IN_DOCS = {
    "run-80": "terminal-run",
    "explain-80": "terminal-explain",
    "top-120": "terminal-top",
    "top-200": "terminal-top-wide",
}
MUST_TELL = {
    "what was started": re.compile(r"digits: 6 peers, rolling, \w+ \(f=1\)"),
    "how far it is": re.compile(r"step \d+/1200 .*\d steps/s .*loss \d.* left"),
    "how it is": re.compile(r"(healthy|degraded): \d of 6 peers train"),
    "where the model will be": re.compile(r"model: ckpt, every 200 steps and at the end"),
}
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs>{lines}</defs>
<rect width="{width}" height="{height}" rx="6" fill="#101418"/>
<g transform="translate(8, 8)"><g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
"""Rich's picture without its window, and without a font from elsewhere."""


class Watched:
    """A command in a pseudo-terminal, and what stands on it."""

    def __init__(self, command: Sequence[str], folder: Path, columns: int, rows: int) -> None:
        import pyte

        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
        environment |= {"LINES": str(rows), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        self._fd = ours

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(END_S)
        os.close(self._fd)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    def read_until(self, done: Callable[[list[str]], bool], within_s: float) -> bool:
        """Whether that came to be; False: the command has ended before, or the time is over."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            ready, _, _ = select.select([self._fd], [], [], 0.05)
            try:
                data = os.read(self._fd, 65536) if ready else b""
            except OSError:
                return done(self.lines)  # Linux says so when the other end was closed
            self._stream.feed(data)
            if done(self.lines):
                return True
        return False

    def read_to_pause(self) -> None:
        """Until nothing comes for a moment: what is drawn is whole then."""
        while select.select([self._fd], [], [], PAUSE_S)[0]:
            try:
                self._stream.feed(os.read(self._fd, 65536))
            except OSError:
                return

    def end(self) -> int:
        """Waits for it."""
        self.read_until(lambda _: False, END_S)
        return self._process.wait(END_S)

    def picture(self) -> str:
        """As SVG, up to the last line that is not empty."""
        height = max((at for at, line in enumerate(self.lines) if line), default=0) + 1
        console = Console(
            record=True, width=self.screen.columns, file=io.StringIO(), force_terminal=True
        )
        for row in range(height):
            cells = [self.screen.buffer[row][column] for column in range(self.screen.columns)]
            text = Text(no_wrap=True)
            for style, same in itertools.groupby(cells, _style):  # of each character it is large
                text.append("".join(cell.data for cell in same), style)
            text.rstrip()
            console.print(text, soft_wrap=True)
        return console.export_svg(title="", code_format=SVG, unique_id="t")


def _read_all(those: Sequence[Watched], for_s: float) -> None:
    """A terminal that nobody reads holds its command up."""
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        for watched in those:
            watched.read_until(lambda _: False, 0.05)


def _style(cell: Any) -> Style:
    """Colour and weight of a character; pyte knows of no dim ones."""
    if cell.fg == "default":
        return Style(bold=cell.bold)
    named = re.sub("^bright", "bright_", cell.fg.replace("brown", "yellow"))
    is_hex = re.fullmatch(r"[0-9a-f]{6}", cell.fg)
    return Style(color=f"#{cell.fg}" if is_hex else named, bold=cell.bold)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=Path("screenshots"))
    parser.add_argument("--docs", type=Path, help="Take the pictures of the docs, too.")
    options = parser.parse_args()
    try:
        import pyte  # noqa: F401
    except ModuleNotFoundError:
        print("pyte is not installed: pip install pyte", file=sys.stderr)
        return 2
    options.into.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    for columns, rows in SIZES.items():
        with tempfile.TemporaryDirectory() as name:
            problems += _take(Path(name), columns, rows, options.into)
    if options.docs:
        for taken, named in IN_DOCS.items():
            shutil.copy(options.into / f"{taken}.svg", options.docs / f"{named}.svg")
    print("\n".join(problems) or f"nothing was found; pictures are in {options.into}/")
    return 1 if problems else 0


def _take(folder: Path, columns: int, rows: int, into: Path) -> list[str]:
    """The pictures of one run. Returns what is wrong with them."""
    shutil.copy(ROOT / "tests" / "screenshots" / "train.py", folder / "train.py")
    gossip = [sys.executable, "-m", "gossip.launch.cli"]
    faults = [word for fault in FAULTS for word in ("--fault", fault)]
    swarm = ["-n", str(PEERS), "-f", "1", "--name", "digits", *faults]
    with Watched([*gossip, "run", *swarm, "train.py"], folder, columns, rows) as run:
        if not run.read_until(lambda lines: any(map(STEP.search, lines)), START_S):
            return [f"run-{columns}: there was no step within {START_S:g} s", *run.lines]
        with Watched([*gossip, "top"], folder, columns, rows) as top:
            _read_all((run, top), LOOK_AFTER_S)
            top.read_until(lambda lines: any(map(TOP_HEAD.match, lines)), LOOK_AFTER_S)
            for watched in (run, top):
                watched.read_to_pause()
            found = {f"run-{columns}": run.picture(), f"top-{columns}": top.picture()}
            shown = {f"run-{columns}": run.lines, f"top-{columns}": top.lines}
            codes = [run.end(), top.end()]
    with Watched([*gossip, "explain", "digits"], folder, columns, 2 * rows) as explained:
        codes.append(explained.end())
        found[f"explain-{columns}"] = explained.picture()
        shown[f"explain-{columns}"] = explained.lines
    problems = [
        f"run-{columns}: it does not tell {what}"
        for what, words in MUST_TELL.items()
        if not any(map(words.search, shown[f"run-{columns}"]))
    ]
    if not any(map(TOP_HEAD.match, shown[f"top-{columns}"])):
        problems.append(f"top-{columns}: there is no table")
    problems += [f"at {columns} columns a command ended with {code}" for code in codes if code]
    for name, svg in found.items():
        (into / f"{name}.svg").write_text(svg)
    for name, lines in shown.items():
        problems += [f"{name}: cut: {line}" for line in lines if "…" in line]
        if not any(lines):
            problems.append(f"{name}: nothing is there")
    return problems


if __name__ == "__main__":
    sys.exit(main())
