"""Replicas that a script, or a flipped bit, makes different, in real runs."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from command import gossip, summary_of
from effort import effort

SCRIPT = """
import os, time
import torch
from torch import nn
import gossip

how = os.environ["HOW"]
torch.manual_seed(0)
words = nn.Embedding(20, 4, max_norm=1.0 if how == "max_norm" else None)
model = nn.Sequential(words, nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
_, who, at, tensor, number, bit = [*how.split(), *[""] * 6][:6]
for step in peer.steps(60):
    time.sleep(0.004)
    x = torch.randint(0, 20, (8, 3))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), (x.sum(1) > 28).long()).backward()
    optimizer.step()
    if who and peer.id == int(who) and step == int(at):
        flat = dict(model.named_parameters())[tensor].data.view(-1).view(torch.int32)
        flat[int(number)] ^= 1 << int(bit)
"""


def run(folder: Path, how: str, *options: str) -> tuple[int, dict[str, Any]]:
    (folder / "train.py").write_text(SCRIPT)
    words = ("run", "-n", "3", "--name", "r", *options, "train.py")
    done = gossip(folder, *words, code=None, env={**os.environ, "HOW": how})
    return done.returncode, summary_of(folder / "runs/r")


@pytest.mark.parametrize("seed", range(effort(1, 50)))
def test_a_flipped_bit_is_healed_and_its_tensor_is_named(seed: int, tmp_path: Path) -> None:
    draw = random.Random(f"bit/{seed}")
    tensor = draw.choice(["0.weight", "2.weight", "2.bias", "4.weight"])
    # of an exponent, a sign or a high digit: what no later step rounds away
    bit = draw.choice((20, 25, 31))
    where = draw.randrange(3), draw.randrange(2, 30), tensor, draw.randrange(8), bit
    code, summary = run(tmp_path, " ".join(map(str, ("flip", *where))))
    found = summary["divergences"]
    assert [(each["peer"], each["tensors"][0]) for each in found[:1]] == [(where[0], tensor)], where
    assert found[0]["replaced"]
    assert (code, summary["replicas_identical"]) == (0, True)


def test_a_script_that_makes_replicas_different_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    code, summary = run(tmp_path, "max_norm")
    assert (code, summary["status"]) == (9, "diverged")
    assert {each["tensors"][0] for each in summary["divergences"]} == {"0.weight"}


def test_it_goes_on_where_it_is_to_warn(tmp_path: Path) -> None:
    code, summary = run(tmp_path, "max_norm", "--on-divergence", "warn")
    assert (code, summary["rounds"], summary["replicas_identical"]) == (0, 60, False)
    assert not any(each["replaced"] for each in summary["divergences"])
