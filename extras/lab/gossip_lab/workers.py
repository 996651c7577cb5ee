"""Worker processes of process pools."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading


def end_with_parent() -> None:
    """End this worker when its parent ends. A killed parent cannot shut down its pool, and workers
    without a parent would wait forever."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_await_orphanhood, daemon=True).start()


def _await_orphanhood() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
