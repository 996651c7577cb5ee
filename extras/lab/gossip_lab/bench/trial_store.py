"""Trials as cells of a table: the facts that distinguish two trials, and the execution of
trials."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossip.errors import GossipError
from gossip_lab import data_sets, rule_sources
from gossip_lab.cells import ERROR, CellStore, Row, run_cells

from .trials import Trial, TrialResult

if TYPE_CHECKING:
    from gossip_lab.data_sets import TrainingData


def check_model(model: str, data: TrainingData) -> None:
    """Check the model of trials. Raises: UnknownName: There is no such model. ConfigError: The
    model does not fit these data."""
    from gossip_lab.playground import networks

    networks.make_model(model, data.images.shape[1], data.classes, seed=0)


def store_of(folder: Path, data: str) -> CellStore[Trial, TrialResult]:
    """Return the store in this folder for trials on these data. The data and the sources of rules
    are read once, here; a new store is needed after they change."""
    digest = functools.cache(rule_sources.digest)
    contents = [rule_sources.content(path) for path in data_sets.files(data)]

    def facts_of(trial: Trial) -> dict[str, Any]:
        sources = [digest(trial.rule, trial.attack), *contents]
        facts = {**dataclasses.asdict(trial), "data": data, "sources": sources}
        del facts["record"]  # has no effect on the run
        return facts

    return CellStore(folder, facts_of, _result_of)


def run_all(
    trials: Iterable[Trial], folder: Path, data: str, jobs: int, *, quiet: bool = False
) -> dict[Trial, TrialResult]:
    """Run the trials that the folder lacks, as ``run_cells``, and return all results.

    Raises: ConfigError: The data cannot be read, or the folder cannot be written to.
    """
    if data != data_sets.DIGITS:
        data_sets.load(data)  # Errors in the data are then raised before a worker starts.
    return run_cells(
        trials, functools.partial(_play, data), store_of(folder, data), jobs, quiet=quiet
    )


def recall_records(store: CellStore[Trial, TrialResult], trial: Trial) -> dict[str, list[Any]]:
    """Return the records of a finished trial, by column; empty if it has no records."""
    row = store.read_row(trial) or {}  # no row if its rule raised
    records: dict[str, list[Any]] = row.get("records", {})
    return records


def _result_of(trial: Trial, row: Row) -> TrialResult | None:
    """Return the result that the row stores, without its records, because they are large;
    ``recall_records`` reads them. Return None if the row lacks records that the trial requests."""
    if trial.record and not row.get("records") and not row.get("refused"):
        return None
    kept = {key: value for key, value in row.items() if key not in ("records", "curve", ERROR)}
    try:
        return TrialResult(**kept, curve=tuple(map(tuple, row["curve"])))
    except (KeyError, TypeError):
        return None


def _play(data: str, trial: Trial) -> Row:
    import torch

    from .trial_world import train

    torch.set_num_threads(1)
    error: Exception | None = None
    try:
        result = train(trial, _load(data))
    except GossipError as wrong:
        error, result = wrong, TrialResult(None, str(wrong))
    except Exception as wrong:  # noqa: BLE001
        # The table shows the exception of the rule, and the other cells are still run.
        error = wrong
        result = TrialResult(None, f"raised {type(wrong).__name__}: {wrong}")
    row = dataclasses.asdict(dataclasses.replace(result, arithmetic=arithmetic()))
    return row if error is None else {**row, ERROR: repr(error)}


@functools.cache
def _load(data: str) -> TrainingData:
    return data_sets.load(data)


def arithmetic() -> str:
    """Return the facts that decide how sums are rounded: the version of torch, its vector
    instructions, ``MKL_CBWR`` if it is set, and the processor."""
    import torch

    from .turns import processor

    mkl = [f"MKL_CBWR={setting}"] if (setting := os.environ.get("MKL_CBWR")) else []
    return ", ".join(
        [f"torch {torch.__version__}", torch.backends.cpu.get_cpu_capability(), *mkl, processor()]
    )
