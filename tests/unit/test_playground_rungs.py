"""Early stopping of sweeps: when cells are compared, and by what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from gossip.errors import ConfigError
from gossip_lab.playground import World
from gossip_lab.playground.engines import SweepSettings
from gossip_lab.playground.engines.halving import compute_score, find_first_rung, halve
from gossip_lab.playground.grids import CellResult, Grid, WorldCell, store_of
from gossip_lab.playground.played import PlayedRun, Row
from gossip_lab.playground.sweeps import read_sweep


@pytest.mark.parametrize(
    ("cells", "every", "rounds"), [(1, 2, 54), (3, 2, 18), (9, 2, 6), (26, 2, 6), (9, 10, 10)]
)
def test_cells_are_compared_where_one_is_left_at_last(cells: int, every: int, rounds: int) -> None:
    grid = Grid.make(World(), 54, every, {"seed": range(cells)})
    assert find_first_rung(grid.cells) == rounds


def test_cells_are_compared_by_the_mean_since_the_rung_before() -> None:
    rows = [
        Row(0, at, 0.0, 0, metric, at * factor)
        for at in range(2, 20, 2)
        for metric, factor in (("mean", 1.0), ("loss", 100.0))
    ]
    assert compute_score(rows, "mean") == 13.0  # of the rounds 8 to 18
    assert compute_score(rows[:2], "mean") == 2.0
    assert compute_score([rows[0]._replace(value=math.nan)], "mean") == -math.inf


def result_of(cell: WorldCell) -> CellResult:
    """Result whose mean accuracy rises with the seed; that of the last seed has an error."""
    seed = cell.world.seed
    rows = tuple([Row(seed, at, 0.0, 0, "mean", seed) for at in range(1, cell.rounds + 1)])
    return CellResult(PlayedRun(rows), error="broken" if seed == 8 else "")


def test_a_third_goes_on_at_each_rung_and_no_cell_with_an_error(tmp_path: Path) -> None:
    ran: list[tuple[int, list[int]]] = []

    def run(cells: Sequence[WorldCell], settings: SweepSettings) -> dict[WorldCell, CellResult]:
        ran.append((cells[0].rounds, [cell.world.seed for cell in cells]))
        return {cell: result_of(cell) for cell in cells}

    cells = Grid.make(World(), 27, 1, {"seed": range(9)}).cells
    found = halve(run, cells, SweepSettings(tmp_path, asha="mean"))
    assert ran == [(3, list(range(9))), (9, [7, 6, 5]), (27, [7])]
    assert [cell.world.seed for cell in cells if not found[cell].stopped] == [7, 8]


def test_an_engine_that_has_results_later_goes_on_where_it_has_all(tmp_path: Path) -> None:
    cells = Grid.make(World(), 27, 1, {"seed": range(9)}).cells
    ran = []

    def run(asked: Sequence[WorldCell], settings: SweepSettings) -> dict[WorldCell, CellResult]:
        ran.append(len(asked))
        return {cell: result_of(cell) for cell in asked if cell.rounds == 3}

    found = halve(run, cells, SweepSettings(tmp_path, asha="mean"))
    assert ran == [9, 3]
    assert {result.run.rows[-1].round for result in found.values()} == {3}
    assert {cell.world.seed for cell in found} == {0, 1, 2, 3, 4, 8}, "the others have none yet"


@pytest.mark.parametrize(("end", "stopped"), [(27, 7), (9, 7), (3, 5)])
def test_stopped_cells_are_shown_again(tmp_path: Path, end: int, stopped: int) -> None:
    grid, settings = (
        Grid.make(World(), 27, 1, {"seed": range(9)}),
        SweepSettings(tmp_path, asha="mean"),
    )
    store = store_of(settings.cells)
    store.make_folder()

    def run(cells: Sequence[WorldCell], settings: SweepSettings) -> dict[WorldCell, CellResult]:
        for cell in cells:
            if cell.rounds <= end and not (result := result_of(cell)).error:
                rows = [list(row) for row in result.run.rows]
                store.keep(cell, {"rows": rows, "warning": ""})
        return {cell: result_of(cell) for cell in cells if cell.rounds <= end}

    whole = halve(run, grid.cells, settings)
    shown = read_sweep(grid, settings)
    assert shown.results == {cell: result for cell, result in whole.items() if not result.error}
    assert sum(result.stopped for result in shown.results.values()) == stopped
    assert shown.missing == 9 - len(shown.results)
    assert read_sweep(grid, SweepSettings(tmp_path)).missing == (8 if end == 27 else 9)


def test_a_metric_that_does_not_rise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="metric to stop by"):
        SweepSettings(tmp_path, asha="loss")
