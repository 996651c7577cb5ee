"""Real peers whose loaders have workers, and streams."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from command import begin, events_of, gossip, summary_of
from effort import effort
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from gossip.training.fetching import Fetcher
from gossip.training.streaming import _Every

SCRIPT = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
import gossip

class Numbers(Dataset):
    def __len__(self):
        return 203

    def __getitem__(self, index):
        return torch.full((4,), float(index)), index

peer = gossip.init()
model = torch.nn.Linear(4, 1)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-6))
persistent = sys.argv[1] == "persist"
loader = peer.shard(Numbers(), batch_size=8, num_workers=2, persistent_workers=persistent)
seen = []
for epoch in peer.epochs(4):
    for x, index in loader:
        assert torch.equal(x[:, 0].long(), index)
        seen += [epoch * 1000 + at for at in index.tolist()]
        in_round_6 = peer.id == 1 and peer.round == 6
        if in_round_6 and len(sys.argv) > 2 and os.environ["GOSSIP_INCARNATION"] == "0":
            print("pid", os.getpid(), flush=True)
            time.sleep(100)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
print("seen", seen, flush=True)
print("report", loader.report, flush=True)
"""


RUN = ("run", "-n", "3", "--aggregator", "mean", "--run-dir", "out", "train.py")


def seen_in(output: str) -> list[int]:
    return sorted(
        at
        for line in output.splitlines()
        if "| seen " in line
        for at in json.loads(line.split("| seen ")[1])
    )


def test_peers_with_workers_read_every_sample_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = gossip(tmp_path, *RUN, "persist")
    # On a busy machine a batch may come too late: then it is read again, by whoever it is given to,
    # and counts once.
    assert sorted(set(seen_in(done.stdout))) == [
        epoch * 1000 + at for epoch in range(4) for at in range(203)
    ]
    if not any(row.get("event") == "late" for row in events_of(tmp_path / "out")):
        assert len(seen_in(done.stdout)) == 4 * 203
    summary = summary_of(tmp_path / "out")
    assert [
        (each["epoch"], each["once"], each["twice"], each["never"]) for each in summary["epochs"]
    ] == [(epoch, 203, 0, 0) for epoch in range(4)]
    assert done.stdout.count("| report EpochReport(epoch=3, once=203, twice=0, left=0") == 3


def test_a_trainer_that_is_killed_is_missed_at_once_though_its_workers_were_forked_with_its_sockets(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = begin(tmp_path, *RUN, "new", "hang")
    assert run.stdout is not None
    lines: list[str] = []
    try:
        for line in run.stdout:
            lines.append(line)
            if line.startswith("1| pid "):
                killed_at = time.monotonic()
                os.kill(int(line.split()[2]), signal.SIGKILL)
    finally:
        run.kill()
        run.wait()
    output = "".join(lines)
    summary = summary_of(tmp_path / "out")
    assert summary["finished"] == [0, 2], output
    noticed = [
        row["t"] - killed_at
        for row in events_of(tmp_path / "out")
        if row.get("event") in ("skip", "dead") and row.get("subject") == 1
    ]
    assert min(at for at in noticed if at > 0) < 1.0
    left = summary["samples"]["never"]  # two peers do not read what is planned for three
    assert 0 < left < 4 * 203 / 3
    assert summary["samples"] == {"once": 4 * 203 - left, "twice": 0, "never": left}
    # What the killed peer had used before is all that the survivors have not. What is left of an
    # epoch is read in the next, and so may have the index of a sample of that one.
    assert len(seen_in(output)) >= 4 * 203 - left - 6 * 8


class Stream(IterableDataset):
    def __init__(self, stop: int) -> None:
        self.stop = stop

    def __iter__(self) -> Any:
        return iter(range(self.stop))


@pytest.mark.timeout(120)
def test_workers_may_be_spawned() -> None:
    data = TensorDataset(torch.arange(30))
    loader = DataLoader(
        data, batch_size=3, num_workers=1, multiprocessing_context="spawn", persistent_workers=True
    )
    fetcher = Fetcher(loader, lambda key: torch.arange(*key[1][0]), 1)
    for at in range(3):
        (batch,) = fetcher.fetch((0, ((at, at + 3),)), [(0, ((at + 1, at + 4),))])
        assert batch.tolist() == [at, at + 1, at + 2]
    fetcher.close()
    part = DataLoader(
        _Every(Stream(9), 1, 4),
        batch_size=2,
        num_workers=1,
        multiprocessing_context=effort("fork", "spawn"),
    )
    assert [batch.tolist() for batch in part] == [[1, 5]]
