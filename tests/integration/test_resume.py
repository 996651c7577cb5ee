"""All processes are killed, the command is repeated: the model is that of the run that nobody
disturbed. Real processes; docs/checkpoints.md."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command import begin, gossip
from effort import effort

from gossip.run import checkpoints

SCRIPT = """
import hashlib, math, sys, time
import torch
from torch import nn
from torch.nn import functional as F
import gossip

steps = 40
peer = gossip.init()
data = torch.arange(4000) * 7919 % 32
model = nn.Sequential(
    nn.Embedding(32, 8), nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Dropout(0.1),
    nn.Linear(32, 32),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min(1.0, (s + 1) / 10) * (1.0 + math.cos(math.pi * s / steps))
)
model, optimizer = peer.prepare(model, optimizer)
peer.keep(scheduler=scheduler)
first = None
for step in peer.steps(steps, save="ckpt", every=10):
    first = step if first is None else first
    at = torch.randint(len(data) - 9, (8,))
    x, y = torch.stack([data[i : i + 8] for i in at]), data[at + 8]
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    time.sleep(float(sys.argv[1]))
digest = hashlib.blake2b(digest_size=8)
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print(f"peer {peer.id} from {first} to {peer.round} digest {digest.hexdigest()}", flush=True)
"""
ENDED = re.compile(r"peer (\d) from (\d+) to (\d+) digest (\w+)")
COMMAND = ["run", "-n", "3", "--aggregator", "mean", "--quiet", "--resume", "auto"]
WAIT_S = 60.0


def started(folder: Path, pause_s: float, *options: str) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    words = (*COMMAND, *options, "train.py", str(pause_s))
    return begin(folder, *words, start_new_session=True)


def finished(folder: Path, *options: str) -> list[tuple[str, ...]]:
    """What each peer says at its end, of a run that nobody disturbs."""
    run = started(folder, 0.0, *options)
    said, _ = run.communicate(timeout=2 * WAIT_S)
    assert run.returncode == 0, said
    return sorted(ENDED.findall(said))


def children(pid: int) -> list[int]:
    try:
        direct = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [each for child in map(int, direct) for each in (child, *children(child))]


def wait_for(found: object, run: subprocess.Popen[str]) -> None:
    until = time.monotonic() + WAIT_S
    while not found():  # type: ignore[operator]
        assert time.monotonic() < until
        assert run.poll() is None, run.stdout.read() if run.stdout else ""
        time.sleep(0.02)


def kill_all(run: subprocess.Popen[str]) -> None:
    for pid in (run.pid, *children(run.pid)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    run.communicate(timeout=WAIT_S)


def refuses_another_model(folder: Path) -> None:
    """The error has names and shapes."""
    (folder / "other.py").write_text(SCRIPT.replace("nn.Embedding(32, 8)", "nn.Embedding(33, 8)"))
    run = gossip(folder, *COMMAND, "other.py", "0", code=None)
    assert run.returncode != 0
    said = run.stdout + run.stderr
    assert "0.weight is (32, 8)" in said, said
    assert "(33, 8)" in said, said


def test_all_processes_are_killed_and_the_command_repeated(tmp_path: Path) -> None:
    undisturbed = finished(tmp_path / "undisturbed", "--deterministic")
    assert [words[:3] for words in undisturbed] == [(str(p), "0", "40") for p in range(3)]
    folder = tmp_path / "killed"
    run = started(folder, 0.05, "--deterministic")
    wait_for((folder / "ckpt" / checkpoints.name_of(10)).is_dir, run)
    kill_all(run)
    again = finished(folder, "--deterministic")
    assert {words[1] for words in again} <= {"10", "20", "30"}
    assert [words[3] for words in again] == [words[3] for words in undisturbed]
    steps = [step for step, _ in checkpoints.listed(folder / "ckpt")]
    assert steps[-1] == 40, "the last step has one"
    newest, damaged = checkpoints.newest_good(folder / "ckpt")
    assert not damaged
    assert newest.manifest["everybody"] is True
    # What is finished is finished: the command does nothing more, and succeeds.
    run = started(folder, 0.0, "--deterministic")
    said, _ = run.communicate(timeout=WAIT_S)
    assert run.returncode == 0, said
    refuses_another_model(folder)


@pytest.mark.parametrize("number", effort([signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]))
def test_a_signal_saves_the_step_from_which_fewer_peers_go_on(tmp_path: Path, number: int) -> None:
    run = started(tmp_path, 0.05)
    wait_for((tmp_path / "ckpt" / checkpoints.name_of(10)).is_dir, run)
    os.kill(run.pid, number)
    run.communicate(timeout=WAIT_S)
    assert run.returncode == 128 + number
    newest, damaged = checkpoints.newest_good(tmp_path / "ckpt")
    assert not damaged
    assert newest.step > 10
    again = finished(tmp_path, "-n", "2")
    assert [words[:3] for words in again] == [(peer, str(newest.step), "40") for peer in "01"]
    assert len({words[3] for words in again}) == 1
    summary = json.loads(next(iter((tmp_path / "runs").glob("*/summary.json"))).read_text())
    assert summary["peers"], "a record of the run is there"
