"""Cells as trials of Ray Tune: on the cluster that ``RAY_ADDRESS`` names, or on this machine.

The last report of a trial has all its rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gossip_lab.cells import Row as StoredRow, run_missing
from gossip_lab.playground.grids import CellResult, WorldCell, play_cell, store_of
from gossip_lab.playground.played import Row

from .settings import SweepSettings


def run(cells: Sequence[WorldCell], settings: SweepSettings) -> dict[WorldCell, CellResult]:
    """Run the cells as trials, and store each result when it arrives."""
    store = store_of(settings.cells)
    return run_missing(cells, partial(_run, settings), store, quiet=settings.quiet)


def _run(
    settings: SweepSettings, cells: list[WorldCell], keep: Callable[[WorldCell, StoredRow], None]
) -> None:
    # Keep the working directory, because the paths of a cell's files are relative to it.
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    import ray
    from ray import tune

    starts_ray = not ray.is_initialized()
    if starts_ray:
        own = {"num_cpus": settings.jobs, "include_dashboard": False}
        ray.init(log_to_driver=False, **({} if "RAY_ADDRESS" in os.environ else own))
    tuner = tune.Tuner(
        tune.with_parameters(_play, cells=cells),
        param_space={"cell": tune.grid_search(list(range(len(cells))))},
        tune_config=tune.TuneConfig(max_concurrent_trials=settings.jobs),
        run_config=tune.RunConfig(
            storage_path=str((settings.folder / "ray").resolve()),
            callbacks=[_keeper(lambda at, row: keep(cells[at], row))],
            verbose=0,
        ),
    )
    try:
        for result in tuner.fit():
            if result.error is not None:
                raise result.error
    finally:
        if starts_ray:
            ray.shutdown()


def _play(config: dict[str, Any], cells: Sequence[WorldCell]) -> None:
    from ray import tune

    def report(found: list[Row]) -> None:
        tune.report({"round": found[0].round, **{each.metric: each.value for each in found}})

    tune.report({"row": json.dumps(play_cell(cells[config["cell"]], report))})


def _keeper(keep: Callable[[int, StoredRow], None]) -> Any:
    """Return a callback that passes the last report of each trial to ``keep``."""
    from ray import tune

    class Keeper(tune.Callback):  # type: ignore[misc]
        def __init__(self, keep: Callable[[int, StoredRow], None]) -> None:
            self.keep = keep

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self.keep(trial.config["cell"], json.loads(trial.last_result["row"]))

        def __getstate__(self) -> dict[str, Any]:
            # Ray pickles callbacks to restore an experiment; here the store restores cells.
            return {}

    return Keeper(keep)
