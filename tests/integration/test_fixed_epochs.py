"""Epochs keep their length when peers crash, return and lie: real peers with a convolution,
BatchNorm, and a learning rate that is planned for exactly ``epochs * len(loader)`` steps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command import events_of, gossip, summary_of
from effort import in_turn

SCRIPT = """
import hashlib, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import gossip

EPOCHS = 3
remainder, pause_s = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)
images, labels = torch.randn(400, 1, 8, 8), torch.arange(400) % 10
images[torch.arange(400), 0, labels % 8, labels // 8] += 6.0
peer = gossip.init()
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
)
loader = peer.shard(DataLoader(TensorDataset(images, labels), batch_size=10, shuffle=True))
length = len(loader)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=0.1, total_steps=EPOCHS * length
)
model, optimizer = peer.prepare(model, optimizer)
peer.keep(scheduler=scheduler)
bodies = []
for epoch in peer.epochs(EPOCHS, remainder=remainder):
    total = n = 0
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if scheduler.last_epoch < EPOCHS * length:
            scheduler.step()
        elif remainder == "leave":
            raise RuntimeError("one step more than planned")
        total, n = total + loss.item(), n + 1
        time.sleep(pause_s)
    assert len(loader) == length
    bodies.append([epoch, n, total / n])
digest = hashlib.blake2b(digest_size=8)
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
at_end = scheduler.last_epoch == EPOCHS * length
counts = "/".join(f"{epoch}:{n}" for epoch, n, _ in bodies)
print(f"ended /{counts} {peer.step} {at_end} {digest.hexdigest()}", flush=True)
"""
ENDED = re.compile(r"(\d)\| ended (\S+) (\d+) (\w+) (\w+)")
STEPS = 10  # an epoch: 400 samples, four peers with batches of 10


class Outcome(NamedTuple):
    """Of each peer that came to its end: steps of each epoch, the last step, whether the scheduler
    was at its end, and the digest of the parameters."""

    ended: dict[int, tuple[dict[int, int], int, bool, str]]
    summary: dict[str, Any]
    epochs: list[dict[str, Any]]


def run(
    folder: Path, remainder: str, *options: str, peers: int = 4, pause_s: float = 0.0
) -> Outcome:
    (folder / "train.py").write_text(SCRIPT)
    words = ["run", "-n", str(peers), "--run-dir", "out", "--deterministic", *options]
    done = gossip(folder, *words, "train.py", remainder, str(pause_s))
    ended = {}
    for peer, counts, step, at_end, digest in ENDED.findall(done.stdout + done.stderr):
        bodies = {int(e): int(n) for e, n in re.findall(r"(\d+):(\d+)", counts)}
        ended[int(peer)] = bodies, int(step), at_end == "True", digest
    rows = events_of(folder / "out")
    reports = {row["epoch"]: row for row in rows if row.get("event") == "epoch"}
    summary = summary_of(folder / "out")
    return Outcome(ended, summary, [reports[epoch] for epoch in sorted(reports)])


WHOLE = {0: STEPS, 1: STEPS, 2: STEPS}


@pytest.mark.timeout(200)
def test_a_peer_is_killed_and_the_schedule_ends_as_planned(tmp_path: Path) -> None:
    found = run(tmp_path, "leave", "--aggregator", "mean", "--fault", "crash:2@13")
    assert sorted(found.ended) == [0, 1, 3]
    for told in found.ended.values():
        assert told[:3] == (WHOLE, 3 * STEPS, True)
    assert len({digest for *_, digest in found.ended.values()}) == 1
    assert [row["rounds"] for row in found.epochs] == [STEPS] * 3
    left = found.epochs[-1]["left"]
    assert left > 0
    assert sum(row["once"] for row in found.epochs) + left == 3 * 400
    assert found.summary["samples"] == {"once": 3 * 400 - left, "twice": 0, "never": left}


@in_turn(0, 2)
@pytest.mark.timeout(200)
def test_the_rest_of_the_last_epoch_is_read_in_further_steps_if_asked(tmp_path: Path) -> None:
    found = run(tmp_path, "extend", "--aggregator", "mean", "--fault", "crash:2@13")
    assert sorted(found.ended) == [0, 1, 3]
    assert found.summary["samples"] == {"once": 3 * 400, "twice": 0, "never": 0}
    (last,) = {bodies[2] for bodies, *_ in found.ended.values()}
    assert last > STEPS
    assert {bodies[0] for bodies, *_ in found.ended.values()} == {STEPS}
    assert {step for _, step, *_ in found.ended.values()} == {2 * STEPS + last}


@pytest.mark.timeout(200)
def test_a_peer_that_comes_back_is_in_the_epoch_of_the_others(tmp_path: Path) -> None:
    fault = "--fault", "restart:2@5+0.1s"
    found = run(tmp_path, "leave", "--aggregator", "mean", *fault, pause_s=0.2)
    assert sorted(found.ended) == [0, 1, 2, 3]
    assert {step for _, step, *_ in found.ended.values()} == {3 * STEPS}
    assert len({digest for *_, digest in found.ended.values()}) == 1
    for peer in (0, 1, 3):
        assert found.ended[peer][:3] == (WHOLE, 3 * STEPS, True)
    bodies, _, at_end, _ = found.ended[2]
    assert at_end, "its scheduler goes on where the swarm's is"
    assert 0 < sum(bodies.values()) < 3 * STEPS
    assert list(bodies.values())[1:] == [STEPS] * (len(bodies) - 1)


@pytest.mark.timeout(200)
def test_the_script_of_a_quarantined_peer_goes_on_as_the_others_do(tmp_path: Path) -> None:
    lie = "--aggregator", "trimmed_mean", "-f", "1", "--fault", "nan:4"
    found = run(tmp_path, "leave", *lie, peers=5, pause_s=0.02)
    assert found.summary["quarantined"] == [4]
    steps = 8  # five peers with batches of 10
    assert sorted(found.ended) == [0, 1, 2, 3, 4]
    bodies, step, _, _ = found.ended.pop(4)
    # Nobody waits for it: on a busy machine a step of its may stand for several of the run.
    assert set(bodies) == {0, 1, 2}
    assert all(0 < done <= steps for done in bodies.values())
    assert step == 3 * steps
    for bodies, step, at_end, _ in found.ended.values():
        assert bodies == {0: steps, 1: steps, 2: steps}
        assert (step, at_end) == (3 * steps, True)


DAMAGED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate
import gossip

class Files(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, at):
        if at == 7:
            return None
        x = torch.randn(8, generator=torch.Generator().manual_seed(at))
        return (x if at != 23 else x * float("nan")), int(x.sum() > 0)

def collate(samples):
    return None if None in samples else default_collate(samples)

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(DataLoader(Files(), batch_size=4, collate_fn=collate))
for epoch in peer.epochs(1, remainder="extend"):
    for batch in loader:
        if batch is None:
            continue
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
print("given up", sorted(loader.given_up), model.weight.isfinite().all().item(), flush=True)
"""


@in_turn(1, 2)
@pytest.mark.timeout(200)
def test_an_extended_epoch_ends_without_the_samples_that_no_step_can_use(tmp_path: Path) -> None:
    """One sample is left out by the loop, and one makes the gradient no number."""
    (tmp_path / "train.py").write_text(DAMAGED)
    done = gossip(tmp_path, "run", "-n2", "--run-dir=out", "train.py")
    given_up = [
        set(json.loads(told)) for told in re.findall(r"given up (\[.*\]) True", done.stdout)
    ]
    assert len(given_up) == 2
    assert given_up[0] == given_up[1]
    assert {7, 23} & given_up[0] == {23}
    summary = summary_of(tmp_path / "out")
    rows = events_of(tmp_path / "out")
    (report,) = {row["epoch"]: row for row in rows if row.get("event") == "epoch"}.values()
    assert 0 < report["skipped"] <= 4
    assert report["given_up"] == len(given_up[0]) <= 4
    never = report["skipped"] + report["given_up"]
    assert (report["once"], report["left"]) == (64 - never, 0)
    assert summary["samples"] == {"once": 64 - never, "twice": 0, "never": never}
