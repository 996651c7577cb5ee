"""The process that hands a run on to a tracker: it reads the run's files and nothing else, so its
queue is on disk, and whatever becomes of it, the run goes on."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

from gossip.launch.report import standing_of

from .names import open_tracker
from .run_points import RunPoints

READ_EVERY_S = 1.0
NICE = 15


def export(name: str, folder: Path, launched: bool) -> int:
    """Until the run is over and all of it is handed on. Returns how many values that were.

    Args:
        launched: A launcher of the run holds the other end of stdin, and closes it when the run
            is over; otherwise the run's files tell.
    """
    tracker = open_tracker(name, folder)
    points = RunPoints(folder, tracker.points, tracker.told)
    tracker.begin(points.about())
    try:
        while True:
            # asked first: what was written before the end is read after it
            over = _is_closed(READ_EVERY_S) if launched else standing_of(folder).over
            points.read_on()
            if over:
                return points.given
            if not launched:
                time.sleep(READ_EVERY_S)
    finally:
        tracker.close()


def _is_closed(wait_s: float) -> bool:
    """Whether stdin has come to its end within that time."""
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(ready) and not os.read(sys.stdin.fileno(), 4096)


def main(words: list[str]) -> int:
    """``python -m gossip.launch.track NAME FOLDER``, as a launcher starts it."""
    os.nice(NICE)
    name, folder = words
    given = export(name, Path(folder), launched=True)
    print(f"{given} values were handed on")
    return 0
