"""Stopped peers, and the times at which they are woken.

If several drills or planned hangs stop the same peer, it is woken when the last of them ends.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .peer_process import PeerProcess


@dataclass(slots=True)
class _StoppedProcess:
    process: PeerProcess
    since: float
    until: float
    timer: asyncio.TimerHandle


class StoppedProcesses:
    """Wakes stopped peers with SIGCONT.

    Args:
        woken: Called with each woken peer, and the time for which it was stopped, in seconds.
    """

    def __init__(self, woken: Callable[[int, float], None]) -> None:
        self._woken = woken
        self._asleep: dict[int, _StoppedProcess] = {}

    def wake_later(self, process: PeerProcess, after_s: float) -> None:
        """Wake ``process``, which was just stopped, after ``after_s`` seconds, or later if an
        earlier call set a later time."""
        now = time.monotonic()
        since, until = now, now + after_s
        known = self._asleep.pop(process.peer, None)
        if known is not None:
            known.timer.cancel()
            # If not, the earlier call was about a process that no longer exists.
            if known.process is process:
                since, until = known.since, max(until, known.until)
        timer = asyncio.get_running_loop().call_later(until - now, self._wake, process.peer)
        self._asleep[process.peer] = _StoppedProcess(process, since, until, timer)

    def wake_all(self) -> list[int]:
        """Wake all stopped peers now. Return the woken peers."""
        return [peer for peer in list(self._asleep) if self._wake(peer)]

    def close(self) -> None:
        """Cancel all wake-ups."""
        for sleep in self._asleep.values():
            sleep.timer.cancel()
        self._asleep.clear()

    def _wake(self, peer: int) -> bool:
        sleep = self._asleep.pop(peer)
        sleep.timer.cancel()
        if not sleep.process.send_all(signal.SIGCONT):
            return False  # The process was killed in between.
        self._woken(peer, time.monotonic() - sleep.since)
        return True
