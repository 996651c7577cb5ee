"""Cells as tasks of a Dask cluster: the cluster in Dask's own configuration (such as
``DASK_SCHEDULER_ADDRESS``), else processes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gossip_lab.cells import Row as StoredRow, run_missing
from gossip_lab.playground.grids import CellResult, WorldCell, play_cell, store_of

from .settings import SweepSettings


def run(cells: Sequence[WorldCell], settings: SweepSettings) -> dict[WorldCell, CellResult]:
    """Run the cells on the cluster, and store each result when it arrives."""
    store = store_of(settings.cells)
    return run_missing(cells, partial(_run, settings.jobs), store, quiet=settings.quiet)


def _run(jobs: int, cells: list[WorldCell], keep: Callable[[WorldCell, StoredRow], None]) -> None:
    import dask
    from distributed import Client, as_completed

    address = dask.config.get("scheduler-address", None)
    own = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
    with Client(address) if address else Client(**own) as client:
        futures = client.map(play_cell, cells, pure=False)
        cell_of = dict(zip([future.key for future in futures], cells, strict=True))
        for future, row in as_completed(futures, with_results=True):
            keep(cell_of[future.key], row)
