"""The last lines of a run that did not come to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from event_rows import event_row

from gossip.config import resolve
from gossip.launch.local import runs
from gossip.launch.local.outcome import RunOutcome
from gossip.launch.report import RunModel
from gossip.observe import read_event
from gossip.run import checkpoints, stage_parts
from gossip.run.telemetry import write_json

FOUND = {
    "record_incomplete": {},
    "replicas_identical": True,
    "not_saved": None,
    "trained_alone": [],
    "faults_missed": [],
    "low_influence": {},
}


@pytest.mark.parametrize(("others", "missing"), [("step 7 to ck: no room", True), ("", False)])
def test_a_stopped_run_knows_if_its_last_checkpoint_exists(others: str, missing: bool) -> None:
    view = RunModel(2)
    for peer, why in ((0, "step 7 to ck: no room"), (1, others)):
        view.apply(read_event(event_row("started", peer, 1.0, incarnation=0)))
        view.apply(read_event(event_row("halted", peer, 2.0, exit_code=0, not_saved=why)))
        view.rows[peer].state = "gone"
    assert bool(view.lives.not_saved) == missing


def all_lines(
    folder: Path, status: str, code: int, monkeypatch: pytest.MonkeyPatch, lost: int = 0
) -> list[str]:
    """What ``finish`` says of a run in ``folder / "run"`` that ended like that."""
    said: list[str] = []

    class SayScreen:
        def print_line(self, text: str) -> None:
            said.append(text)

    class Over(RunOutcome):
        exit_code = code

    ended = {"status": status, "exit_code": code, "rounds": 3, "rounds_lost": lost}
    summary: dict[str, Any] = {**FOUND, **ended}
    monkeypatch.setattr(runs, "conclude", lambda *_: {**summary, "finished": int(code == 0)})
    monkeypatch.chdir(folder)
    config = resolve({"peers": 2, "name": "x", "run_dir": str(folder / "run")}).config
    runs.finish(folder / "run", Over(config, RunModel(2)), SayScreen(), False)
    return said


def last_lines(folder: Path, status: str, code: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return all_lines(folder, status, code, monkeypatch)[1:]


def test_the_end_repeats_whose_updates_counted_for_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FOUND, "low_influence", {"3": 0.31})
    (line,) = last_lines(tmp_path, "finished", 0, monkeypatch)
    assert "peer 3" in line
    assert "31%" in line


@pytest.mark.parametrize(
    ("status", "code", "why"), [("stopped", 130, []), ("failed", 1, ["  why: gossip explain run"])]
)
def test_it_says_from_where_it_goes_on_and_how_to_learn_why(
    status: str, code: int, why: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    assert last_lines(tmp_path, status, code, monkeypatch) == why
    for step in (420, 441):
        (tmp_path / "ckpt" / f"step-{step:09}").mkdir(parents=True)
    write_json(tmp_path / "run" / "checkpoints.json", {"folder": str(tmp_path / "ckpt")})
    assert last_lines(tmp_path, status, code, monkeypatch) == [
        "  to continue: the command that began the run, with --resume auto (step 441 in ckpt)",
        *why,
    ]


def test_of_a_pipeline_the_step_counts_that_every_stage_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    about = stage_parts.about(((0, 1), (2, 3)), "0" * 16)
    for stage, step in ((0, 420), (1, 420), (0, 441)):
        place = checkpoints.stage_folder(tmp_path / "ckpt", stage)
        checkpoints.write(place, step, {"model": b"x"}, about, keep=9)
    write_json(tmp_path / "run" / "checkpoints.json", {"folder": str(tmp_path / "ckpt")})
    assert last_lines(tmp_path, "stopped", 130, monkeypatch) == [
        "  to continue: the command that began the run, with --resume auto (step 420 in ckpt)"
    ]


def test_a_command_that_was_refused_is_not_said_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "ckpt" / "step-000000420").mkdir(parents=True)
    write_json(tmp_path / "run" / "checkpoints.json", {"folder": str(tmp_path / "ckpt")})
    assert last_lines(tmp_path, "refused", 2, monkeypatch) == ["  why: gossip explain run"]


def test_a_run_that_came_to_its_end_has_nothing_more_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    assert last_lines(tmp_path, "finished", 0, monkeypatch) == []
    monkeypatch.setitem(FOUND, "deaths", [{"peer": 1}])
    assert "gossip report run" in last_lines(tmp_path, "finished", 0, monkeypatch)[-1]


def test_rounds_that_were_lost_are_told_with_those_that_were_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    said = all_lines(tmp_path, "finished", 0, monkeypatch, lost=2)
    assert said[0].startswith("finished after 3 rounds (2 more were lost), ")
    assert all_lines(tmp_path, "finished", 0, monkeypatch)[0].startswith(
        "finished after 3 rounds, "
    )
