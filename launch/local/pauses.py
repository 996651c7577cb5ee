"""Stopped peers, and the times at which they are woken.

If drills and planned hangs overlap on one peer, the one that ends last decides.
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
    """Wakes by SIGCONT who was stopped.

    Args:
        woken: Called with each peer that was, and the seconds that it had slept.
    """

    def __init__(self, woken: Callable[[int, float], None]) -> None:
        self._woken = woken
        self._asleep: dict[int, _StoppedProcess] = {}

    def wake_later(self, process: PeerProcess, after_s: float) -> None:
        """``process`` was just stopped, and no fault needs that for more than so many seconds."""
        now = time.monotonic()
        since, until = now, now + after_s
        known = self._asleep.pop(process.peer, None)
        if known is not None:
            known.timer.cancel()
            # else it was a former life that slept: nobody is left to be woken
            if known.process is process:
                since, until = known.since, max(until, known.until)
        timer = asyncio.get_running_loop().call_later(until - now, self._wake, process.peer)
        self._asleep[process.peer] = _StoppedProcess(process, since, until, timer)

    def wake_all(self) -> list[int]:
        """At once. Returns whom."""
        return [peer for peer in list(self._asleep) if self._wake(peer)]

    def close(self) -> None:
        """Nobody is woken any more."""
        for sleep in self._asleep.values():
            sleep.timer.cancel()
        self._asleep.clear()

    def _wake(self, peer: int) -> bool:
        sleep = self._asleep.pop(peer)
        sleep.timer.cancel()
        if not sleep.process.send_all(signal.SIGCONT):
            return False  # it was killed meanwhile
        self._woken(peer, time.monotonic() - sleep.since)
        return True
