"""``gossip top``: the state of a run, redrawn in the terminal until the run is over, or printed
once."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gossip.errors import ConfigError
from gossip.run import shown

from . import run_state
from .peer_table import PeerLine, Size, peer_lines
from .run_model import RunModel
from .run_reader import RunReader
from .run_state import RunState
from .screens import is_terminal
from .top_frame import frame

PLAIN_WIDTH = 120
"""Width of output to a file or a pipe, in columns."""
ROWS_ALL = 100_000
"""Height of output that is printed once, in rows; large enough for all rows."""
STATE_EVERY_S = 1.0


class TopView:
    """Screen of a run. Each call reads the new rows in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader = RunReader(folder)
        self._looked_at = time.monotonic()

    @property
    def over(self) -> bool:
        return self._reader.state.over

    @property
    def broken(self) -> list[str]:
        """Lines about files that cannot be read, or not completely."""
        return self._reader.broken

    def render_lines(self, size: Size) -> list[Text]:
        """Return the lines that show the present state of the run."""
        return frame(*self._now(), size)

    def to_json(self) -> dict[str, Any]:
        """Return the present state of the run as JSON data, for scripts."""
        reader, now = self._now()
        view, at = reader.view, reader.view.progress
        lines = peer_lines(view, now, self.over)
        return {
            "name": reader.state.name,
            "folder": str(self.folder),
            "state": reader.state.in_words,
            "over": self.over,
            **_pick(at, "round", "step", "loss", "server"),
            "steps": at.steps or reader.settings.rounds,
            "local_steps": view.local_steps,
            "steps_per_s": at.pace.per_s(now),
            "took_part": at.participation.last,
            "participation": at.participation.of_window,
            "rounds_lost": len(at.lost),
            "peers": [_peer_json(line, view, now) for line in lines],
            "broken": self.broken,
        }

    def _now(self) -> tuple[RunReader, float]:
        if not self.over and time.monotonic() - self._looked_at >= STATE_EVERY_S:
            # Check this before reading, so that all rows from before the end are read below.
            self._reader.state = RunState(self.folder)
            self._looked_at = time.monotonic()
        if self._reader.files.replaced:  # At the end, a launcher replaces files by merged ones.
            self._reader = RunReader(self.folder)
        self._reader.update()
        now = self._reader.view.last_at if self.over else time.time()
        return self._reader, now


OF_PEER = ("peer", "step", "round", "incarnation", "trust", "suspected", "quarantined", "loss")


def _peer_json(line: PeerLine, view: RunModel, now: float) -> dict[str, Any]:
    row, known, stage = line.row, line.row.figures, view.stages.get(line.row.peer)
    usage, at = known.usage, line.trained_at(now)
    used = ("sent_bytes", "received_bytes", "memory")
    return {
        **_pick(row, *OF_PEER),
        "stage": stage.number if stage is not None else None,
        **_pick(line, "pid", "state", "why"),
        "steps_per_s": row.pace.per_s(at),
        "waiting": row.pace.waiting(at),
        "late_share": known.late_share(view.progress.round),
        **_pick(known, "participation", "served"),
        "reasons": list(row.reasons),
        **(_pick(usage, *used) if usage else dict.fromkeys(used)),
        "cpu": known.cpu(),
    }


def _pick(source: object, *names: str) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def choose(run: str | None, runs: Path) -> Path:
    """Return the folder of the named run. Without a name, return the folder of the latest run that
    is running, or else of the latest run.

    Raises: ConfigError: There is no run.
    """
    if run is not None:
        return run_state.find(run, runs)
    found = run_state.folders(runs)
    if not found:
        raise ConfigError(
            f"there are no runs in {runs}/",
            "gossip run -n 4 train.py starts one; gossip top FOLDER shows a run in another place",
        )
    running = [each for each in found if not RunState(each).over]
    return (running or found)[0].resolve()


def show(folder: Path, once: bool, every_s: float) -> None:
    """Show the run until it is over, or until Ctrl-C. The last state stays on the screen."""
    view = TopView(folder)
    if once or not is_terminal():
        _print(view)
        return
    with _ends_on_sigterm(), Live(screen=True, auto_refresh=False) as live:
        # Reading a long run takes seconds.
        live.update(Text(f"reading {folder} ..."), refresh=True)
        try:
            while True:
                live.update(Group(*view.render_lines(live.console.size)), refresh=True)
                if view.over:
                    break
                time.sleep(every_s)
        except KeyboardInterrupt:
            pass  # the usual way to leave
    _print(view)


def show_json(folder: Path) -> None:
    """Print the state as one line of JSON."""
    print(json.dumps(TopView(folder).to_json()))


def _print(view: TopView) -> None:
    """Print all peers and all incidents."""
    # Imported here: the import is slow, and a live screen does not need it.
    from .html import RecordedRun, lines_of

    console = Console(highlight=False, soft_wrap=True)
    width = shutil.get_terminal_size().columns if console.is_terminal else PLAIN_WIDTH
    for line in view.render_lines(Size(width, ROWS_ALL)):
        console.print(line)
    broken = [f"! {shown(line)}" for line in view.broken]
    for text in ("", *lines_of(RecordedRun(view.folder), width - 1), *broken):
        console.print(Text(text))


@contextmanager
def _ends_on_sigterm() -> Iterator[None]:
    """Exit on SIGTERM, so that the terminal is restored."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
