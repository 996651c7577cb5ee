"""Process that exports a run to a tracker. It reads only the run's files. So it needs no queue in
memory, and its failure does not affect the run."""

from __future__ import annotations

import importlib
import os
import select
import sys
import time
from pathlib import Path

from gossip.launch.report import RunState
from gossip.run import check_trackers

from .base import Tracker
from .run_points import RunPoints

READ_EVERY_S = 1.0
NICE = 15
OTHERS_S, OTHERS_EVERY_S = 30.0, 0.2


def export(name: str, folder: Path, launched: bool, others_s: float = 0.0) -> int:
    """Export a run until it is over. Return the number of exported values.

    Args:
        launched: Whether a launcher has started this process and closes its stdin when the run is
            over. Otherwise the run's files show when the run is over.
        others_s: Maximum time to wait, after stdin was closed, until the run's files also show the
            end, in seconds.
    """
    tracker = open_tracker(name, folder)
    points = RunPoints(folder, tracker)
    tracker.begin(points.about())
    try:
        while True:
            # Check this before reading, so that all rows from before the end are read below.
            over = _is_closed(READ_EVERY_S) if launched else RunState(folder).over
            if over and launched:
                _wait_for_others(folder, others_s)
            points.read_on()
            if over:
                points.end()
                return points.given
            if not launched:
                time.sleep(READ_EVERY_S)
    finally:
        tracker.close()


def open_tracker(name: str, folder: Path) -> Tracker:
    """Import the tracker, and open it for the run in ``folder``. Raises: ConfigError: There is no
    such tracker, or it is not installed."""
    check_trackers([name])
    module = importlib.import_module(f"{__package__}.to_{name}")
    tracker: Tracker = module.open_tracker(folder)
    return tracker


def _wait_for_others(folder: Path, most_s: float) -> None:
    until = time.monotonic() + most_s
    while time.monotonic() < until and not RunState(folder).over:
        time.sleep(OTHERS_EVERY_S)


def _is_closed(wait_s: float) -> bool:
    """Whether stdin is closed, or becomes so within ``wait_s`` seconds."""
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(ready) and not os.read(sys.stdin.fileno(), 4096)


def main(words: list[str]) -> int:
    """Run ``python -m gossip.launch.track NAME FOLDER``; see ``gossip.run.start_tracker``."""
    os.nice(NICE)
    name, folder, *others = words
    given = export(name, Path(folder), True, OTHERS_S if others else 0.0)
    print(f"{given} values were exported")
    return 0
