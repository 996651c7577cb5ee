"""All who had the state of a run are killed: nobody begins it anew, with fresh weights, unless the
user wants that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zygote
from test_launch_supervisor import LineScreen

from gossip.config import resolve
from gossip.launch.local import lost_state, runs
from gossip.launch.local.program import Program
from gossip.launch.local.supervisor import Supervisor
from gossip.run import checkpoints
from gossip.run.completion import BEGUN, RunProgress, had_round
from gossip.run.telemetry import read_lines

SCRIPT = """
import time, torch, gossip
torch.manual_seed(0)
peer = gossip.init()
model = torch.nn.Linear(4, 2)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(12):
    optimizer.zero_grad()
    loss = model(torch.ones(8, 4)).square().mean()
    loss.backward()
    peer.log(loss=loss.item(), accuracy=step / 10)
    time.sleep(0.15)
    optimizer.step()
peer.close()
"""


def launcher(
    tmp_path: Path, share: dict[int, int] | None = None, **options: Any
) -> tuple[Supervisor, LineScreen]:
    folder, script = tmp_path / "run", tmp_path / "train.py"
    folder.mkdir(exist_ok=True)
    script.write_text(SCRIPT)
    given = {"run_dir": str(folder), "name": "t", "quorum": "available", "trust": False, **options}
    config = resolve(given).with_values("drawn", run="00000000000000aa", f=0).config
    config.dump(folder / "config.json")
    heard = LineScreen()
    return Supervisor(config, Program(str(script)), heard, share=share), heard


@pytest.fixture(autouse=True)
def warm() -> Iterator[None]:
    with zygote.forked_warm_processes():
        yield


@pytest.mark.parametrize(("peers", "victims"), [(1, "0"), (2, "0,1")])
async def test_nobody_is_started_again_when_all_who_had_the_state_are_gone(
    tmp_path: Path, peers: int, victims: str
) -> None:
    run, heard = launcher(tmp_path, peers=peers, faults=f"restart:{victims}@5+0.1s")
    outcome = await run.run()
    assert (outcome.exit_code, len(outcome.lives)) == (7, peers), heard.said
    (line,) = [line for line in heard.said if "the state is lost" in line]
    assert line.startswith("x the state is lost: the run was in round 5 (accuracy 0.")
    summary = runs.conclude(run.ongoing.folder, outcome)
    assert (summary["status"], summary["exit_code"]) == ("state_lost", 7)


async def test_a_peer_without_such_a_launcher_reads_that_the_run_had_begun(tmp_path: Path) -> None:
    run, _ = launcher(tmp_path, {0: 1}, peers=2, start_timeout_s=1.0)
    (run.ongoing.folder / BEGUN).touch()
    (run.ongoing.folder / "peer-1").mkdir()
    (run.ongoing.folder / "peer-1" / "events.jsonl").write_text(
        json.dumps({"event": "round", "peer": 1, "round": 258}) + "\n"
    )
    outcome = await run.run()
    rows = list(read_lines(run.ongoing.folder / "peer-0" / "events.jsonl"))
    (halted,) = [row for row in rows if row["event"] == "halted"]
    assert "the run has been in round 258, and no peer with its state came" in halted["reason"]
    assert (outcome.exit_code, [row for row in rows if row["event"] == "ready"]) == (7, [])


def test_a_disk_that_takes_no_note_is_told_once_and_stops_nobody(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    begun = RunProgress(tmp_path / "gone", lambda event, **fields: told.append(fields))
    begun.reached(0)
    assert told == []
    begun.reached(1)
    begun.reached(2)
    assert len(told) == 1
    assert "may begin anew without a notice" in told[0]["message"]
    RunProgress(None, lambda event, **fields: told.append(fields)).reached(3)
    assert len(told) == 1


def test_how_far_a_run_was_is_read_from_what_its_peers_have_written(tmp_path: Path) -> None:
    assert had_round(tmp_path) == 0
    RunProgress(tmp_path, lambda event, **fields: None).reached(1)
    assert had_round(tmp_path) == 1, "rows that were not flushed are lost with who is killed"
    (tmp_path / "peer-3").mkdir()
    rows = [
        {"event": "round", "peer": 3, "round": 41},
        {"event": "behind", "peer": 3, "round": 10**9},
        {"event": "round", "peer": 3, "round": "x"},
    ]
    (tmp_path / "peer-3" / "events.jsonl").write_text(
        "\n".join(map(json.dumps, rows)) + "\n{cut of"
    )
    assert had_round(tmp_path) == 41


def test_what_is_on_disk_is_named(tmp_path: Path) -> None:
    assert "has no part of the state" in lost_state.hints(tmp_path)[0]
    (tmp_path / "peer-2").mkdir()
    (tmp_path / "peer-2" / "state.safetensors").touch()
    assert str(tmp_path / "peer-2" / "state.safetensors") in lost_state.hints(tmp_path)[0]


def test_the_advice_is_to_resume_where_there_is_a_checkpoint(tmp_path: Path) -> None:
    saves_to = tmp_path / "ckpt"
    checkpoints.note_folder(tmp_path, saves_to)
    assert "save checkpoints" in lost_state.hints(tmp_path)[1], "nothing is saved yet"
    for step in (20, 40):
        checkpoints.write(saves_to, step, {"model.safetensors": b"numbers"}, {}, 3)
    disk, hint = lost_state.hints(tmp_path)
    assert f"the checkpoint of step 40 in {saves_to}" in disk
    assert "--resume auto" in hint
    assert "save checkpoints" not in hint
