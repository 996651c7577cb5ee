"""One thread for work that would keep the node's loop from answering probes: large aggregations,
copies, digests."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

INLINE_BYTES = 2**23
"""Largest size of states and updates that are copied and hashed at once in the loop."""
Result = TypeVar("Result")
_Job: TypeAlias = tuple[Callable[[], Any], Callable[[Any], None]]


class Worker:
    """Runs jobs one after the other in a thread, which the first job starts, and returns results to
    the loop.

    ``fd`` becomes readable when a result waits, or when ``wake`` was called (from any thread or
    signal handler). An exception in a job is raised again from ``finish``, in the loop's thread.
    """

    def __init__(self) -> None:
        self.fd, self._wake_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[Callable[[Any], None], Any, BaseException | None]] = (
            SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        # of the wake descriptor; a signal handler may interrupt its own thread in it
        self._lock = threading.RLock()

    def run(self, job: Callable[[], Result], then: Callable[[Result], None], nbytes: int) -> None:
        """Run a job on ``nbytes`` bytes: at once if it takes a few milliseconds at most, else in
        the thread."""
        if nbytes <= INLINE_BYTES:
            then(job())
        else:
            self.submit(job, then)

    def submit(self, job: Callable[[], Result], then: Callable[[Result], None]) -> None:
        """Run ``job`` in the thread, and later ``then(its result)`` within ``finish``."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="gossip-node-worker", daemon=True
            )
            self._thread.start()
        self._jobs.put((job, then))

    def finish(self) -> None:
        """Call ``then`` with each result that waits."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            return  # there was no wake-up
        while not self._done.empty():
            then, result, error = self._done.get()
            if error is not None:
                raise error
            then(result)

    def wake(self) -> None:
        """Make ``fd`` readable. Does nothing once closed."""
        with self._lock:
            if self._wake_fd < 0:
                return
            try:
                os.write(self._wake_fd, b".")
            except BlockingIOError:
                return  # the pipe is full already

    def close(self) -> None:
        """Close the worker. A running job ends by itself: the thread is a daemon, and the job uses
        only memory that it holds."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout=0.5)
        with self._lock:
            os.close(self._wake_fd)
            self._wake_fd = -1
        os.close(self.fd)

    def _run(self) -> None:
        while self._run_next():
            self.wake()

    def _run_next(self) -> bool:
        """Run the next job, and return whether there was one. A separate function, so that no
        variable refers to a job and its memory while the thread waits."""
        if (work := self._jobs.get()) is None:
            return False
        job, then = work
        try:
            self._done.put((then, job(), None))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the loop's thread
            self._done.put((then, None, error))
        return True
