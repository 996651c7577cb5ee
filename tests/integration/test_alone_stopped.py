"""``python train.py``, Ctrl-Z, ``fg``: a swarm of one that stood still for a second trains on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import zygote

ROUNDS = 60
SCRIPT = f"""\
import time, torch, gossip
peer = gossip.init()
model = torch.nn.Linear(4, 2)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
while peer.round < {ROUNDS}:
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(0.01)
    print("round", peer.round, flush=True)
peer.close()
"""


def test_a_script_alone_that_was_stopped_for_a_second_trains_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "train.py"]
    process = zygote.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.split() == ["round", "20"]:
                break
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(1.5)  # how long it is stopped is the point
        os.killpg(process.pid, signal.SIGCONT)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert f"round {ROUNDS}" in rest
