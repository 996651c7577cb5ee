"""``gossip run --track``: a real run is handed on as it goes, and a tracker that blocks, fails or
is killed changes nothing of it."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zygote
from effort import effort
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_launch_run import SCRIPT
from test_other_trackers import needs

from gossip.launch.report.launchers import command_of
from gossip.run.telemetry import read_lines

ROUNDS = 20
TELLS_WHAT_IT_CALLS = """
import sys
from pathlib import Path

its = ("tensorboard", "gossip.launch.track.exporting", "gossip.launch.track.to_")
Path(f"calls-{peer.id}").write_text(" ".join(name for name in sys.modules if name.startswith(its)))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def command(rounds: int, tracker: str = "tensorboard") -> list[str]:
    words = [sys.executable, "-m", "gossip.launch.cli", "run", "-n", "2", "--aggregator", "mean"]
    return [*words, "--run-dir", "out", "--track", tracker, "train.py", str(rounds)]


def test_tensorboard_has_the_values_of_the_run_when_it_ends(folder: Path) -> None:
    with (folder / "train.py").open("a") as script:
        script.write(TELLS_WHAT_IT_CALLS)
    done = zygote.run(command(ROUNDS), cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "values were exported" in done.stdout
    read = EventAccumulator(str(folder / "out" / "tensorboard"), {"scalars": 0, "tensors": 0})
    read.Reload()
    for peer in (0, 1):
        rows = read_lines(folder / "out" / f"peer-{peer}" / "metrics.jsonl")
        logged = [(row["round"], row["loss"]) for row in rows]
        shown = [(each.step, each.value) for each in read.Scalars(f"loss/peer-{peer}")]
        assert [step for step, _ in shown] == [step for step, _ in logged]
        assert [value for _, value in shown] == pytest.approx([loss for _, loss in logged])
    assert len(read.Scalars("swarm/loss")) == ROUNDS
    # No step spends time in a tracker that its process does not know.
    assert [(folder / f"calls-{peer}").read_text() for peer in (0, 1)] == ["", ""]


def stop(tracker: int) -> None:
    """It blocks for longer than anybody waits for it."""
    os.kill(tracker, signal.SIGSTOP)


def kill(tracker: int) -> None:
    os.kill(tracker, signal.SIGKILL)


def leave_no_room(tracker: int) -> None:
    """As on a full disk: nothing more can be written to any of its files."""
    resource.prlimit(tracker, resource.RLIMIT_FSIZE, (1, 1))


OTHERS = [pytest.param(name, marks=needs(name)) for name in ("mlflow", "wandb")]


@pytest.mark.parametrize("tracker", effort(["tensorboard"], ["tensorboard", *OTHERS]))
@pytest.mark.parametrize(
    "hurt", effort([leave_no_room], [stop, leave_no_room, kill]), ids=lambda hurt: hurt.__name__
)
def test_a_tracker_that_blocks_or_fails_changes_nothing_of_the_run(
    folder: Path, hurt: Callable[[int], None], tracker: str
) -> None:
    process = zygote.Popen(
        command(300, tracker),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    exporter = _exporter_of(process)
    hurt(exporter)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, out
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert (summary["status"], summary["rounds"], summary["rounds_lost"]) == ("finished", 300, 0)
    # Without room MLflow tries again, for longer than anybody waits for it.
    tries_again = tracker == "mlflow" and hurt is leave_no_room
    why = ["had not stored all values"] if hurt is stop or tries_again else []
    why += [] if hurt is stop else ["has failed"]
    assert any(f"! {tracker} {each}" in out for each in why)
    assert f"gossip track out --to {tracker}" in out
    with pytest.raises(ProcessLookupError):
        os.kill(exporter, 0)


def _exporter_of(launcher: subprocess.Popen[str]) -> int:
    until = time.monotonic() + 100
    while time.monotonic() < until:
        assert launcher.poll() is None
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        for child in map(int, children):
            if "gossip.launch.track" in command_of(child):
                return child
        time.sleep(0.05)  # between two looks, not instead of one
    raise AssertionError("the launcher has started no tracker")
