"""Worker processes of process pools, and other child processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import threading
from typing import Any


def end_with_parent() -> None:
    """End this worker when its parent ends. A killed parent cannot shut down its pool, and workers
    without a parent would wait forever."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_await_orphanhood, daemon=True).start()


def end_process(
    process: subprocess.Popen[Any], within_s: float, first: signal.Signals = signal.SIGTERM
) -> None:
    """End a process if it still runs: with the signal ``first``, and with SIGKILL if it has not
    ended in time. On SIGTERM a launcher ends its peers."""
    process.send_signal(first)
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _await_orphanhood() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
