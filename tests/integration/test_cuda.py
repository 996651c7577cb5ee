"""Models on a GPU: the same as on the CPU, whatever dies. Skipped where there is none."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gossip.ipc import PAGED_ELEMENTS, Arena
from gossip.training.layout import Layout

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

WIDTH = 1024
assert WIDTH * WIDTH > PAGED_ELEMENTS


def model_on(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    made = torch.nn.Sequential(
        torch.nn.Linear(8, WIDTH), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Conv2d(1, 4, 3)
    )
    made[2] = made[2].to(memory_format=torch.channels_last)
    made.append(torch.nn.Linear(5, 3).to(torch.bfloat16))
    made.append(torch.nn.Linear(6, 2))  # without a gradient
    generator = torch.Generator().manual_seed(1)
    for parameter in made[:4].parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.grad = drawn.to(parameter.dtype)
    return made.to(device)


def layout_of(model: torch.nn.Module) -> Layout:
    return Layout(model, torch.optim.SGD(model.parameters(), lr=0.1))


def slots_of(layout: Layout) -> tuple[Arena, list[torch.Tensor]]:
    arena = Arena.create(layout.elements)
    slots = [torch.from_numpy(vector) for vector in (*arena.updates, *arena.results)]
    layout.lend_slots(slots)
    return arena, slots


def gradients(model: torch.nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.cpu() for p in model.parameters()]


def test_gradients_go_out_and_back_bit_for_bit_through_pinned_memory() -> None:
    here, there = model_on("cpu"), model_on("cuda")
    ours, theirs = layout_of(here), layout_of(there)
    _, (update, *_) = slots_of(theirs)
    expected = torch.empty(ours.elements)
    assert ours.flatten_gradients(expected)
    for _ in range(3):
        update.fill_(9.0)
        assert theirs.flatten_gradients(update)
        assert torch.equal(update, expected)
    assert update.is_pinned()
    doubled = expected * 2
    doubled[-2:] = 0.0
    update.copy_(doubled)
    theirs.scatter_gradients(update)
    update.fill_(7.0)  # the node takes the slot back at once
    ours.scatter_gradients(doubled)
    for on_cpu, on_gpu in zip(gradients(here), gradients(there), strict=True):
        assert on_cpu is None or torch.equal(on_cpu, on_gpu)
        assert (on_cpu is None) == (on_gpu is None)
    theirs.forget_slots()
    assert not update.is_pinned()


def test_parameters_go_out_and_differences_are_added() -> None:
    there = model_on("cuda")
    layout = layout_of(there)
    _, (slot, delta, *_) = slots_of(layout)
    layout.flatten_parameters(slot)
    assert torch.equal(slot[: 8 * WIDTH], next(there.parameters()).detach().cpu().view(-1))
    delta.fill_(0.5)
    layout.add_to_parameters(delta, 2.0)
    delta.fill_(0.0)
    before, after = slot.clone(), slot
    layout.flatten_parameters(after)
    float32 = 8 * WIDTH + WIDTH + WIDTH * WIDTH
    assert torch.equal(after[:float32], before[:float32] + 1.0)
    layout.forget_slots()


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_a_number_that_is_not_finite_is_seen(number: float) -> None:
    there = model_on("cuda")
    layout = layout_of(there)
    gradient = there[1].weight.grad
    gradient[-1, -1] = number
    assert not layout.flatten_gradients(torch.empty(layout.elements))


def test_a_slot_that_cannot_be_pinned_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    there = model_on("cuda")
    layout = layout_of(there)
    _, (slot, *_) = slots_of(layout)
    runtime = torch.cuda.cudart()
    pinned = runtime.cudaHostRegister(slot.data_ptr(), slot.nbytes, 0)  # so it cannot be again
    assert pinned == runtime.cudaError.success
    with caplog.at_level(logging.WARNING):
        assert layout.flatten_gradients(slot)
    assert "cannot be pinned" in caplog.text
    runtime.cudaHostUnregister(slot.data_ptr())
    expected = torch.empty(layout.elements)
    layout.flatten_gradients(expected)
    assert torch.equal(slot, expected)
    torch.ones(3, device="cuda").sum().item()  # no error is left behind


SCRIPT = """
import hashlib, os, signal, sys
import torch
import gossip

peer = gossip.init()
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(16, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512), torch.nn.Linear(512, 1)
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = peer.prepare(model, optimizer)
target = torch.randn(16, 1, generator=torch.Generator().manual_seed(5)).cuda()
ended = False
while peer.round < int(sys.argv[1]):
    torch.manual_seed(1000 * peer.id + peer.round)
    inputs = torch.randn(32, 16).cuda()
    optimizer.zero_grad()
    loss = (model(inputs) - inputs @ target).square().mean()
    loss.backward()
    peer.log(loss=loss.item())
    optimizer.step()
    if peer.id == 1 and peer.round == 40 and not ended:
        ended = True
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            os.kill(int(children.read().split()[0]), signal.SIGKILL)
numbers = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
print("parameters", hashlib.sha256(numbers).hexdigest(), loss.item(), flush=True)
peer.close()
"""


def test_replicas_on_a_gpu_stay_the_same_when_a_node_and_a_peer_die(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["-n", "3", "--run-dir", "out", "--json", "--fault", "restart:2@60+0.5s"]
    done = subprocess.run(
        [sys.executable, "-m", "gossip.launch.cli", "run", *words, "train.py", "4000"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds_lost"] == 0
    ends = [
        line.split()[1:]
        for path in sorted(tmp_path.glob("out/peer-*/out.log"))
        for line in path.read_text().splitlines()
        if line.startswith("parameters ")
    ]
    assert len(ends) == 3, done.stderr
    assert len({digest for digest, _ in ends}) == 1
    assert all(float(loss) < 1.0 for _, loss in ends)
