"""Servers of real processes that attack results: they are found, and it costs no round."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import events_of, gossip, summary_of
from effort import effort

SCRIPT = """
import torch
import gossip

peer = gossip.init()
inputs = torch.randn(200, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(inputs, inputs[:, :2])
model = torch.nn.Linear(4, 2)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = peer.shard(torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
while peer.round < 110:
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        if peer.round >= 110:
            break
error = (model(inputs) - inputs[:, :2]).square().mean().item()
assert error < 0.1, error
peer.close()
"""


@pytest.mark.parametrize("lie", effort(["wrong_results"], ["wrong_results", "scaled_results"]))
def test_a_server_that_sends_false_results_is_quarantined_and_no_replica_takes_one(
    lie: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    gossip(tmp_path, "run", "-n4", "-f1", "--fault", f"{lie}:3", "--run-dir", "out", "train.py")
    summary = summary_of(tmp_path / "out")
    (lied,) = [row["attacks"] for row in events_of(tmp_path / "out") if "attacks" in row]
    assert lied[lie] > 0
    assert (summary["byzantine"], summary["quarantined"], summary["suspected"]) == ([3], [3], [3])
    assert (summary["rounds"], summary["rounds_lost"]) == (110, 0)
    assert summary["replicas_identical"] is True
    assert (summary["samples"]["once"] > 0, summary["samples"]["twice"]) == (True, 0)
