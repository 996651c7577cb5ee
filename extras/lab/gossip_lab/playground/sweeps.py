"""Sweeps: run the cells of a grid, and collect the results in tidy rows and tables.

sweep = grid(World(peers=100), rounds=100, topology=["rolling", "ring"], seed=range(5))
sweep.write_rows("rows.csv")
print("\n".join(sweep.table()))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError
from gossip_lab import estimates

from .engines import LOCAL, SweepSettings, load
from .engines.halving import halve
from .grids import EVERY, ROUNDS, CellResult, Grid, WorldCell, store_of
from .played import PlayedRun, Row
from .run_commands import RunCommand
from .tables import align, write_rows
from .world import World

FOLDER = Path("runs/sweep")
SEED = "seed"
SHOWN = ("worst", "mean", "p10", "consensus_distance")
"""Metrics in the table of a sweep over worlds."""
NOT_PLAYED = CellResult(PlayedRun(()), error="not played")


@dataclass(frozen=True, slots=True)
class Sweep:
    """Results of a grid.

    Attributes:
        results: Result of each cell that was run, including cells with errors.
    """

    grid: Grid
    results: Mapping[WorldCell, CellResult]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of ``rows``: ``settings``, and then the fields of ``Row``."""
        return (*self.settings, *Row._fields)

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the fields that vary, without the seed."""
        return tuple(name for name in self.grid.varied if name != SEED)

    def setting_of(self, cell: WorldCell) -> tuple[Any, ...]:
        """Return the cell's values of ``settings``."""
        return tuple(getattr(cell.world, name) for name in self.settings)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Tidy rows of all cells, with one row per cell, evaluated round and metric."""
        return [
            (*self.setting_of(cell), *row)
            for cell in self.grid.cells
            if cell in self.results
            for row in self.results[cell].run.rows
        ]

    @property
    def missing(self) -> int:
        """Number of cells that were not run."""
        return len(self.grid.cells) - len(self.results)

    @property
    def errors(self) -> list[str]:
        """Errors of cells as texts that begin with the settings of the cell."""
        return self._named({cell: result.error for cell, result in self.results.items()})

    @property
    def warnings(self) -> list[str]:
        """Warnings of cells as texts that begin with the settings of the cell."""
        return self._named({cell: result.warning for cell, result in self.results.items()})

    def _named(self, texts: Mapping[WorldCell, str]) -> list[str]:
        return [f"{self._name_of(cell)}: {text}" for cell, text in texts.items() if text]

    def _name_of(self, cell: WorldCell) -> str:
        values = zip(self.grid.varied, map(plain, self.grid.values_of(cell)), strict=True)
        return ", ".join(f"{name} = {value}" for name, value in values) or "the only cell"

    def means(self, metric: str) -> dict[tuple[Any, ...], dict[int, estimates.Estimate]]:
        """Return, for each setting and evaluated round, the estimate of a metric over the seeds.
        Cells that were stopped or have an error, and values that are NaN, are left out."""
        found: dict[tuple[Any, ...], dict[int, list[float]]] = {}
        for cell in self.grid.cells:
            rounds = found.setdefault(self.setting_of(cell), {})
            result = self.results.get(cell)
            if result is not None and not result.stopped and not result.error:
                for row in result.run.rows:
                    if row.metric == metric and not math.isnan(row.value):
                        rounds.setdefault(row.round, []).append(row.value)
        return {
            setting: {at: estimates.Estimate(tuple(values)) for at, values in rounds.items()}
            for setting, rounds in found.items()
        }

    @property
    def shown(self) -> tuple[str, ...]:
        """Metrics in the table. For real runs, these are all logged metrics."""
        runs = [
            result.run
            for cell, result in self.results.items()
            if isinstance(cell.world, RunCommand)
        ]
        return tuple(dict.fromkeys(row.metric for run in runs for row in run.rows)) or SHOWN

    def table(self) -> list[str]:
        """Return the lines of a table. For each setting, it has the mean over the seeds after the
        last round, and the half-width of its 95 % confidence interval."""
        return align(*self.table_cells(), names=len(self.settings))

    def table_cells(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the head and the rows of ``table``."""
        shown = self.shown
        head = (*self.settings, "seeds", "stopped", *shown)
        found = {metric: self.means(metric) for metric in shown}
        stopped: dict[tuple[Any, ...], int] = {}
        for cell, result in self.results.items():
            setting = self.setting_of(cell)
            stopped[setting] = stopped.get(setting, 0) + result.stopped
        rows = []
        for setting in found[shown[0]]:
            last = [list(found[metric][setting].values())[-1:] for metric in shown]
            seeds = str(len(last[0][0].values) if last[0] else 0)
            texts = [mean_text(each[0].values) if each else "-" for each in last]
            rows.append((*map(plain, setting), seeds, str(stopped.get(setting, 0)), *texts))
        return head, rows

    def write_rows(self, path: str | Path) -> None:
        """Write the rows as Parquet if the file's name ends in ``.parquet``, and as CSV otherwise.

        Raises: ConfigError: The file cannot be written, or pyarrow is missing.
        """
        write_rows(Path(path), self.columns, self.rows)


def plain(value: Any) -> str:
    """Return the value of a field as a short text."""
    return (" ".join(value) or "none") if isinstance(value, tuple) else str(value)


def mean_text(values: Iterable[float], digits: int = 4) -> str:
    """Return a mean with the half-width of its 95 % confidence interval."""
    estimate = estimates.Estimate(tuple(values))
    text = f"{estimate.mean:.{digits}f}"
    if len(estimate.values) < 2:
        return text
    return f"{text} ± {estimate.interval[1] - estimate.mean:.{digits}f}"


def grid(  # noqa: PLR0913 - the options of a sweep, by name
    world: World | RunCommand,
    *,
    rounds: int = ROUNDS,
    every: int = EVERY,
    into: str | Path = FOLDER,
    jobs: int = 1,
    engine: str = LOCAL,
    asha: str = "",
    quiet: bool = False,
    **values: Iterable[Any],
) -> Sweep:
    """Play a world with all combinations of the values of its fields, or run a command with all
    combinations of the values of its placeholders. Cells with results in the folder are not played
    again.

    Args:
        into: Folder of the results.
        jobs: Number of cells to run at once on this machine. They run in processes of their own, so
            a script needs ``if __name__ == "__main__":``.
        engine: ``local``, ``optuna``, ``ray``, ``dask`` or ``condor``.
        asha: Metric for early stopping of bad cells; empty to play all cells to their end.
        values: Values of each field that varies.

    Raises: ConfigError: A field does not exist or a value does not fit it, or an engine or a metric
        does not exist.
    """
    settings = SweepSettings(Path(into), jobs, asha, quiet)
    return run_grid(Grid.make(world, rounds, every, values), settings, engine)


def run_grid(grid: Grid, settings: SweepSettings, engine: str) -> Sweep:
    """Run the cells of a grid that have no result in the folder, and return all results.

    Raises: ConfigError: For the same reasons as ``grid``, or early stopping is requested for real
    runs.
    """
    if settings.asha and any(isinstance(cell.world, RunCommand) for cell in grid.cells):
        raise ConfigError("a real run is not stopped early", "leave out --asha")
    return Sweep(grid, load(engine, settings)(grid.cells, settings))


def read_sweep(grid: Grid, settings: SweepSettings) -> Sweep:
    """Return the results in the folder, without running cells. With early stopping, the results
    include the cells that halving has stopped."""
    store = store_of(settings.cells)

    def read(cells: Sequence[WorldCell], settings: SweepSettings) -> dict[WorldCell, CellResult]:
        return dict.fromkeys(cells, NOT_PLAYED) | store.read_all(cells)

    found = halve(read, grid.cells, settings) if settings.asha else {}
    played = {cell: result for cell, result in found.items() if not result.error}
    return Sweep(grid, played | store.read_all(grid.cells))
