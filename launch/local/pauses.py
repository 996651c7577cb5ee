"""Stopped peers, and the times at which they are woken.

If several drills or planned hangs stop the same peer, it is woken when the last of them ends.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .peer_process import PeerProcess


class StoppedProcesses:
    """Wakes stopped peers with SIGCONT.

    Args:
        woken: Called with each woken peer, and the time for which it was stopped, in seconds.
    """

    def __init__(self, woken: Callable[[int, float], None]) -> None:
        self._woken = woken
        # For each process: since when it is stopped, until when, and the timer that wakes it.
        self._asleep: dict[PeerProcess, tuple[float, float, asyncio.TimerHandle]] = {}

    def wake_later(self, process: PeerProcess, after_s: float) -> None:
        """Wake ``process``, which was just stopped, after ``after_s`` seconds, or later if an
        earlier call set a later time."""
        now = time.monotonic()
        since, until = now, now + after_s
        if process in self._asleep:
            since, earlier, timer = self._asleep[process]
            timer.cancel()
            until = max(until, earlier)
        timer = asyncio.get_running_loop().call_later(until - now, self._wake, process)
        self._asleep[process] = since, until, timer

    def wake_all(self) -> list[int]:
        """Wake all stopped peers now. Return the woken peers."""
        return [process.peer for process in list(self._asleep) if self._wake(process)]

    def close(self) -> None:
        """Cancel all wake-ups."""
        for _, _, timer in self._asleep.values():
            timer.cancel()
        self._asleep.clear()

    def _wake(self, process: PeerProcess) -> bool:
        since, _, timer = self._asleep.pop(process)
        timer.cancel()
        if not process.send_all(signal.SIGCONT):
            return False  # The process was killed in between.
        self._woken(process.peer, time.monotonic() - since)
        return True
