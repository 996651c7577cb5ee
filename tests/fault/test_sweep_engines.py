"""The engines of sweeps, with the real libraries: all give the same rows, go on with what another
began, and stop what falls behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from condor import Pool

from gossip_lab import RunCommand, Sweep, World, grid
from gossip_lab.playground.played import METRICS

pytestmark = pytest.mark.adapters
PACKAGES = {"condor": "torch", "optuna": "optuna", "ray": "ray", "dask": "distributed"}
VALUES: dict[str, Any] = {
    "lr": [0.1, 0.5],
    "split": ["iid", "dirichlet:0.5", "sorted"],
    "batch": [8, 16],
    "seed": range(2),
}
TRAIN = """
import sys
import torch
from torch.nn.functional import cross_entropy
import gossip
from gossip_lab.data_sets import load

torch.manual_seed(int(sys.argv[2]))
data, model = load("digits"), torch.nn.Linear(64, 10)
peer = gossip.init()
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=float(sys.argv[1])))
for step in peer.steps(8):
    chosen = torch.arange(peer.id, len(data.labels), 2)[step * 16 : (step + 1) * 16]
    loss = cross_entropy(model(data.images[chosen]), data.labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    right = model(data.test_images).argmax(1) == data.test_labels
    peer.log(loss=float(loss), accuracy=float(right.float().mean()))
"""


@pytest.fixture(params=[name for name in PACKAGES if name != "condor"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    pytest.importorskip(PACKAGES[name])
    return name


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return play("local", tmp_path_factory.mktemp("local"))


def play(engine: str, folder: Path, **options: Any) -> Sweep:
    values = VALUES | {name: options.pop(name) for name in VALUES if name in options}
    return grid(
        World(peers=3), rounds=2, every=1, into=folder, jobs=2, engine=engine, quiet=True, **values
    )


def test_24_cells_give_the_rows_of_a_local_sweep(engine: str, local: Sweep, tmp_path: Path) -> None:
    """After it has gone on from a part that the local engine has run."""
    play("local", tmp_path, lr=[0.1])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").glob("*.json")}
    assert len(before) == 12
    found = play(engine, tmp_path)
    assert len(found.results) == 24
    assert found.rows == local.rows
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(list((tmp_path / "cells").glob("*.json"))) == 24


def test_an_error_of_a_cell_does_not_end_the_others(engine: str, tmp_path: Path) -> None:
    world = World(peers=3, aggregator="krum")
    found = grid(world, rounds=1, into=tmp_path, engine=engine, quiet=True, f=[0, 2])
    assert len(found.results) == 2
    (error,) = found.errors
    assert error.startswith("2: ConfigError: krum needs")


def test_cells_that_fall_behind_are_stopped_as_locally(engine: str, tmp_path: Path) -> None:
    values = {"lr": [0.5, 1.0, 1e-4, 2e-4, 3e-4]}
    options: dict[str, Any] = {"rounds": 27, "every": 3, "quiet": True, "asha": "mean", **values}
    local = grid(World(peers=3), into=tmp_path / "local", **options)
    stopped = {cell.world.lr for cell, result in local.results.items() if result.stopped}
    assert len(stopped) == 4
    assert not stopped >= {0.5, 1.0}
    found = grid(World(peers=3), into=tmp_path / engine, engine=engine, **options)
    assert found.results == local.results
    whole = grid(World(peers=3), into=tmp_path / engine, **{**options, "asha": ""})
    for cell, result in whole.results.items():
        assert len(result.run.rows) == 9 * len(METRICS)
        kept = local.results[cell].run.rows
        assert result.run.rows[: len(kept)] == kept


def run_cells(engine: str) -> Sweep:
    values: dict[str, Any] = {"lr": [0.1, 0.5], "seed": [0, 1]}
    command = RunCommand("-n 2 train.py {lr} {seed}")
    return grid(command, every=4, into=engine, engine=engine, quiet=True, **values)


@pytest.mark.parametrize("engine", list(PACKAGES), indirect=True)
def test_real_runs_log_the_same_with_all_engines(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    found = run_cells(engine)
    if engine == "condor":
        pool, folder = Pool(tmp_path / "pool"), tmp_path / "condor/condor"
        for line in (folder / "sweep.dag").read_text().splitlines():
            if line.startswith("VARS"):
                (node,) = pool.submit(folder / "cell.sub", {"cell": line.split('"')[1]})
                node.start()
                assert node.finish() == 0
        found = run_cells(engine)
    assert not found.errors
    logged, local = [  # without times and bytes
        [(*row[:3], *row[5:]) for row in each.rows] for each in (found, run_cells("local"))
    ]
    assert len(logged) == 4 * 2 * len(("loss", "worst", "mean", "p10"))
    assert logged == local
