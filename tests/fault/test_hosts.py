"""Peers on two hosts with addresses of their own, and the cable between them pulled: one lineage
afterwards, nothing twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zygote
from effort import effort
from following import Following
from hosts import Hosts, hosts, why_no_hosts

pytestmark = pytest.mark.skipif(bool(why := why_no_hosts()), reason=why)

WAIT_S = 120.0
SCRIPT = """
import time
import gossip
peer = gossip.init()
import torch
inputs = torch.randn(1000, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(inputs, torch.zeros(1000, 2))
model = torch.nn.Linear(4, 2)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = peer.shard(torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
until = peer.run_dir / "until"
while not until.exists() or peer.round < int(until.read_text()):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        time.sleep(0.02)
        optimizer.step()
        if until.exists() and peer.round >= int(until.read_text()):
            break
peer.close()
"""
POLICIES = {
    "pause": (),
    "continue": ("--on-minority", "continue"),
    "available": ("--quorum", "available"),
}
AHEAD = effort(40, 100)  # rounds until the end, once all are together again


class HostsRun:
    """``n`` peers, the first ``first`` of them on the first host, and the rest on the second by a
    launcher of its own."""

    def __init__(self, folder: Path, pair: Hosts, n: int, first: int, *words: str) -> None:
        self._folder, self._pair, self.n = folder, pair, n
        self.folder = folder / "runs" / "out"
        self.written = Following(self.folder)
        (folder / "train.py").write_text(SCRIPT)
        room = ("-n", str(first), "--room", str(n), "--aggregator", "mean", *words)
        self.launchers = [self._launch(0, "run", *room, "--run-dir", "runs/out", "train.py")]
        self.wait_for_rounds(1, range(first))
        self.launchers.append(self._launch(1, "join", "-n", str(n - first), "out"))

    def _launch(self, number: int, command: str, *words: str) -> subprocess.Popen[str]:
        listen = {"GOSSIP_INSECURE": "true", "GOSSIP_LISTEN": self._pair.addresses[number]}
        started: subprocess.Popen[str] = zygote.Popen(
            [sys.executable, "-m", "gossip.launch.cli", command, "--quiet", *words],
            cwd=self._folder,
            env={**os.environ, **listen, **self._pair.on(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return started

    def events(self, *names: str) -> list[dict[str, Any]]:
        return self.written.rows("events.jsonl", *names)

    def now(self, peer: int) -> int:
        return max([row["round"] for row in self.events("round") if row["peer"] == peer], default=0)

    def wait(self, what: Callable[[], Any], about: str) -> Any:
        return self.written.until(what, about, WAIT_S, self.launchers[0].pid, self.last_words)

    def last_words(self) -> str:
        said = ""
        for launcher in self.launchers:
            launcher.terminate()
            said += launcher.communicate(timeout=60)[1][-3000:]
        return said

    def wait_for_rounds(self, more: int, peers: range) -> None:
        until = max(self.now(peer) for peer in peers) + more
        self.wait(
            lambda: all(self.now(peer) >= until for peer in peers),
            f"round {until} at peers {list(peers)}",
        )

    def finish(self) -> dict[str, Any]:
        """Ends the training some rounds ahead. Returns the summary."""
        new = self.folder / "until.new"
        new.write_text(str(max(self.now(peer) for peer in range(self.n)) + AHEAD))
        new.rename(self.folder / "until")
        for launcher in self.launchers:
            _, err = launcher.communicate(timeout=WAIT_S)
            assert launcher.returncode == 0, err[-3000:]
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary

    def close(self) -> None:
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.kill()  # its peers see it go, and leave
                launcher.communicate()
        self.written.close()


@pytest.mark.parametrize("policy", effort(["pause"], list(POLICIES)))
def test_after_a_cable_was_pulled_there_is_one_lineage_and_nothing_is_counted_twice(
    policy: str, tmp_path: Path
) -> None:
    n, first = effort((3, 2), (8, 5))
    larger, smaller = range(first), range(first, n)
    with hosts(2) as pair:
        run = HostsRun(tmp_path, pair, n, first, *POLICIES[policy])
        try:
            run.wait_for_rounds(effort(10, 20), range(n))
            pair.cut(1)
            cut_at = run.now(0)
            run.wait_for_rounds(effort(20, 100), larger)
            if policy == "pause":
                run.wait(
                    lambda: {row["peer"] for row in run.events("paused")} >= {*smaller},
                    "a pause of those cut off",
                )
            else:
                run.wait_for_rounds(50, smaller)
            pair.heal(1)
            run.wait_for_rounds(effort(10, 20), range(n))
            summary = run.finish()
        finally:
            run.close()
    assert summary["finished"] == [*range(n)]
    assert summary["replicas_identical"] is True
    assert summary["rounds_lost"] == 0
    assert summary["samples"]["twice"] == 0
    assert cut_at > 0
