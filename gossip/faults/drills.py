"""Faults that ``gossip drill`` injects into a live run. Nodes and trainers read lasting faults,
with their beginning and end, from a file.

Only the launcher writes the file, and it replaces the file atomically. The file lists all active
faults, because a process that restarts during a drill has to find them. Times are seconds of the
host's monotonic clock.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gossip.errors import BadFault

from .declare import Fault
from .kinds import ByzantineFault, Slow
from .tables import from_table, to_table

FILE = "drills.json"
LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Drill:
    """Fault that lasts from ``since`` until ``until``, both on the host's monotonic clock."""

    number: int
    fault: Fault
    since: float
    until: float

    def is_on(self, now: float) -> bool:
        return self.since <= now < self.until


def write(folder: Path, drills: Iterable[Drill]) -> None:
    """Write the drills to ``folder``, which is the folder ``faults`` of the run."""
    rows = [
        {
            "number": drill.number,
            "fault": tomllib.loads(to_table(drill.fault))["fault"][0],
            "since": drill.since,
            "until": drill.until,
        }
        for drill in drills
    ]
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f"{FILE}.new"
    scratch.write_text(json.dumps(rows), "utf-8")
    scratch.replace(folder / FILE)


class DrillFile:
    """Reader of the file that ``write`` creates. It reads the file again after each change.
    ``folder`` is None if the run allows no drills."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE
        self._stamp: tuple[int, int] = (0, 0)
        self._drills: tuple[Drill, ...] = ()
        self._next_check = -math.inf

    def on(self, now: float) -> tuple[Fault, ...]:
        """Return the faults that are active at ``now``."""
        if self._path is None:
            return ()
        if now >= self._next_check:
            self._next_check = now + LOOK_EVERY_S
            self._reload()
        return tuple([drill.fault for drill in self._drills if drill.is_on(now)])

    def slowness(self, peer: int, now: float) -> float:
        """Return the factor by which active drills lengthen the peer's steps."""
        return math.prod(
            [
                fault.factor
                for fault in self.on(now)
                if isinstance(fault, Slow) and fault.peer == peer
            ]
        )

    def lie(self, peer: int, now: float) -> ByzantineFault | None:
        """Return the attack that an active drill assigns to the peer, or None."""
        return next(
            (
                fault
                for fault in self.on(now)
                if isinstance(fault, ByzantineFault) and peer in fault.peers
            ),
            None,
        )

    def _reload(self) -> None:
        assert self._path is not None
        try:
            found = os.stat(self._path)
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp == self._stamp:
                return
            rows = json.loads(self._path.read_text("utf-8"))
            self._drills = tuple(
                Drill(row["number"], from_table(row["fault"], "drill"), row["since"], row["until"])
                for row in rows
            )
            self._stamp = stamp
        except (OSError, ValueError, KeyError, TypeError, BadFault):
            return  # the file does not exist yet, or is invalid: the old faults remain
