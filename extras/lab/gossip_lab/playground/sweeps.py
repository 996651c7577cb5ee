"""Sweeps: the cells of a grid, run and collected in tidy rows and tables.

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
"""Metrics of the table of worlds."""
NOT_PLAYED = CellResult(PlayedRun(()), error="not played")


@dataclass(frozen=True, slots=True)
class Sweep:
    """Results of a grid.

    Attributes:
        results: Result of each cell that was run, those with errors included.
    """

    grid: Grid
    results: Mapping[WorldCell, CellResult]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of ``rows``: the fields that vary, and those of a row."""
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
        """Tidy rows of all cells: one per cell, evaluated round and metric."""
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
        """Errors of cells, each with the settings of its cell."""
        return self._named({cell: result.error for cell, result in self.results.items()})

    @property
    def warnings(self) -> list[str]:
        """Warnings of cells, each with the settings of its cell."""
        return self._named({cell: result.warning for cell, result in self.results.items()})

    def _named(self, texts: Mapping[WorldCell, str]) -> list[str]:
        return [
            f"{' '.join(map(plain, self.grid.values_of(cell))) or 'the only cell'}: {text}"
            for cell, text in texts.items()
            if text
        ]

    def means(self, metric: str) -> dict[tuple[Any, ...], dict[int, estimates.Estimate]]:
        """Return the estimate over the seeds after each evaluated round, for each setting. Cells
        that were stopped, have an error, or have the value NaN are omitted."""
        found: dict[tuple[Any, ...], dict[int, list[float]]] = {}
        for cell in self.grid.cells:
            rounds = found.setdefault(self.setting_of(cell), {})
            result = self.results.get(cell)
            if result is not None and not result.stopped and not result.error:
                for at, value in result.run.curve(metric):
                    if not math.isnan(value):
                        rounds.setdefault(int(at), []).append(value)
        return {
            setting: {at: estimates.Estimate(tuple(values)) for at, values in rounds.items()}
            for setting, rounds in found.items()
        }

    @property
    def shown(self) -> tuple[str, ...]:
        """Metrics of the table; for real runs all available ones."""
        runs = [
            result.run
            for cell, result in self.results.items()
            if isinstance(cell.world, RunCommand)
        ]
        return tuple(dict.fromkeys(row.metric for run in runs for row in run.rows)) or SHOWN

    def table(self) -> list[str]:
        """Return the lines of a table: for each setting, the mean over the seeds after the last
        round, with the half width of its interval of 95 %."""
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
            texts = [_mean_text(each[0]) if each else "-" for each in last]
            rows.append((*map(plain, setting), seeds, str(stopped.get(setting, 0)), *texts))
        return head, rows

    def write_rows(self, path: str | Path) -> None:
        """Write the rows as Parquet if the name of the file ends so, and as CSV otherwise.

        Raises: ConfigError: The file cannot be written, or pyarrow is missing.
        """
        write_rows(Path(path), self.columns, self.rows)


def plain(value: Any) -> str:
    """Return the value of a field as a short text."""
    return (" ".join(value) or "none") if isinstance(value, tuple) else str(value)


def _mean_text(estimate: estimates.Estimate) -> str:
    if len(estimate.values) < 2:
        return f"{estimate.mean:.4f}"
    return f"{estimate.mean:.4f} ± {estimate.interval[1] - estimate.mean:.4f}"


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
    """Play a world with all combinations of values of its fields, or run a command with all
    combinations of values of its names. Cells that the folder has are not played again.

    Args:
        into: Folder of the results.
        jobs: Cells to run at once on this machine, in their own processes: a script needs
            ``if __name__ == "__main__":``.
        engine: ``local``, ``optuna``, ``ray``, ``dask`` or ``condor``.
        asha: Metric by which cells that fall behind are stopped; empty: all cells are played to
            their end.
        values: For each field that varies, its values.

    Raises: ConfigError: A field does not exist or a value does not fit it, or an engine or a metric
        does not exist.
    """
    settings = SweepSettings(Path(into), jobs, asha, quiet)
    return run_grid(Grid.make(world, rounds, every, values), settings, engine)


def run_grid(grid: Grid, settings: SweepSettings, engine: str) -> Sweep:
    """Run the cells of a grid that the folder lacks, and return all results.

    Raises: ConfigError: Real runs are to be stopped early, or as in ``grid``.
    """
    if settings.asha and any(isinstance(cell.world, RunCommand) for cell in grid.cells):
        raise ConfigError("a real run is not stopped early", "leave out --asha")
    return Sweep(grid, load(engine, settings)(grid.cells, settings))


def read_sweep(grid: Grid, settings: SweepSettings) -> Sweep:
    """Return the results that the folder has. With a metric to stop by, cells that halving has
    stopped are among them."""
    store = store_of(settings.cells)

    def read(cells: Sequence[WorldCell], settings: SweepSettings) -> dict[WorldCell, CellResult]:
        return dict.fromkeys(cells, NOT_PLAYED) | store.read_all(cells)

    found = halve(read, grid.cells, settings) if settings.asha else {}
    played = {cell: result for cell, result in found.items() if not result.error}
    return Sweep(grid, played | store.read_all(grid.cells))
