"""Cells as trials of Ray Tune: on the cluster that ``RAY_ADDRESS`` names, or on this machine.

Each report of a trial has all rows so far, so that the rows of a stopped trial are kept.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from gossip_lab.cells import ERROR, ProgressLines, Row as StoredRow
from gossip_lab.playground.grids import CellResult, WorldCell, play_cell, store_of
from gossip_lab.playground.played import Row

from .halving import REDUCTION, compute_score, find_first_rung
from .settings import SweepSettings

SCORE = "score"


def run(cells: Sequence[WorldCell], settings: SweepSettings) -> dict[WorldCell, CellResult]:
    """Run the cells as trials, and keep each result as it arrives."""
    store = store_of(settings.cells, takes_stopped=bool(settings.asha))
    found = store.read_all(cells)
    missing = [cell for cell in cells if cell not in found]
    if not missing:
        return found
    store.make_folder()
    # The files of a cell are relative to the working directory.
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    import ray
    from ray import tune

    starts_ray = not ray.is_initialized()
    if starts_ray:
        own = {"num_cpus": settings.jobs, "include_dashboard": False}
        ray.init(log_to_driver=False, **({} if "RAY_ADDRESS" in os.environ else own))
    scheduler = None
    if settings.asha:
        scheduler = tune.schedulers.ASHAScheduler(
            time_attr="round",
            metric=SCORE,
            mode="max",
            max_t=missing[0].rounds,
            grace_period=find_first_rung(cells),
            reduction_factor=REDUCTION,
        )
    progress = ProgressLines(len(missing), len(found), settings.quiet)

    def keep(at: int, row: StoredRow) -> None:
        found[missing[at]] = store.keep(missing[at], row)
        progress.add_one()

    tuner = tune.Tuner(
        tune.with_parameters(_play, cells=missing, metric=settings.asha or "mean"),
        param_space={"cell": tune.grid_search(list(range(len(missing))))},
        tune_config=tune.TuneConfig(scheduler=scheduler, max_concurrent_trials=settings.jobs),
        run_config=tune.RunConfig(
            storage_path=str((settings.folder / "ray").resolve()),
            callbacks=[_keeper(keep)],
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
    return {cell: found[cell] for cell in cells}


def _play(config: dict[str, Any], cells: Sequence[WorldCell], metric: str) -> None:
    from ray import tune

    cell, rows = cells[config["cell"]], list[Row]()

    def report(found: list[Row]) -> bool:
        rows.extend(found)
        at = found[0].round
        row = {"rows": [list(each) for each in rows], "stopped": at < cell.rounds, "warning": ""}
        metrics = {each.metric: each.value for each in found} | {SCORE: compute_score(rows, metric)}
        tune.report({**metrics, "round": at, "row": json.dumps(row)})
        return False

    row = play_cell(cell, report)
    if row.get(ERROR):
        # ASHA accepts no report without its metric.
        tune.report({SCORE: -math.inf, "round": cell.rounds, "row": json.dumps(row)})
    elif row["warning"]:  # ASHA may have ended the trial after its last report: Ray prints it.
        warnings.warn(row["warning"], stacklevel=1)


def _keeper(keep: Callable[[int, StoredRow], None]) -> Any:
    """Return the callback that keeps the last report of each trial."""
    from ray import tune

    class Keeper(tune.Callback):  # type: ignore[misc]
        def __init__(self, keep: Callable[[int, StoredRow], None]) -> None:
            self.keep = keep

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self.keep(trial.config["cell"], json.loads(trial.last_result["row"]))

        def __getstate__(self) -> dict[str, Any]:
            return {}  # Ray pickles it to restore the experiment; cells are restored from the store

    return Keeper(keep)
