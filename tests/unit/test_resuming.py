"""From where a run goes on, as it is looked at before any peer starts, and ``gossip checkpoints``,
which shows what there is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

# whether a rule goes with so many peers is then found out in this process
import torch  # noqa: F401
from cli_calls import Gossip, gossip_command

from gossip.config import RunConfig, resolve
from gossip.errors import ConfigError
from gossip.launch.local import runs as local_runs
from gossip.run import Task, checkpoints, meet, settled_resume
from gossip.run.checkpoints import DamagedCheckpoint


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints of steps 500 and 1000 in ckpt, to which runs/mine has saved."""
    monkeypatch.chdir(tmp_path)
    for step in (500, 1000):
        files = {"model.safetensors": b"model of %d" % step, "ledger.json": b"{}"}
        checkpoints.write(tmp_path / "ckpt", step, files, {}, 3)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.json").write_text("{}")
    checkpoints.note_folder(tmp_path / "runs" / "mine", tmp_path / "ckpt")
    (tmp_path / "train.py").write_text("")
    return tmp_path


def hurt(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


# --- before a run starts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ("mine", "ckpt"),
        ("mine@500", "ckpt@500"),
        ("./ckpt", "ckpt"),
        ("runs/mine@1000", "ckpt@1000"),
        ("ckpt/step-000000500", "ckpt@500"),
    ],
)
def test_what_is_resumed_from_means_the_same_to_peers_in_any_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch, said: str, means: str
) -> None:
    told: list[str] = []
    resolved = settled_resume(resolve({"resume": said}), told.append)

    assert resolved.config.resume == str(here / means)
    assert resolved.sources["resume"] == "flag"
    monkeypatch.chdir("/")
    again = settled_resume(resolved, told.append)
    assert again.config.resume == resolved.config.resume


@pytest.mark.parametrize("said", ["", "auto"])
def test_where_auto_looks_only_the_script_knows(said: str) -> None:
    told: list[str] = []
    asked = resolve({"resume": said})
    assert settled_resume(asked, told.append) is asked
    assert told == []


def test_a_damaged_one_is_named_and_passed_over(here: Path) -> None:
    hurt(here / "ckpt" / "step-000001000" / "ledger.json")
    told: list[str] = []
    settled_resume(resolve({"resume": "ckpt"}), told.append)
    assert len(told) == 1
    assert "step-000001000/ledger.json is damaged: expected blake2b" in told[0]


def test_a_damaged_one_that_was_asked_for_is_refused(here: Path) -> None:
    hurt(here / "ckpt" / "step-000001000" / "ledger.json")
    with pytest.raises(DamagedCheckpoint) as raised:
        settled_resume(resolve({"resume": "ckpt@1000"}), print)
    assert f"{here}/ckpt@500" in (raised.value.hint or "")


def test_without_a_whole_one_nothing_starts(here: Path) -> None:
    for step in (500, 1000):
        hurt(here / "ckpt" / checkpoints.name_of(step) / "ledger.json")
    told: list[str] = []
    with pytest.raises(ConfigError, match="is complete"):
        settled_resume(resolve({"resume": "ckpt"}), told.append)
    assert len(told) == 2


def test_later_checkpoints_than_the_one_asked_for_are_told_of() -> None:
    told: list[str] = []
    settled_resume(resolve({"resume": "ckpt@500"}), told.append)
    settled_resume(resolve({"resume": "ckpt@1000"}), told.append)
    assert len(told) == 1
    assert "keeps later checkpoints (1000)" in told[0]


def test_a_launcher_looks_before_starting(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hurt(here / "ckpt" / "step-000001000" / "ledger.json")
    asked = resolve({"resume": "ckpt", "peers": 2, "aggregator": "mean", "f": 0})
    settled = local_runs.settle(asked, "train")
    assert settled.config.resume == str(here / "ckpt")
    assert capsys.readouterr().err.startswith(
        f"! {here}/ckpt/step-000001000/ledger.json is damaged"
    )


def test_tasks_agree_wherever_each_was_started(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "sub").mkdir()
    options = {"aggregator": "mean", "f": 0, "run_dir": str(here / "run")}
    found = []
    for peer, (cwd, said) in enumerate([(here, "ckpt@500"), (here / "sub", "../ckpt@500")]):
        monkeypatch.chdir(cwd)
        task = Task("--task", "run", peer, 2, one_host=True, comes_back=True)
        found.append(meet(task, resolve({**options, "resume": said}), ["train.py"]).config.resume)
    assert found == [f"{here}/ckpt@500"] * 2


def test_the_settings_survive_their_files(here: Path) -> None:
    resolved = settled_resume(resolve({"resume": "mine@500", "deterministic": True}), print)
    resolved.config.dump(here / "config.json")
    assert RunConfig.load(here / "config.json") == resolved.config
    (here / "again.toml").write_text(resolved.to_toml())
    again = resolve({}, here / "again.toml").config
    assert (again.resume, again.deterministic) == (f"{here}/ckpt@500", True)


def test_deterministic_means_equal_slices() -> None:
    resolved = resolve({"deterministic": True})
    assert resolved.config.slices == "equal"
    assert resolved.sources["slices"] == "deterministic"
    assert resolve({}).config.slices == "speed"
    equal = resolve({"deterministic": True, "slices": "equal"})
    assert equal.sources["slices"] == "flag"
    config = RunConfig(deterministic=True, run="0" * 16, f=0)
    assert config.settings().slices == "equal"


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def gossip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gossip:
    return gossip_command(monkeypatch, capsys)


@pytest.mark.parametrize("where", ["mine", "ckpt", "runs/mine"])
def test_checkpoints_are_listed(gossip: Gossip, where: str) -> None:
    code, out, err = gossip("checkpoints", where)
    assert (code, err) == (0, "")
    head, *rows = [line.split() for line in out.splitlines()]
    assert head == ["step", "time", "size", "state"]
    assert [(row[0], row[-1]) for row in rows] == [("500", "complete"), ("1000", "complete")]
    assert gossip("checkpoints", f"{where}@500")[1].splitlines()[1].split()[0] == "500"


def test_they_are_listed_for_scripts(gossip: Gossip, here: Path) -> None:
    code, out, _ = gossip("checkpoints", "--json", "ckpt")
    said = json.loads(out)
    assert code == 0
    assert said["folder"] == str(here / "ckpt")
    first, second = said["checkpoints"]
    assert first["path"] == str(here / "ckpt" / "step-000000500")
    assert (first["step"], first["bytes"], first["state"]) == (500, 14, "complete")
    assert first["wall_time_s"] <= second["wall_time_s"]


def test_what_is_missing_is_seen_at_once_and_flips_by_verify(gossip: Gossip, here: Path) -> None:
    assert gossip("checkpoints", "ckpt", "--verify")[0] == 0
    hurt(here / "ckpt" / "step-000000500" / "model.safetensors")
    (here / "ckpt" / "step-000001000" / "ledger.json").unlink()

    code, out, _ = gossip("checkpoints", "ckpt")
    assert code == 0
    assert "step-000001000/ledger.json is damaged: expected 2 bytes, found no such file" in out
    assert "complete" in out

    code, out, _ = gossip("checkpoints", "ckpt", "--verify")
    assert code == 1
    assert "step-000000500/model.safetensors is damaged: expected blake2b" in out

    code, out, _ = gossip("checkpoints", "ckpt", "--verify", "--json")
    assert code == 1
    states = [(row["state"], len(row["problems"])) for row in json.loads(out)["checkpoints"]]
    assert states == [("damaged", 1), ("damaged", 1)]


def test_names_that_could_take_over_a_terminal_are_spelt_out(gossip: Gossip, here: Path) -> None:
    (here / "ckpt").rename(here / "ck\x1b[2Jpt")
    (here / "ck\x1b[2Jpt" / "step-000001000" / "ledger.json").unlink()
    assert "\x1b" not in gossip("checkpoints", "ck\x1b[2Jpt")[1]


def test_a_model_is_copied_out(gossip: Gossip, here: Path) -> None:
    (here / "out").mkdir()
    assert gossip("checkpoints", "export", "ckpt", "new.safetensors")[0] == 0
    assert gossip("checkpoints", "export", "mine@500", "out")[0] == 0
    assert (here / "new.safetensors").read_bytes() == b"model of 1000"
    assert (here / "out" / "model.safetensors").read_bytes() == b"model of 500"


def test_a_damaged_model_is_not_copied_out(gossip: Gossip, here: Path) -> None:
    hurt(here / "ckpt" / "step-000001000" / "model.safetensors")
    (here / "kept.safetensors").write_bytes(b"before")

    code, _, err = gossip("checkpoints", "export", "ckpt@1000", "kept.safetensors")
    assert code == 2
    assert "hint: the newest undamaged one is of step 500" in err
    assert (here / "kept.safetensors").read_bytes() == b"before"

    code, out, err = gossip("checkpoints", "export", "ckpt", "kept.safetensors")
    assert (code, out) == (0, "kept.safetensors: the model of step 500\n")
    assert err.startswith("! ")
    assert (here / "kept.safetensors").read_bytes() == b"model of 500"

    hurt(here / "ckpt" / "step-000000500" / "model.safetensors")
    code, _, err = gossip("checkpoints", "export", "ckpt", "kept.safetensors")
    assert code == 2
    assert "is complete" in err


def test_a_copy_that_turns_out_to_be_damaged_leaves_nothing(here: Path) -> None:
    found = checkpoints.open_at(here / "ckpt" / "step-000001000")
    hurt(here / "ckpt" / "step-000001000" / "model.safetensors")
    (here / "out").mkdir()
    with pytest.raises(DamagedCheckpoint):
        found.copy("model.safetensors", here / "out" / "new")
    assert list((here / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("none",), "there is no run or folder of checkpoints 'none'"),
        (("ckpt@7",), "there is no checkpoint ckpt@7"),
        (("export", "ckpt@7", "x"), "there is no checkpoint of step 7"),
        (("export", "ckpt", "no/where"), "cannot write no/where"),
    ],
)
def test_what_cannot_be_shown_is_told(gossip: Gossip, words: tuple[str, ...], says: str) -> None:
    code, out, err = gossip("checkpoints", *words)
    assert (code, out) == (2, "")
    assert says in err


SCHEDULERS = {
    "slurm": ("-N", "2"),
    "condor": ("-n", "2"),
    "kubernetes": ("-n", "2", "--image", "x"),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_what_tasks_resume_from_is_looked_at_before_they_wait_in_a_queue(
    gossip: Gossip, here: Path, scheduler: str
) -> None:
    words = (scheduler, *SCHEDULERS[scheduler], "--", "--aggregator", "mean")
    code, _, err = gossip(*words, "--resume", "none", "train.py")
    assert code == 2
    says = "there is no run" if scheduler == "slurm" else "is a relative path"
    assert says in err
    for resume in ("auto", str(here / "ckpt")):
        code, _, err = gossip(*words, "--resume", resume, "train.py")
        assert code == 0, err
        shutil.rmtree(here / "condor-train", ignore_errors=True)
