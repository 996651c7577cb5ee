"""Cells as trials of an Optuna study, which is stored in a file of the sweep's folder.

``optuna-dashboard FOLDER/optuna.journal`` shows the study. Optuna records the cells and stops those
that fall behind; the processes are those of ``run_cells``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from gossip_lab.cells import ERROR, Row as StoredRow, run_cells
from gossip_lab.playground.grids import CellResult, WorldCell, play_cell, store_of
from gossip_lab.playground.played import Row

from .choice import SweepSettings
from .halving import REDUCTION, compute_score, find_first_rung

JOURNAL, STUDY = "optuna.journal", "sweep"


def run(cells: Sequence[WorldCell], settings: SweepSettings) -> dict[WorldCell, CellResult]:
    """Run the cells as trials of the study in the folder."""
    import optuna

    store = store_of(settings.cells, takes_stopped=bool(settings.asha))
    store.make_folder()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    place = settings.folder / JOURNAL
    optuna.create_study(
        study_name=STUDY, storage=_storage(place), direction="maximize", load_if_exists=True
    )
    play = partial(_play, place, settings.asha, find_first_rung(cells))
    return run_cells(cells, play, store, settings.jobs, quiet=settings.quiet)


def _play(place: Path, asha: str, least: int, cell: WorldCell) -> StoredRow:
    import optuna
    from optuna.trial import TrialState

    halving = optuna.pruners.SuccessiveHalvingPruner(least, REDUCTION)
    pruner = halving if asha else optuna.pruners.NopPruner()
    study = optuna.load_study(study_name=STUDY, storage=_storage(place), pruner=pruner)
    trial = study.ask()
    for name, value in asdict(cell.world).items():
        trial.set_user_attr(name, value)

    metric, rows = asha or "mean", list[Row]()

    def report(found: list[Row]) -> bool:
        rows.extend(found)
        trial.report(compute_score(rows, metric), found[0].round)
        return bool(trial.should_prune())

    row = play_cell(cell, report)
    if row.get(ERROR):
        study.tell(trial, state=TrialState.FAIL)
    elif row["stopped"]:
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, next(each.value for each in rows[::-1] if each.metric == metric))
    return row


def _storage(place: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(place)))
