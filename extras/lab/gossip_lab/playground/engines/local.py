"""Cells in processes on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from gossip_lab.cells import run_cells
from gossip_lab.playground.grids import CellResult, WorldCell, play_cell, store_of

from .settings import SweepSettings


def run(cells: Sequence[WorldCell], settings: SweepSettings) -> dict[WorldCell, CellResult]:
    """Run the cells as ``run_cells`` does."""
    store = store_of(settings.cells)
    return run_cells(cells, play_cell, store, settings.jobs, quiet=settings.quiet)
