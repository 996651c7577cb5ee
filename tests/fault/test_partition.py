"""A partition of real processes, under each policy: one lineage afterwards, equal replicas, and no
sample counted twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import events_of, gossip
from effort import only_long

SCRIPT = """
import time
import torch
import gossip

peer = gossip.init()
inputs = torch.randn(1000, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(inputs, torch.zeros(1000, 2))
model = torch.nn.Linear(4, 2)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = peer.shard(torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
while peer.round < 150:
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        time.sleep(0.05)
        optimizer.step()
        if peer.round >= 150:
            break
peer.close()
"""
FAULT = "partition:0-2|3,4@1s+4s"
POLICIES = {
    "pause": (),
    "continue": ("--on-minority", "continue"),
    "available": ("--quorum", "available"),
}


def run(folder: Path, *words: str) -> dict[str, Any]:
    (folder / "train.py").write_text(SCRIPT)
    options = ("-n", "5", "--aggregator", "mean", "--run-dir", "out", "--json", *words)
    summary: dict[str, Any] = json.loads(gossip(folder, "run", *options, "train.py").stdout)
    return summary


@only_long
@pytest.mark.parametrize("policy", list(POLICIES))
def test_after_a_partition_there_is_one_lineage_and_nothing_is_counted_twice(
    policy: str, tmp_path: Path
) -> None:
    summary = run(tmp_path, "--fault", FAULT, *POLICIES[policy])
    assert (summary["rounds"], summary["rounds_lost"], summary["finished"]) == (
        150,
        0,
        [0, 1, 2, 3, 4],
    )
    assert summary["replicas_identical"] is True
    assert summary["deaths"] == []
    assert summary["samples"]["once"] > 0
    assert summary["samples"]["twice"] == 0
    told = summary["partitions"][0]
    assert told["fault"] == FAULT
    assert set(told["paused"]) <= (set() if policy == "available" else {3, 4})
    assert policy != "pause" or told["paused"] == [3, 4]
    assert told["continued"] == ([3, 4] if policy == "continue" else [])
    given_up = [branch for told in summary["partitions"] for branch in told["given_up"]]
    assert [branch["peers"] for branch in given_up] == ([] if policy == "pause" else [[3, 4]])
    for branch in given_up:
        assert branch["samples_given_back"] > 0
    began, over = [
        event
        for event in events_of(tmp_path / "out")
        if event.get("event") in ("fault", "fault_over")
    ]
    assert (began["event"], began["fault"], began["seconds"]) == ("fault", FAULT, 4.0)
    assert (over["event"], over["fault"]) == ("fault_over", FAULT)
    # How much longer it was in fact is a matter of when a busy machine lets a node look.
    assert told["for_s"] > 3.0
    assert told["for_s"] == pytest.approx(over["t"] - began["t"], abs=0.001)
