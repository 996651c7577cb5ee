"""Thread for large aggregations, copies and digests. In the event loop, this work would delay the
node's replies to probes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

INLINE_BYTES = 2**23
"""Maximum size of a state or update, in bytes, that the loop copies and hashes itself."""
Result = TypeVar("Result")
_Job: TypeAlias = tuple[Callable[[], Any], Callable[[Any], None]]


class Worker:
    """Runs jobs one after another in a thread, and returns their results to the loop. The first job
    starts the thread.

    ``fd`` becomes readable when a result is ready or ``wake`` is called. Any thread or signal
    handler may call ``wake``. If a job raises an exception, ``finish`` raises it again in the
    loop's thread.
    """

    def __init__(self) -> None:
        self.fd, self._wake_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[Callable[[Any], None], Any, BaseException | None]] = (
            SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        # Lock of the wake descriptor. It is reentrant, because a signal handler may call ``wake``
        # while the same thread holds the lock.
        self._lock = threading.RLock()

    def run(self, job: Callable[[], Result], then: Callable[[Result], None], nbytes: int) -> None:
        """Run a job that processes ``nbytes`` bytes. A job on at most ``INLINE_BYTES`` runs at
        once, a larger job in the thread."""
        if nbytes <= INLINE_BYTES:
            then(job())
        else:
            self.submit(job, then)

    def submit(self, job: Callable[[], Result], then: Callable[[Result], None]) -> None:
        """Run ``job`` in the thread. ``finish`` later calls ``then`` with the result."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="gossip-node-worker", daemon=True
            )
            self._thread.start()
        self._jobs.put((job, then))

    def finish(self) -> None:
        """Call ``then`` for each result that is ready."""
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
        """Make ``fd`` readable. After ``close`` this has no effect."""
        with self._lock:
            if self._wake_fd < 0:
                return
            try:
                os.write(self._wake_fd, b".")
            except BlockingIOError:
                return  # the pipe is already full, so ``fd`` is readable

    def close(self) -> None:
        """Close the worker, and wait at most half a second for a running job. A longer job may
        continue afterwards, because the thread is a daemon and the job holds references to its
        memory."""
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
        """Run the next job. Return False if the worker is closed. This is a separate function, so
        that no variable refers to the memory of a job while the thread waits for the next job."""
        if (work := self._jobs.get()) is None:
            return False
        job, then = work
        try:
            self._done.put((then, job(), None))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the loop's thread
            self._done.put((then, None, error))
        return True
