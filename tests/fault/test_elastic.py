"""Real peers that come and go: a swarm grows, shrinks,
and starts anew from the last that is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zygote
from effort import effort, only_long
from following import Following

from gossip.run.keys import read_pair

SCRIPT = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
import gossip

torch.manual_seed(0)
data = TensorDataset(torch.randn(97, 4), torch.randn(97, 2))
peer = gossip.init()
model = torch.nn.Linear(4, 2)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
loader = peer.shard(DataLoader(data, batch_size=4, shuffle=True))

def last_round():
    try:
        return int((peer.run_dir / "end").read_text())
    except (OSError, ValueError):
        return 10**9

while peer.round < last_round():
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        time.sleep(0.02)
        optimizer.step()
        if peer.round >= last_round():
            break
"""
CLI = [sys.executable, "-m", "gossip.launch.cli"]
PATIENCE_S = 200.0


class ElasticRun:
    """A run, and those who have joined it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "runs" / "out"
        self.launchers: list[subprocess.Popen[bytes]] = []
        self._written = Following(self.out)
        (folder / "train.py").write_text(SCRIPT)

    def begin(self, *words: str) -> None:
        self._launch(
            "run", "--aggregator", "mean", "--run-dir", "runs/out", "--quiet", *words, "train.py"
        )

    def join(self, count: int) -> None:
        self._launch("join", "--quiet", "-n", str(count), "out")

    def _launch(self, *words: str) -> None:
        with (self.folder / "log").open("ab") as log:
            self.launchers.append(
                zygote.Popen([*CLI, *words], cwd=self.folder, stdout=log, stderr=log)
            )

    def rows(self, event: str) -> list[dict[str, Any]]:
        return self._written.rows("events.jsonl", event)

    def train(self, peers: Iterable[int], more: int = 3) -> None:
        """Waits until a round has just these peers, and some more are over."""
        wanted = sorted(peers)
        self.wait(
            lambda: bool(rows := self.rows("round")) and sorted(rows[-1]["contributors"]) == wanted,
            f"a round of {wanted}",
        )
        until = self.rows("round")[-1]["round"] + more
        self.wait(lambda: self.rows("round")[-1]["round"] > until, f"round {until + 1}")

    def wait(self, done: Callable[[], bool], about: str) -> None:
        self._written.until(
            done, about, PATIENCE_S, self.launchers[0].pid, (self.folder / "log").read_text
        )

    def end(self) -> dict[str, Any]:
        """The end of the training for whoever is there. Returns the summary."""
        (self.out / "end").write_text(str(self.rows("round")[-1]["round"] + 40))
        for launcher in self.launchers:
            launcher.wait(PATIENCE_S)
        found: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return found

    def close(self) -> None:
        for launcher in self.launchers:
            launcher.kill()
            launcher.wait()
        self._written.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ElasticRun]:
    run = ElasticRun(tmp_path)
    yield run
    run.close()


def data_exact(summary: dict[str, Any]) -> bool:
    samples = summary["samples"]
    return samples["once"] > 0 and samples["twice"] == 0


def assert_no_secret_is_shown(run: ElasticRun) -> None:
    """In no command line and no environment, which others on the machine can read."""
    secret = read_pair(run.out / "swarm.key").secret
    for row in run.rows("spawned"):
        for file in ("cmdline", "environ"):
            assert secret.encode() not in Path(f"/proc/{row['pid']}/{file}").read_bytes()


def test_a_swarm_grows_and_shrinks_and_who_remains_never_starts_again(run: ElasticRun) -> None:
    most, rest = effort((3, 0), (14, 1))
    run.begin("-n", "2", "--room", str(2 + most), "--keys")
    run.train(range(2))
    assert_no_secret_is_shown(run)
    run.join(most - rest)
    first_to_stay = 2 + most - rest
    run.train(range(first_to_stay))
    if rest:
        run.join(rest)
        run.train(range(2 + most))
    # most of them, in one moment: more than half of a majority
    run.launchers[1].send_signal(signal.SIGTERM)
    assert run.launchers[1].wait(PATIENCE_S) == 143
    run.train([0, 1, *range(first_to_stay, 2 + most)])
    summary = run.end()
    assert [launcher.returncode for launcher in run.launchers] == [0, 143, 0][: len(run.launchers)]
    assert (summary["status"], summary["replicas_identical"], summary["deaths"]) == (
        "finished",
        True,
        [],
    )
    assert data_exact(summary), summary["samples"]
    assert sorted(join["peer"] for join in summary["joins"]) == list(range(2, 2 + most))
    assert all(join["round"] > 0 for join in summary["joins"])
    assert len(summary["left"]) == most - rest
    assert (summary["rejoins"], summary["suspected"], len(summary["finished"])) == (
        [],
        [],
        2 + rest,
    )
    assert run.rows("notice") == [], "somebody was turned away for a key"


@only_long
def test_the_last_one_goes_on_and_a_fresh_swarm_grows_from_it(run: ElasticRun) -> None:
    n, fresh = 8, 7
    run.begin("-n", str(n), "--room", str(n + fresh), "--quorum", "available")
    run.train(range(n))
    pids = {row["peer"]: row["pid"] for row in run.rows("spawned")}
    for victim in range(n - 1):
        os.killpg(pids[victim], signal.SIGKILL)
        run.train(range(victim + 1, n))
    run.join(fresh)
    run.train(range(n - 1, n + fresh))
    summary = run.end()
    assert [launcher.returncode for launcher in run.launchers] == [0, 0]
    assert (summary["replicas_identical"], len(summary["deaths"]), len(summary["joins"])) == (
        True,
        n - 1,
        fresh,
    )
    # As the peers tell it: a commit that its maker was killed before it wrote down is
    # missing in the files.
    epochs = [row["twice"] for row in run.rows("epoch")]
    assert epochs
    assert epochs == [0] * len(epochs)
    assert len(summary["finished"]) == 1 + fresh
