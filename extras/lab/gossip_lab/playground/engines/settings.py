"""Settings of a sweep, the same for all engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from gossip.errors import UnknownName
from gossip_lab.playground.grids import CellResult, WorldCell

RISING = ("worst", "mean", "p10")
"""Metrics for early stopping; higher values are better."""


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """Settings of a sweep.

    Attributes:
        folder: Folder of the sweep.
        jobs: Number of cells to run at once on this machine.
        asha: Metric for early stopping; empty for no early stopping.
        quiet: Whether to hide the progress.

    Raises: ConfigError: There is no such metric.
    """

    folder: Path
    jobs: int = 1
    asha: str = ""
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.asha and self.asha not in RISING:
            raise UnknownName("metric to stop by", self.asha, RISING)

    @property
    def cells(self) -> Path:
        """Folder of the cells' results."""
        return self.folder / "cells"


CellEngine: TypeAlias = Callable[[Sequence[WorldCell], SweepSettings], dict[WorldCell, CellResult]]
"""Function that runs the cells that the store of the folder lacks, and returns the available
results."""
