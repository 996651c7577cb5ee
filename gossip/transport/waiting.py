"""Waits for readable file descriptors."""

from __future__ import annotations

import os
import select
import time

YIELDED_S = 0.001
"""Duration of ``sched_yield`` above which other threads need the processor, in seconds."""
CROWDED_S = 0.1
"""Time for which waits sleep instead of yielding after a ``sched_yield`` of more than
``YIELDED_S``, in seconds. A sleeping thread runs at once when a message arrives. A yielding thread
waits for whole time slices of other threads, which made short rounds take twice as long."""


class Waiter:
    """A poll of file descriptors. Some descriptors are fixed, and ``set_wake`` changes the
    others."""

    def __init__(self, *fds: int) -> None:
        self._poller = select.poll()
        for fd in fds:
            self._poller.register(fd, select.POLLIN)
        self.wake: frozenset[int] = frozenset()
        self._awake_from = 0.0  # waits sleep until then, as other threads need the processor

    def set_wake(self, wanted: frozenset[int]) -> None:
        """Set the descriptors that are polled in addition to those of the constructor."""
        for fd in self.wake - wanted:
            self._poller.unregister(fd)
        for fd in wanted - self.wake:
            self._poller.register(fd, select.POLLIN)
        self.wake = wanted

    def wait(self, wait_s: float, awake_s: float) -> list[tuple[int, int]]:
        """Wait at most ``wait_s`` for a readable descriptor. Return all readable descriptors, with
        their poll events. For the first ``awake_s`` the wait yields the processor instead of
        sleeping."""
        look = self._poller.poll
        clock = time.monotonic
        if wait_s > 0.0 and awake_s > 0.0 and (now := clock()) >= self._awake_from:
            until = now + min(wait_s, awake_s)
            while now < until:
                if ready := look(0):
                    return ready
                # Other threads may need this processor, for example those of the local trainer.
                asked = clock()
                os.sched_yield()
                now = clock()
                if now - asked > YIELDED_S:
                    self._awake_from = now + CROWDED_S
                    break
        return look(wait_s * 1000)
