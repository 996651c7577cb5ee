"""Python processes that gossip starts, and imports of a user's modules.

``python -m``, ``python -c`` and multiprocessing import from the working directory first. A file
there, such as ``random.py``, would run in each of these processes instead of Python's own module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext


def python_command(*words: str, python: str = sys.executable) -> list[str]:
    """Return the command of a Python process that imports nothing from the working directory.

    Only the user's script may import from there (``Program.command``).
    """
    return [python, "-P", *words]


@contextmanager
def spawn_context() -> Iterator[SpawnContext]:
    """Yield a context of multiprocessing. Its processes import nothing from the working directory.

    Processes, queues and locks must be created inside the ``with`` block.
    """
    from multiprocessing import get_context

    before = os.environ.get("PYTHONSAFEPATH")
    # Needed, because multiprocessing passes -P to a child only if this process has the option.
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield get_context("spawn")
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


@contextmanager
def importing_users_modules() -> Iterator[None]:
    """Let imports in the ``with`` block find modules of the working directory, too.

    The directory is searched last, so its modules hide neither Python's own nor installed modules.
    """
    folder = os.getcwd()
    sys.path.append(folder)
    try:
        yield
    finally:
        # An import may have changed the list, so its last entry need not be the folder.
        if folder in sys.path:
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(folder)]
