"""Selects the lines of peers that are shown: either equal lines of several peers once, or all
lines. This module reads no clock: the time is an argument. The lines of each peer keep their order,
and no line waits longer than ``HOLD_S``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .run_model import RunModel
from .words import numbers

HOLD_S = 1.0
"""Maximum time for which a line waits for the same line of other peers, in seconds."""
PENDING_MAX = 64
"""Maximum number of different lines that wait. Beyond it, the oldest line is shown."""
Choice: TypeAlias = Literal["merged", "all"]
OVER = ("done", "gone", "elsewhere")


@dataclass(slots=True)
class SharedLine:
    """A line, and the peers that have written it so far. ``since``: monotonic seconds."""

    text: str
    err: bool
    peers: list[int]
    since: float


class PeerOutput:
    """Filter of the peers' output by the option ``--output``.

    Args:
        choice: ``merged`` shows equal lines of several peers once; ``all`` shows each line as it
            arrives.
    """

    def __init__(self, choice: Choice = "merged") -> None:
        self._choice = choice
        self._pending: list[SharedLine] = []
        self._running: set[int] = set()  # peers that may still write the same line
        self._members: set[int] = set()

    def poll_lines(self, view: RunModel, now: float) -> list[SharedLine]:
        """Update the set of running peers. Return the lines that no further peer can write."""
        rows = view.rows.values()
        self._running = {row.peer for row in rows if row.state not in OVER}
        self._members = {row.peer for row in rows if row.state not in ("gone", "elsewhere")}
        return self._due(now)

    def wrote(self, peer: int, text: str, err: bool, now: float) -> list[SharedLine]:
        """Add a line of a peer. Return the lines to show now."""
        line = SharedLine(text, err, [peer], now)
        if self._choice == "all":
            return [line]
        after = next(
            (at for at in range(len(self._pending), 0, -1) if peer in self._pending[at - 1].peers),
            0,
        )
        for other in self._pending[after:]:
            if other.text == text and other.err == err:
                other.peers.append(peer)
                break
        else:
            self._pending.append(line)
        return self._due(now)

    def _due(self, now: float) -> list[SharedLine]:
        """Return the lines that have waited long enough, the lines that all running peers have
        written, and all lines before these."""
        ready = len(self._pending) - PENDING_MAX
        for at, line in enumerate(self._pending):
            if now - line.since >= HOLD_S or not self._running.difference(line.peers):
                ready = max(ready, at + 1)
        return self._pop_lines(max(ready, 0))

    def rest(self) -> list[SharedLine]:
        """Return all waiting lines. This is called when the run is over."""
        return self._pop_lines(len(self._pending))

    def _pop_lines(self, count: int) -> list[SharedLine]:
        taken, self._pending = self._pending[:count], self._pending[count:]
        return taken

    def everybody(self, line: SharedLine) -> bool:
        """Whether all live peers wrote the line."""
        return len(line.peers) > 1 and not self._members.difference(line.peers)


def label(line: SharedLine, everybody: bool) -> str:
    """Return the label of a line: ``all|``, ``0-2,5|`` or ``3|``."""
    return "all|" if everybody else f"{numbers(line.peers)}|"
