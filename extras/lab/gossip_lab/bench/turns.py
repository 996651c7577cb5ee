"""Measurements in turns. Every turn runs all sides, and every other turn runs them in reverse
order, so that other load on the machine affects all sides alike."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from gossip.launch.report import counted

Side = TypeVar("Side")
REPETITIONS = 15
# Width of a table that is written to a file or a pipe: wide enough that no line is wrapped.
FILE_COLUMNS = 500


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of a measurement's values."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        return cls(statistics.median(figures), min(figures), max(figures))

    def text(self, show: Callable[[float], str] = "{:.2f}".format) -> str:
        return f"{show(self.median)} ({show(self.least)} to {show(self.most)})"


def ratios(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Return the spread of the ratios of two sides, turn by turn. Within a turn the speed of the
    machine hardly changes, so the ratio is more stable than the times."""
    return Spread.of([a / b for a, b in zip(over, under, strict=True)])


def in_order(sides: Sequence[Side], turn: int) -> Sequence[Side]:
    """Return the sides in the order in which this turn runs them."""
    return sides if turn % 2 == 0 else sides[::-1]


def draw(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO) -> None:
    """Draw a table. The first column is text, the others are right-aligned."""
    from rich.console import Console
    from rich.table import Table

    drawn = Table(title=title, title_justify="left")
    for at, name in enumerate(columns):
        drawn.add_column(name, justify="right" if at else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    console = Console(file=out)
    if not console.is_terminal:
        console.width = FILE_COLUMNS
    console.print(drawn)


def environment() -> str:
    """Return one line with the software and machine of the measurement."""
    import platform

    import numpy as np
    import torch

    from gossip.aggregators import kernels

    return (
        f"torch {torch.__version__}, numpy {np.__version__}, Python {platform.python_version()}, "
        f"{processor()}, {counted(torch.get_num_threads(), 'thread')}, kernels: "
        f"{kernels.backend()}"
    )


def processor() -> str:
    """Return the model of the processor."""
    import platform

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def as_json(kind: str, found: Mapping[str, Any]) -> str:
    about = {"schema": f"gossip.bench.{kind}/1", "environment": environment()}
    return json.dumps({**about, **found}, indent=1)


def progress(text: str) -> None:
    """Show a line on stderr in place of the previous line. Do nothing if stderr is not a
    terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
