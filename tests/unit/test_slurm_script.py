"""``gossip slurm``: what it writes, what it refuses, and what a job's end is worth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# whether a rule goes with so many peers is then found out in this process
import torch  # noqa: F401
from cli_calls import gossip_command

from gossip.config import resolve
from gossip.errors import ConfigError
from gossip.launch.cli import commands as cli
from gossip.launch.schedulers import slurm_command as slurm, task_runs
from gossip.run.scheduler_env import Task, meet, slurm_task
from gossip.run.telemetry import JsonLines

STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_SRUN_COMM_HOST": "10.0.0.5",
    "SLURM_LAUNCH_NODE_IPADDR": "192.168.1.1",
}
GOLDEN = """\
#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=2:00:00
#SBATCH --signal=TERM@90
#SBATCH --open-mode=append
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --mem=8G
# --no-kill, here and for srun: a lost node ends its own tasks, but not the job.
# --signal: every task receives SIGTERM before the time limit, and its peer leaves after its round.
# --requeue: a requeued job is another run, in another folder. With --resume auto it continues from
# the newest checkpoint; without a checkpoint there is no state to continue from.

cd "$SLURM_SUBMIT_DIR" || exit 2
export OMP_NUM_THREADS=1
run="runs/slurm-$SLURM_JOB_ID"
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || run="$run-r$SLURM_RESTART_COUNT"

# --kill-on-bad-exit=0, --wait=0: the end of a task does not end the others.
srun --no-kill --kill-on-bad-exit=0 --wait=0 --cpus-per-task=1 \\
  PYTHON -P -m gossip.launch.cli run --run-dir "$run" --aggregator krum train.py --lr 0.1 'a b'

# The exit code of srun is the worst of its tasks. The job succeeds if peers have finished.
PYTHON -P -m gossip.launch.schedulers.task_runs "$run" $?
"""
WORDS = ["--aggregator", "krum", "train.py", "--lr", "0.1", "a b"]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")


@pytest.fixture
def gossip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    return gossip_command(monkeypatch, capsys, "slurm")


def fake(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_task_of_srun_is_a_peer_and_a_batch_script_or_a_shell_is_none() -> None:
    task = slurm_task(STEP)
    assert (task.run, task.peer, task.peers, task.one_host) == ("slurm-12.0", 3, 8, False)
    assert task.towards == "10.0.0.5", "the submit host may be on another network"
    again = slurm_task({**STEP, "SLURM_RESTART_COUNT": "2", "SLURM_STEP_NUM_NODES": "1"})
    assert (again.run, again.one_host) == ("slurm-12.0-r2", True)
    assert slurm_task({key: value for key, value in STEP.items() if "STEP" not in key}) is None, (
        "a batch script"
    )
    assert slurm_task({**STEP, "SLURM_STEP_NUM_TASKS": "1"}) is None, "srun --pty bash"


def test_the_script_is_this(gossip: Any) -> None:
    code, out, err = gossip(
        "-N", "4", "--per-node", "2", "--time", "2:00:00", "--sbatch=--mem=8G", "--", *WORDS
    )
    assert (code, err) == (0, "")
    assert out.replace(sys.executable, "PYTHON") == GOLDEN
    assert subprocess.run(["bash", "-n"], input=out, text=True, check=False).returncode == 0


def test_every_task_runs_a_module_that_is_named_as_for_python(gossip: Any, tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "digits.py").write_text("pass\n")
    code, out, err = gossip("-N", "2", "--", "-m", "lab.digits", "--lr", "0.1")
    assert (code, err) == (0, "")
    assert "#SBATCH --job-name=digits\n" in out
    assert 'run --run-dir "$run" -m lab.digits --lr 0.1\n' in out


def test_what_is_not_asked_for_is_left_out(gossip: Any) -> None:
    code, out, _ = gossip("-N", "1", "--per-node", "8", "--gpus", "1", "--leave", "0", "train.py")
    assert code == 0
    assert "signal=" not in out
    assert "#SBATCH --gpus-per-task=1" in out
    assert "srun --no-kill --kill-on-bad-exit=0 --wait=0 --cpus-per-task=1 --gpus-per-task=1" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-N", "1", "tain.py"], "there is no script tain.py"),
        (["-N", "1", "--", "-m", "lab.tain"], "there is no module lab.tain"),
        (["-N", "1", "--", "--aggregator", "kurm", "train.py"], "Did you mean 'krum'?"),
        (["-N", "2", "--", "-f", "1", "--aggregator", "krum", "train.py"], "krum needs 5 updates"),
        (
            ["-N", "2", "--per-node", "2", "--", "--min-peers", "2", "train.py"],
            "min_peers = 2: at least 3 peers are needed",
        ),
        (["-N", "1", "--", "--agregator", "krum", "train.py"], "--agregator"),
    ],
)
def test_what_every_task_would_find_is_found_before(
    gossip: Any, words: list[str], said: str
) -> None:
    code, out, err = gossip(*words)
    assert code != 0
    assert out == ""
    assert said in err


def test_without_sbatch_or_when_it_refuses_that_is_said(
    gossip: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm.shutil, "which", lambda name: None)
    code, _, err = gossip("-N", "1", "--submit", "train.py")
    assert (code, "there is no sbatch on this machine" in err) == (2, True)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    fake(
        tmp_path,
        "sbatch",
        "cat > sent; echo 'sbatch: error: invalid partition specified: x' >&2; exit 1",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "argv", ["gossip", "slurm", "-N", "1", "--submit", "train.py"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert (tmp_path / "sent").read_text().startswith("#!/bin/bash\n#SBATCH --job-name=train\n")
    with pytest.raises(
        ConfigError, match="sbatch rejects the job: sbatch: error: invalid partition specified: x"
    ):
        slurm.send("x")
    fake(tmp_path, "sbatch", "cat > sent; echo '77;cluster'")
    slurm.send("x")


def test_a_task_by_number_meets_the_others_in_a_folder_that_is_named(tmp_path: Path) -> None:
    assert task_runs.find_task(None, resolve({})) is None
    task = task_runs.find_task("3/8", resolve({"run_dir": "shared"}))
    assert (task.peer, task.peers, task.run, task.comes_back) == (3, 8, "shared", True)
    for wrong in ("8/8", "3", "x/y", "-1/2"):
        with pytest.raises(ConfigError, match="number of the task"):
            task_runs.find_task(wrong, resolve({"run_dir": "shared"}))
    with pytest.raises(ConfigError, match="needs a folder"):
        task_runs.find_task("3/8", resolve({}))


def tell(folder: Path, peer: int, boot: float, *rows: tuple[float, str, dict[str, Any]]) -> None:
    file = JsonLines(folder / f"events-{peer}.jsonl", "events")
    for wall, event, fields in rows:
        file.write({"t": wall - boot, "wall": wall, "peer": peer, "event": event, **fields})
    file.close()


def test_the_job_has_gone_well_when_peers_came_to_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = meet(
        Task("srun", "x", 0, 3, one_host=True), resolve({"aggregator": "mean"}), ["x"]
    ).folder
    began = ("spawned", {"pid": 1, "incarnation": 0})
    tell(
        folder,
        0,
        1000.0,
        (2000.0, *began),
        (2004.0, "round", {"round": 5, "alive": 3}),
        (2009.0, "exited", {"code": 0}),
    )
    # its node died
    tell(folder, 1, 500.0, (2001.0, *began), (2003.0, "round", {"round": 4, "alive": 3}))
    tell(folder, 2, 700.0, (2001.0, *began), (2006.0, "exited", {"code": 1, "how": "exit code 1"}))
    assert task_runs.verdict(folder, 1) == 0
    assert "finished: 0; not: 1, 2" in capsys.readouterr().out
    assert json.loads((folder / "summary.json").read_text())["wall_s"] == 9.0, (
        "the machines' clocks were not put together"
    )


def test_the_job_has_not_when_nobody_did(tmp_path: Path) -> None:
    folder = meet(
        Task("srun", "x", 0, 2, one_host=True), resolve({"aggregator": "mean"}), ["x"]
    ).folder
    tell(
        folder,
        0,
        0.0,
        (2000.0, "spawned", {"pid": 1}),
        (2009.0, "exited", {"code": 143, "how": "exit code 143"}),
    )
    assert task_runs.verdict(folder, 143) == 143
    assert task_runs.verdict(folder, 0) == 143, "who asks need not know how it went"
    tell(
        folder,
        1,
        0.0,
        (2000.0, "spawned", {"pid": 2}),
        (2008.0, "exited", {"code": 2, "how": "exit code 2"}),
    )
    assert task_runs.verdict(folder, 0) == 2, "the code that says most"
    assert json.loads((folder / "summary.json").read_text())["status"] == "refused"
    lost = meet(
        Task("srun", "y", 0, 2, one_host=True), resolve({"aggregator": "mean"}), ["y"]
    ).folder
    assert task_runs.verdict(lost, 0) == 5, "its machine was lost before anything was written"
    assert task_runs.verdict(tmp_path / "nothing", 0) == 2
    assert task_runs.verdict(tmp_path / "nothing", 9) == 9
