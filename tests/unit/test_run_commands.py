"""Real runs as cells of a grid: their command lines, and the rows that their files give."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gossip.errors import ConfigError
from gossip_lab.playground.grids import Grid, store_of, toml_of_cell
from gossip_lab.playground.played import Row
from gossip_lab.playground.run_commands import RunCommand, read_run
from gossip_lab.playground.sweeps import Sweep

GRID = """
every = 4
[run]
command = "-n 2 --topology {topology} 'my train.py' --lr={lr} {seed}"
topology = "ring"
[grid]
lr = [0.1, 1e-3]
seed = [3, 4]
"""


def grid_of(folder: Path, text: str = GRID) -> Grid:
    (folder / "grid.toml").write_text(text)
    return Grid.from_toml(folder / "grid.toml")


def test_a_command_has_the_values_of_its_cell(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    assert grid.varied == ("lr", "seed")
    assert len(grid.cells) == 4
    last = grid.cells[-1]
    assert isinstance(last.world, RunCommand)
    words = ["-n", "2", "--topology", "ring", "my train.py", "--lr=0.001", "4"]
    assert last.world.words == words
    assert grid.values_of(last) == (1e-3, 4)
    assert copy.copy(last) == last, "as for a worker"
    (tmp_path / "cell.toml").write_text(toml_of_cell(last))
    assert Grid.from_toml(tmp_path / "cell.toml").cells == (last,), "and to a machine of a pool"


def test_a_timeout_goes_to_a_machine_of_a_pool_and_makes_no_other_cells(tmp_path: Path) -> None:
    (before, *_), store = grid_of(tmp_path).cells, store_of(tmp_path)
    (cell, *_) = grid_of(tmp_path, GRID.replace("[run]", "[run]\ntimeout_s = 0.5")).cells
    assert isinstance(cell.world, RunCommand)
    assert cell.world.timeout_s == 0.5
    (tmp_path / "cell.toml").write_text(toml_of_cell(cell))
    assert Grid.from_toml(tmp_path / "cell.toml").cells == (cell,)
    assert store.path(cell) == store.path(before)


@pytest.mark.parametrize("timeout", ["0", '"1h"', "nan"])
def test_a_timeout_that_is_no_number_of_seconds_is_an_error(timeout: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="timeout_s = "):
        grid_of(tmp_path, GRID.replace("[run]", f"[run]\ntimeout_s = {timeout}"))


def test_a_quotation_without_an_end_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No closing quotation"):
        grid_of(tmp_path, """[run]\ncommand = "-n 2 'my train.py" """)


def test_another_script_makes_other_cells(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("1")
    (cell,) = grid_of(tmp_path, f"[run]\ncommand = '{script}'").cells
    before = store_of(tmp_path).path(cell)
    assert store_of(tmp_path).path(cell) == before
    script.write_text("2")
    assert store_of(tmp_path).path(cell) != before


def write(path: Path, *lines: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"t": 0.0, **line}) + "\n" for line in lines))


def logged(folder: Path, peer: int, *rows: tuple[float, int, dict[str, Any]]) -> None:
    write(
        folder / f"peer-{peer}/metrics.jsonl",
        *[{"wall": wall, "peer": peer, "round": at, **values} for wall, at, values in rows],
    )


def test_rows_are_means_over_what_honest_peers_have_logged(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"byzantine": [2]}))
    logged(
        tmp_path,
        0,
        (101.0, 1, {"loss": 4.0, "note": "warm"}),
        (102.0, 4, {"loss": 2.0}),
        (104.0, 5, {"accuracy": 0.5}),
    )
    logged(tmp_path, 1, (101.5, 2, {"loss": 1.0}), (105.0, 8, {"accuracy": 0.9}))
    logged(tmp_path, 2, (109.0, 1, {"loss": 99.0}), (104.0, 5, {"accuracy": 0.0}))
    for peer in (0, 1):  # the second one has started again
        counts = [(100.0, 0), (104.0, 40), (106.0, 60)] if peer else [(100.0, 0), (106.0, 30)]
        counts += [(107.0, 10)] if peer else []
        write(
            tmp_path / f"peer-{peer}/events.jsonl",
            *[{"wall": at, "event": "usage", "peer": peer, "sent_bytes": n} for at, n in counts],
        )
    (first, second) = read_run(tmp_path, 7, 4, 100.0)
    assert first == [Row(7, 4, 9.0, 100, "loss", 2.0)], "a mean of 3 and 1; 30 and 70 bytes"
    place = (7, 8, 5.0, 75)
    assert second[:2] == [Row(*place, "worst", 0.5), Row(*place, "mean", 0.7)]
    assert (second[2].metric, len(second)) == ("p10", 3)


def test_a_table_of_runs_has_what_they_have_logged(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    store = store_of(tmp_path / "cells")
    store.make_folder()
    for cell in grid.cells:
        row = [cell.world.seed, 4, 1.0, 9, "loss", cell.world.seed / 2]
        store.keep(cell, {"rows": [row], "warning": ""})
    head, rows = Sweep(grid, store.read_all(grid.cells)).table_cells()
    assert head == ("lr", "seeds", "stopped", "loss")
    assert [row[:4:3] for row in rows] == [(lr, "1.7500 ± 3.1766") for lr in ("0.1", "0.001")]
