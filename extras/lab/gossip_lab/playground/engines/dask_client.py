"""Cells as tasks of a Dask cluster: the cluster in Dask's own configuration (such as
``DASK_SCHEDULER_ADDRESS``), else processes on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from gossip_lab.cells import ProgressLines
from gossip_lab.playground.grids import CellResult, WorldCell, play_cell, store_of

from .settings import SweepSettings


def run(cells: Sequence[WorldCell], settings: SweepSettings) -> dict[WorldCell, CellResult]:
    """Run the cells on the cluster, and store each result when it arrives."""
    import dask
    from distributed import Client, as_completed

    store = store_of(settings.cells)
    found = store.read_all(cells)
    missing = [cell for cell in cells if cell not in found]
    if not missing:
        return found
    store.make_folder()
    progress = ProgressLines(len(missing), len(found), settings.quiet)
    address = dask.config.get("scheduler-address", None)
    own = {"n_workers": settings.jobs, "threads_per_worker": 1, "dashboard_address": None}
    with Client(address) if address else Client(**own) as client:
        futures = client.map(play_cell, missing, pure=False)
        cell_of = dict(zip([future.key for future in futures], missing, strict=True))
        for future, row in as_completed(futures, with_results=True):
            cell = cell_of[future.key]
            found[cell] = store.keep(cell, row)
            progress.add_one()
    return {cell: found[cell] for cell in cells}
