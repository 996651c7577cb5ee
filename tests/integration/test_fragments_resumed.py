"""Real peers that exchange a fragment a round: one is killed and comes back; all are killed, and
the command is repeated."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from command import begin
from effort import effort

from gossip.run import checkpoints

SCRIPT = """
import hashlib, sys, time
from pathlib import Path
import torch
from torch import nn
import gossip

def starts(peer):
    file = Path(f"began-{peer}")
    return file.stat().st_size if file.exists() else 0

peer = gossip.init()
with Path(f"began-{peer.id}").open("a") as file:
    file.write(".")
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = peer.prepare(model, optimizer)
first = None
for step in peer.steps(int(sys.argv[1]), save="ckpt", every=8):
    first = step if first is None else first
    x = torch.randn(8, 6)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        peer.mean(loss=loss.item())  # a round that is no step
    time.sleep(float(sys.argv[2]))
    while step == 20 and sys.argv[3:] and starts("1") < 2:  # who was killed is on its way back
        time.sleep(0.02)
digest = hashlib.blake2b(digest_size=8)
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print(f"peer {peer.id} from {first} to {peer.step} digest {digest.hexdigest()}", flush=True)
"""
ENDED = re.compile(r"peer (\d) from (\d+) to (\d+) digest (\w+)")
WAIT_S = 60.0


def started(
    folder: Path, steps: int, pause_s: float, *options: str, wait: bool = False
) -> subprocess.Popen[str]:
    """``wait``: At step 20 for a second start of peer 1."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    words = ["run", "-n", "2", "--aggregator", "mean", "--local-steps", "4", "--fragments", "2"]
    words += [*options, "train.py", str(steps), str(pause_s), *["wait"] * wait]
    return begin(folder, *words, start_new_session=True)


def ended(run: subprocess.Popen[str]) -> list[tuple[str, ...]]:
    said, _ = run.communicate(timeout=2 * WAIT_S)
    assert run.returncode == 0, said
    return sorted(ENDED.findall(said))


def rounds_lacking_a_peer(folder: Path) -> list[tuple[str, int, list[int]]]:
    """Return run, round and contributors: a result that lacks an update is another one."""
    rows = [
        (path.parent.name, json.loads(line))
        for path in sorted(folder.glob("*/runs/*/commits.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return [
        (name, row["round"], row["contributors"])
        for name, row in rows
        if len(row.get("contributors", ())) == 1  # a collective operation has none
    ]


def processes(pid: int) -> list[int]:
    try:
        direct = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *[each for child in map(int, direct) for each in processes(child)]]


@pytest.mark.parametrize("options", effort([("--overlap", "1")], [(), ("--overlap", "1")]))
def test_killed_and_resumed_they_end_as_if_nothing_had_happened(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """The own steps on the fragment that was not exchanged last go on, too."""
    options = "--deterministic", *options
    undisturbed = ended(started(tmp_path / "undisturbed", 24, 0.0, *options))
    assert [words[:3] for words in undisturbed] == [("0", "0", "24"), ("1", "0", "24")]
    assert len({words[3] for words in undisturbed}) == 1
    folder = tmp_path / "killed"
    run = started(folder, 24, 0.05, *options)
    until = time.monotonic() + WAIT_S
    while not (folder / "ckpt" / checkpoints.name_of(8)).is_dir():
        assert time.monotonic() < until
        assert run.poll() is None
        time.sleep(0.02)
    for pid in processes(run.pid):
        with suppress(ProcessLookupError):  # it has gone with its launcher
            os.kill(pid, signal.SIGKILL)
    run.communicate(timeout=WAIT_S)
    again = ended(started(folder, 24, 0.0, *options, "--resume", "auto"))
    assert {words[1] for words in again} <= {"8", "16"}
    lacking = rounds_lacking_a_peer(tmp_path)
    assert [words[3] for words in again] == [words[3] for words in undisturbed], lacking


def test_who_is_killed_comes_back_to_what_all_share(tmp_path: Path) -> None:
    options = "--fault", "restart:1@4+0.5s", "--run-dir", "out", "--quorum", "available"
    done = ended(started(tmp_path, 80, 0.03, *options, wait=True))
    assert [words[2] for words in done] == ["80", "80"]
    assert len({words[3] for words in done}) == 1
    assert done[1][1] != "0", "it was killed"
    rows = map(json.loads, (tmp_path / "out" / "commits.jsonl").read_text().splitlines())
    last = [row for row in rows if "contributors" in row][-1]
    assert last["round"] == 60 - 1, "40 rounds of two steps, and 20 in which they called"
