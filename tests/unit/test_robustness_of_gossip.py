"""The tables of ``docs/results/gossip_robustness.md``, from made-up rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gossip_lab.playground import World
from gossip_lab.playground.grids import CellResult, Grid
from gossip_lab.playground.played import PlayedRun, Row
from gossip_lab.playground.sweeps import Sweep

ATTACK = "sign_flip:18,19*10"


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


def sweep(*left_out: tuple[str, str, int]) -> Sweep:
    """Return a sweep in which the mean loses 80 points under attack and the median loses 10."""
    grid = Grid.make(
        World(peers=20),
        2,
        1,
        {
            "seed": [0, 1],
            "topology": ["ring", "full"],
            "aggregator": ["mean", "median"],
            "faults": [[], [ATTACK]],
        },
    )

    def rows(world: Any) -> Sequence[Row]:
        lost = {"mean": 0.8, "median": 0.1}[world.aggregator] if world.faults else 0.0
        last = 0.9 - lost + 0.02 * world.seed - 0.1 * (world.topology == "full")
        return [
            Row(world.seed, at, 1.0 * at, 0, metric, value)
            for at, worst in ((1, 0.5), (2, last))
            for metric, value in (("worst", worst), ("mean", 0.99))
        ]

    return Sweep(
        grid,
        {
            cell: CellResult(PlayedRun(tuple(rows(cell.world))))
            for cell in grid.cells
            if (cell.world.topology, cell.world.aggregator, cell.world.seed) not in left_out
        },
    )


def test_a_table_has_the_last_accuracy_of_the_worst_peer_over_the_seeds() -> None:
    from gossip_robustness import cells_of, table

    cells = cells_of(sweep())
    assert table(cells, "ring") == [
        "| rule | worst | `none` | `sign_flip*10` |",
        "|---|---|---|---|",
        "| `mean` | **11.0 ± 1.0** | 91.0 ± 1.0 | **11.0 ± 1.0** |",
        # 81.0 is below 0.9 * 91.0
        "| `median` | **81.0 ± 1.0** | 91.0 ± 1.0 | **81.0 ± 1.0** |",
    ]
    assert table(cells, "full")[-1] == (
        "| `median` | **71.0 ± 1.0** | 81.0 ± 1.0 | **71.0 ± 1.0** |"
    )


def test_a_page_counts_the_runs_that_it_lacks() -> None:
    from gossip_robustness import page

    assert "missing" not in page(sweep())[0]
    lines = page(sweep(("full", "median", 0), ("full", "median", 1), ("ring", "mean", 0)))
    assert "6 of 16 runs are missing" in " ".join(lines[0].split())
    assert lines[lines.index("## `full`") + 5] == "| `median` | ? | ? | ? |"
    assert "| `mean` | **12.0** | 92.0 | **12.0** |" in lines
