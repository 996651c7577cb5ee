"""``gossip rm``: what a run has left goes, and nothing else does."""

import json
import os
import re
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest
from recorded_run import RecordedRun

from gossip.errors import ConfigError
from gossip.launch import hold
from gossip.launch.cli import commands as cli
from gossip.launch.report import launchers, removing, run_state
from gossip.run import checkpoints

Gossip = Callable[..., int]


@pytest.fixture
def gossip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gossip:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["gossip", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    return call


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """One that is over, with a checkpoint outside of its folder."""
    folder = RecordedRun(tmp_path / "runs" / "one").whole().folder
    (folder / "peer-0" / "events.jsonl.000001.gz").write_bytes(b"x" * 1000)
    saves(folder, tmp_path / "ckpt")
    checkpoints.write(tmp_path / "ckpt", 10, {"model.bin": b"weights"}, {}, keep=3)
    return folder


def saves(run: Path, folder: Path) -> None:
    checkpoints.note_folder(run, folder)


def test_a_run_goes_and_its_checkpoints_stay(
    run: Path, gossip: Gossip, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gossip("rm", "one", "--yes") == 0
    assert not run.exists()
    assert [step for step, _ in checkpoints.listed(run.parents[1] / "ckpt")] == [10]
    said = capsys.readouterr().out
    assert "stays: 1 checkpoints in" in said
    assert "removed" in said


def test_checkpoints_go_when_they_are_to(run: Path, gossip: Gossip) -> None:
    assert gossip("rm", "one", "--yes", "--checkpoints") == 0
    assert not run.exists()
    assert list((run.parents[1] / "ckpt").glob("step-*")) == []


def test_checkpoints_that_another_run_has_too_stay(run: Path, gossip: Gossip) -> None:
    other = RecordedRun(run.parent / "two").folder
    saves(other, run.parents[1] / "ckpt")
    assert gossip("rm", "one", "--yes", "--checkpoints") == ConfigError.exit_code
    assert (run / "config.json").exists()
    assert checkpoints.listed(run.parents[1] / "ckpt")


def test_nothing_goes_unless_somebody_says_yes(run: Path, gossip: Gossip) -> None:
    assert gossip("rm", "one") == ConfigError.exit_code  # stdin is no terminal here
    assert (run / "events.jsonl").exists()


@pytest.mark.parametrize(("answer", "stays"), [(False, True), (True, False)])
def test_on_a_terminal_it_asks(
    run: Path, gossip: Gossip, monkeypatch: pytest.MonkeyPatch, answer: bool, stays: bool
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question: answer)
    assert gossip("rm", "one") == 0
    assert run.exists() == stays


def test_a_run_that_trains_stays(run: Path, gossip: Gossip) -> None:
    with launchers.present(run, [0]):
        assert gossip("rm", "one", "--yes") == ConfigError.exit_code
    assert (run / "events.jsonl").exists()
    assert gossip("rm", "one", "--yes") == 0


def test_a_run_of_another_machine_that_has_not_ended_stays(run: Path, gossip: Gossip) -> None:
    with launchers.present(run, [0]):
        (path,) = (run / launchers.FOLDER).iterdir()
        told = path.read_text()
    path.write_text(json.dumps({**json.loads(told), "machine": "another/1"}))
    assert gossip("rm", "one", "--yes") == ConfigError.exit_code
    assert (run / "events.jsonl").exists()


def test_a_run_that_is_resumed_while_somebody_thinks_it_over_stays(run: Path) -> None:
    removal = removing.plan(run_state.RunState(run), with_checkpoints=False)
    held = hold.mark_leader(run)
    try:
        with launchers.present(run, [0]), pytest.raises(ConfigError, match="trains"):
            removing.carry_out(removal)
    finally:
        os.close(held)
    assert (run / "events.jsonl").exists()


def test_what_is_not_gossips_stays_and_so_does_a_peers_last_state(
    run: Path, gossip: Gossip, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "notes.txt").write_text("mine")
    (run / "peer-2" / "last_state").mkdir()
    (run / "peer-2" / "last_state" / "model.safetensors").write_bytes(b"x")
    assert gossip("rm", "one", "--yes") == 0
    left = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    assert left == ["notes.txt", "peer-2/last_state/model.safetensors"]
    assert "stays: notes.txt: not gossip's" in capsys.readouterr().out


def test_a_link_is_removed_and_not_what_it_leads_to(run: Path, gossip: Gossip) -> None:
    elsewhere = run.parents[1] / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("x")
    (run / "peer-9").symlink_to(elsewhere)
    assert gossip("rm", "one", "--yes") == 0
    assert (elsewhere / "mine").exists()


def test_the_size_that_is_listed_is_that_of_all_files(
    run: Path, gossip: Gossip, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gossip("ls", "--json") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    files = [path for path in run.rglob("*") if path.is_file()]
    assert listed["bytes"] == sum(path.stat().st_size for path in files)


def test_every_file_that_the_docs_list_is_one_of_ours() -> None:
    text = (Path(__file__).parents[2] / "docs" / "records.md").read_text("utf-8")
    table = text.partition("| file |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    names = [name.rstrip("/") for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert len(names) >= 17
    lacking = [name for name in names if not any(fnmatch(name, ours) for ours in removing.OURS)]
    assert not lacking
