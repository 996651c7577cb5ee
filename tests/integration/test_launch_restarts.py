"""``gossip run --restarts``: peers that died by themselves are started again, and nobody else."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import zygote
from test_launch_supervisor import FAKE, LineScreen, supervisor

from gossip.config import resolve
from gossip.launch.local import restarts, runs
from gossip.launch.local.outcome import RunOutcome
from gossip.launch.local.program import Program
from gossip.launch.local.supervisor import Supervisor
from gossip.run.rendezvous import claim
from gossip.run.telemetry import read_lines

DIES_ONCE = """
import os, signal, time
import torch
import gossip

peer = gossip.init()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = peer.prepare(model, optimizer)
first = os.environ["GOSSIP_INCARNATION"] == "0"
while peer.round < 300:
    if peer.id == 1 and first and peer.round == 5:
        os.kill(os.getpid(), signal.SIGSEGV)
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(0.01)
peer.close()
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_S", 0.05)


async def run(watched: Supervisor, heard: LineScreen, folder: Path) -> RunOutcome:
    """Until all have ended; those who wait go on when peer 1 is done with all its lives."""
    over = lambda view: 1 in watched.ongoing.ended or view.rows[1].state == "done"  # noqa: E731
    heard.when.append((over, lambda: (folder / "go").touch()))
    return await asyncio.wait_for(watched.run(), 60)


def lives(outcome: RunOutcome, peer: int = 1) -> list[tuple[int, str]]:
    return [(life.incarnation, life.how) for life in outcome.lives if life.peer == peer]


def summarised(folder: Path, outcome: RunOutcome) -> dict[str, Any]:
    return runs.conclude(folder, outcome)


@pytest.mark.parametrize(
    ("mode", "how"), [("dies-once", "exit code 1"), ("dies-by-segv", "killed by SIGSEGV")]
)
async def test_a_peer_that_died_is_started_again(tmp_path: Path, mode: str, how: str) -> None:
    watched, heard = supervisor(tmp_path, f"{mode}@1", restarts=2)
    outcome = await run(watched, heard, tmp_path / "run")
    assert outcome.finished == [0, 1, 2]
    assert lives(outcome) == [(0, how), (1, "exit code 0")]
    assert f"+ peer 1 is restarted in 0.05 s (restart 1 of 2): {how}" in heard.said
    if mode == "dies-by-segv":
        assert any("Fatal Python error" in line for line in heard.said), heard.said
    assert "+ starting peer 1 again, incarnation 1" in heard.said
    rows = read_lines(tmp_path / "run" / "events.jsonl")
    (told,) = [row for row in rows if row["event"] == "restarting"]
    assert (told["peer"], told["number"], told["of"], told["why"]) == (1, 1, 2, how)
    found = summarised(tmp_path / "run", outcome)
    assert found["restarts"] == [
        {"peer": 1, "round": 1, "why": how, "number": 1, "wait_s": 0.05, "incarnation": 1}
    ]
    assert found["restarts_used_up"] == []
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == found


async def test_restarts_are_used_up_and_that_is_told(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "dies-always@1", restarts=2)
    outcome = await run(watched, heard, tmp_path / "run")
    assert outcome.finished == [0, 2]
    assert lives(outcome) == [(0, "exit code 1"), (1, "exit code 1"), (2, "exit code 1")]
    assert "x peer 1 is not restarted, its 2 restarts are used up: exit code 1" in heard.said
    found = summarised(tmp_path / "run", outcome)
    assert [(row["number"], row["wait_s"]) for row in found["restarts"]] == [(1, 0.05), (2, 0.1)]
    assert found["restarts_used_up"] == [{"peer": 1, "round": 1, "why": "exit code 1"}]
    assert len(found["deaths"]) == 3


@pytest.mark.parametrize("mode", ["dies-of-crash", "dies-with-2", "dies-with-143", "dies-with-0"])
async def test_who_was_to_end_is_not_started_again(tmp_path: Path, mode: str) -> None:
    watched, heard = supervisor(tmp_path, f"{mode}@1", restarts=3)
    outcome = await run(watched, heard, tmp_path / "run")
    assert len(lives(outcome)) == 1
    found = summarised(tmp_path / "run", outcome)
    assert (found["restarts"], found["restarts_used_up"]) == ([], [])


async def test_without_restarts_a_death_is_the_end(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "dies-once@1")
    outcome = await run(watched, heard, tmp_path / "run")
    assert lives(outcome) == [(0, "exit code 1")]
    assert not any("started again" in line for line in heard.said)


async def test_a_planned_restart_takes_none_of_them(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "restart@1", restarts=1)
    outcome = await run(watched, heard, tmp_path / "run")
    assert lives(outcome) == [(0, "killed by SIGKILL"), (1, "exit code 0")]
    assert summarised(tmp_path / "run", outcome)["restarts"] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_after_ctrl_c_nobody_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(restarts, "FIRST_S", 30.0)
    watched, heard = supervisor(tmp_path, "dies-once@1", restarts=5)
    waits = lambda view: bool(view.lives.own_restarts)  # noqa: E731
    heard.when.append((waits, lambda: watched.shutdown.on_signal(number)))
    outcome = await asyncio.wait_for(watched.run(), 20)
    assert lives(outcome) == [(0, "exit code 1")]
    (told,) = summarised(tmp_path / "run", outcome)["restarts"]
    assert told["incarnation"] is None


async def test_who_dies_because_of_ctrl_c_is_not_started_again(tmp_path: Path) -> None:
    watched, heard = supervisor(tmp_path, "stopped", restarts=5)
    all_here = lambda view: all(row.loss == 1.0 for row in view.rows.values())  # noqa: E731
    heard.when.append(
        (all_here, lambda: (watched.shutdown.end("interrupt"), watched.shutdown.kill("now")))
    )
    outcome = await asyncio.wait_for(watched.run(), 20)
    assert len(outcome.lives) == 3
    assert not any("started again" in line for line in heard.said)


async def test_a_newcomer_is_started_again_and_keeps_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits, its id is nobody else's."""
    monkeypatch.setattr(restarts, "FIRST_S", 0.5)
    folder = tmp_path / "run"
    folder.mkdir()
    given = {"peers": 1, "room": 2, "run_dir": str(folder), "name": "t", "warm": False}
    config = (
        resolve({**given, "restarts": 1}).with_values("drawn", run="00000000000000aa", f=0).config
    )
    config.dump(folder / "config.json")
    seeds = folder / "seeds"
    seeds.mkdir()
    own = claim(seeds, 1, 2)
    assert own == (1, 0)
    heard, free = LineScreen(), []
    watched = Supervisor(config, Program(str(FAKE), ("dies-once",)), heard, newcomers={1: 0})
    waits = lambda view: bool(view.lives.own_restarts)  # noqa: E731
    heard.when.append((waits, lambda: free.append(claim(seeds, 1, 2))))
    outcome = await run(watched, heard, folder)
    assert free == [None]
    assert lives(outcome) == [(0, "exit code 1"), (1, "exit code 0")]


def test_a_peer_whose_trainer_crashed_trains_on_with_the_others(tmp_path: Path) -> None:
    """With room for more, as ``gossip run`` really does it: its one second included."""
    (tmp_path / "train.py").write_text(DIES_ONCE)
    words = ["-n", "2", "--room", "3", "--restarts", "1", "--aggregator", "mean"]
    done = zygote.run(
        [sys.executable, "-m", "gossip.launch.cli", "run", *words, "--json", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["finished"] == [0, 1]
    assert found["replicas_identical"] is True
    assert found["restarts"] == [
        {
            "peer": 1,
            "round": found["restarts"][0]["round"],
            "why": "killed by SIGSEGV",
            "number": 1,
            "wait_s": 1.0,
            "incarnation": 1,
        }
    ]
    assert "+ peer 1 is restarted in 1 s (restart 1 of 1): killed by SIGSEGV" in done.stderr
