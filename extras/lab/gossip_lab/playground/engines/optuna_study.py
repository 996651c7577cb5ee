"""Cells as trials of an Optuna study, which is stored in a file of the sweep's folder.

``optuna-dashboard FOLDER/optuna.journal`` shows the study. Optuna only records the cells;
``run_cells`` starts the processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gossip_lab.cells import ERROR, Row as StoredRow, run_cells
from gossip_lab.playground.grids import CellResult, WorldCell, facts_of, play_cell, store_of
from gossip_lab.playground.played import Row

from .settings import SweepSettings

JOURNAL, STUDY = "optuna.journal", "sweep"


def run(cells: Sequence[WorldCell], settings: SweepSettings) -> dict[WorldCell, CellResult]:
    """Run the cells as trials of the study in the folder."""
    import optuna

    store = store_of(settings.cells)
    store.make_folder()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    place = settings.folder / JOURNAL
    optuna.create_study(
        study_name=STUDY, storage=_storage(place), direction="maximize", load_if_exists=True
    )
    play = partial(_play, place, settings.asha or "mean")
    return run_cells(cells, play, store, settings.jobs, quiet=settings.quiet)


def _play(place: Path, metric: str, cell: WorldCell) -> StoredRow:
    import optuna
    from optuna.trial import TrialState

    study = optuna.load_study(study_name=STUDY, storage=_storage(place))
    trial = study.ask()
    for name, value in {**facts_of(cell.world), "rounds": cell.rounds}.items():
        trial.set_user_attr(name, value)

    def report(found: list[Row]) -> None:
        trial.report(_score(found, metric), found[0].round)

    row = play_cell(cell, report)
    if row.get(ERROR):
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, _score([Row(*each) for each in row["rows"]], metric))
    return row


def _score(rows: list[Row], metric: str) -> float:
    """Return the last accuracy. If the script of a real run logs no accuracy, return minus the last
    loss."""
    last = {row.metric: row.value for row in rows}
    return last.get(metric, -last.get("loss", math.nan))


def _storage(place: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(place)))
