"""Progress of a command."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

LINES_S = 10.0


class ProgressBar:
    """Progress bar on a terminal. If stderr is not a terminal, a line every ten seconds.

    Args:
        total: Number of items; None if unknown.
        print_line: Function that prints a line if stderr is not a terminal.
    """

    def __init__(self, total: int | None, print_line: Callable[[str], None]) -> None:
        self._total, self._print_line, self._printed = total, print_line, time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> ProgressBar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
            )

            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total)
        return self

    def update(self, done: int, words: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=words)
        elif time.monotonic() - self._printed >= LINES_S:
            self._printed = time.monotonic()
            self._print_line(f"{done} of {self._total or 'many'}: {words}")

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
