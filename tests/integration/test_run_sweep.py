"""Sweeps of real runs: what they find, and that none of their processes outlives them."""

from __future__ import annotations

import os
import select
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import zygote
from effort import in_turn, rotated

from gossip_lab.playground.engines import SweepSettings
from gossip_lab.playground.grids import Grid
from gossip_lab.playground.run_commands import TIMEOUT_S, RunCommand
from gossip_lab.playground.sweeps import Sweep, read_sweep, run_grid

pytestmark = pytest.mark.timeout(240)
TRAIN = """
import os, signal, sys
from pathlib import Path
import torch
import gossip

lr, begun = float(sys.argv[1]), Path("begun")
peer = gossip.init()
if lr == 7 and not Path("mended").exists():
    with open(f"pid-{peer.id}", "w") as file:
        file.write(str(os.getpid()))
    signal.pause()
if "ENDS" in os.environ and lr == 0.5 and peer.id == 0 and not begun.exists():
    begun.write_text(str(os.getpid()))
    os.kill(int(os.environ["SWEEP"]), int(os.environ["ENDS"]))
    signal.pause()
if lr == 9:
    raise ValueError("too fast")
model = torch.nn.Linear(1, 1, bias=False)
with torch.no_grad():
    model.weight.fill_(0.0)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=lr))
for step in peer.steps(4):
    loss = (model(torch.ones(1, 1)) - 1).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    peer.log(loss=float(loss), accuracy=float(model.weight))
"""
GRID = """
every = 4
[run]
command = "-n 2 train.py {lr}"
[grid]
lr = [0.25, 0.5]
"""
SWEEP = """
import os, sys
from gossip.launch.cli import main
os.environ["SWEEP"] = str(os.getpid())
sys.argv = ["gossip", "sweep", "grid.toml", "--into", "out"]
main()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "grid.toml").write_text(GRID)
    return tmp_path


def means(sweep: Sweep) -> dict[float, float]:
    return {
        cell.world.lr: result.run.curve("mean")[-1][1]
        for cell, result in sweep.results.items()
        if not result.error
    }


@pytest.mark.parametrize("number", rotated([signal.SIGKILL, signal.SIGINT]))
def test_a_sweep_of_runs_ends_its_processes_and_goes_on(number: signal.Signals, here: Path) -> None:
    command = [sys.executable, "-c", SWEEP]
    environment = {**os.environ, "ENDS": str(int(number))}
    ended = zygote.run(command, cwd=here, env=environment, capture_output=True, text=True)
    assert ended.returncode in (-number, 128 + number), ended.stderr
    try:
        trainer = os.pidfd_open(int((here / "begun").read_text()))
    except ProcessLookupError:
        pass
    else:
        ready, _, _ = select.select([trainer], [], [], 60.0)
        os.close(trainer)
        assert ready, "a peer outlives the sweep"
    (stored,) = (here / "out/cells").glob("*.json")
    before = stored.stat().st_mtime_ns
    again = zygote.run(command, cwd=here, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "1 cell to run, 1 was run before" in again.stderr
    assert stored.stat().st_mtime_ns == before
    found = read_sweep(Grid.from_toml("grid.toml"), SweepSettings(here / "out"))
    # w += 2 lr (1 - w), from 0; the mean of four steps
    expected = sum(1 - 0.5**step for step in range(1, 5)) / 4
    assert means(found) == pytest.approx({0.25: expected, 0.5: 1.0})
    assert {row.round for row in found.results[found.grid.cells[0]].run.rows} == {4}
    assert (here / "out/report.html").exists()


@in_turn(1, 2)
def test_a_run_that_hangs_is_ended_as_an_error_and_runs_again(here: Path) -> None:
    settings = SweepSettings(here / "out", quiet=True)
    for timeout_s in (4, 8, 16, 32, 64):  # until its peers have started before it is ended
        command = RunCommand("-n 2 train.py 7", timeout_s=timeout_s)
        (error,) = run_grid(Grid.make(command, 1, 4, {}), settings, "local").errors
        assert error.startswith(
            "the only cell: ConfigError: "
            f"gossip run was ended after {timeout_s} s, the timeout_s of [run]: "
        )
        pids = [int(path.read_text() or 0) for path in here.glob("pid-*")]
        if len(pids) == 2 and all(pids):
            break
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    (here / "mended").touch()
    again = run_grid(Grid.make(replace(command, timeout_s=TIMEOUT_S), 1, 4, {}), settings, "local")
    assert again.rows


@in_turn(0, 2)
def test_a_run_that_fails_is_an_error_with_its_last_lines(here: Path) -> None:
    (here / "grid.toml").write_text(GRID.replace("0.25, 0.5", "9"))
    grid = Grid.from_toml("grid.toml")
    found = run_grid(grid, SweepSettings(here / "out", quiet=True), "local")
    (error,) = found.errors
    assert error.startswith("lr = 9: ConfigError: gossip run ended with ")
    assert "too fast" in error
    assert "(see " in error, "the folder that is kept"
