"""A script that was started alone saves the state of the step that a checkpoint is named after."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import zygote
from safetensors.torch import load_file

SCRIPT = """
import sys
import torch
import gossip

model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizers = [torch.optim.SGD([model.weight], lr=1.0)]
peer = gossip.init(**({"resume": "ck"} if "resume" in sys.argv else {}))
model, optimizers = peer.prepare(model, optimizers)
peer.save_every("ck", 3, keep=9)
while peer.step < (12 if "resume" in sys.argv else 8):
    model.weight.grad = -torch.ones(1, 1)
    optimizers[0].step()
print("ended", peer.step, model.weight.item())
"""


def run(folder: Path, *words: str) -> str:
    (folder / "train.py").write_text(SCRIPT)
    done = zygote.run(
        [sys.executable, "train.py", *words],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_its_checkpoints_have_the_steps_they_say_and_it_resumes_there(tmp_path: Path) -> None:
    assert "ended 8 8.0" in run(tmp_path)
    for step in (3, 6, 8):
        saved = load_file(tmp_path / "ck" / f"step-{step:09}" / "model.safetensors")
        assert saved["weight"].item() == step
    assert "ended 12 12.0" in run(tmp_path, "resume")
