"""The jobs of ``gossip condor`` as processes of this machine: evicted, lost, late, added. No pool
of HTCondor has run them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import gossip
from condor import CondorJob, Pool, wait_until
from effort import effort, only_long

pytestmark = pytest.mark.timeout(600)

N = effort(3, 4)
"""Peers of a submission; one more is added to them."""
*FIRST, LATE = range(N)

SCRIPT = """
import sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
import gossip

torch.manual_seed(0)
data = TensorDataset(torch.randn(97, 4), torch.randn(97, 2))
peer = gossip.init()
model = torch.nn.Linear(4, 2)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
loader = peer.shard(DataLoader(data, batch_size=4, shuffle=True))

def last_round():
    try:
        return int(Path(sys.argv[1]).read_text())
    except (OSError, ValueError):
        return 10**9

while peer.round < last_round():
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        time.sleep(0.04)
        optimizer.step()
        if peer.round >= last_round():
            break
"""


class SubmittedSwarm:
    """What ``gossip condor`` has written, and the jobs of it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.end = folder, folder / "end"
        (folder / "train.py").write_text(SCRIPT)
        self.pool = Pool(folder / "pool")
        training = ["--aggregator", "mean", "--quorum", "available"]
        training += ["--min-peers", str(len(FIRST)), "--patience", "1", "--room", str(N + 1)]
        words = ("-n", str(N), "--name", "t", *options, "--", *training, "train.py", str(self.end))
        gossip(folder, "condor", *words)
        self.out = folder / "condor-t"
        self.nodes, self.final, self.dag = self.pool.submit_dag(self.out / "swarm.dag")
        self.peers = [self.nodes[f"peer{peer}"] for peer in range(N)]

    def events(self, job: CondorJob, peer: int) -> list[dict[str, Any]]:
        """What the launcher of a job writes down, as far as it is whole."""
        shared = self.folder / "runs" / f"condor-{self.dag}" / f"events-{peer}.jsonl"
        places = [
            shared,
            job.scratch / f"gossip-{peer}" / f"events-{peer}.jsonl",
            job.scratch / "gossip-joined" / "events.jsonl",
        ]
        lines = [
            line
            for path in places
            if path.exists()
            for line in path.read_text().splitlines()
            if line.endswith("}")
        ]
        return [json.loads(line) for line in lines]

    def last(self) -> dict[str, Any]:
        """The last round, as the first peer tells it, which is never evicted."""
        rows = [row for row in self.events(self.peers[0], 0) if row.get("event") == "round"]
        return rows[-1] if rows else {"round": -1, "contributors": []}

    def train(self, *peers: int, more: int = 4) -> None:
        """Waits until a round has just these peers, and some more are over."""
        self.wait(f"a round of {peers}", lambda: set(self.last()["contributors"]) == {*peers})
        until = self.last()["round"] + more
        self.wait(f"round {until}", lambda: self.last()["round"] >= until)

    def wait(self, what: str, done: Any) -> None:
        wait_until(what, done, self.log)

    def log(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-3000:]}"
            for path in sorted(self.out.glob("*.out"))
        )

    def tell_end(self) -> None:
        scratch = self.end.with_suffix(".new")
        scratch.write_text(str(self.last()["round"] + 15))
        scratch.rename(self.end)

    def every_sample_was_used_once(self) -> bool:
        """As a peer tells it that was there from the beginning: what a lost one has served it may
        not have written down."""
        rows = [row for row in self.events(self.peers[0], 0) if row.get("event") == "epoch"]
        return bool(rows) and all(
            row["twice"] == 0 and row["once"] + row["left"] >= 97 for row in rows
        )

    def end_with_one_more(self) -> dict[str, Any]:
        """Another peer is added, and all come to the end, of which the second was lost and came
        back. Returns the summary."""
        (more,) = self.pool.submit(self.out / "more.sub")
        more.start()
        self.train(*range(N + 1))
        self.tell_end()
        assert [job.finish() for job in (*self.peers, more)] == [0] * (N + 1), self.log()
        code, said, summary = self.verdict()
        assert code == 0
        assert f"finished: {', '.join(map(str, range(N + 1)))}\n" in said
        assert self.every_sample_was_used_once()
        assert [row["peer"] for row in summary["rejoins"]] == [1]
        return summary

    def verdict(self) -> tuple[int, str, dict[str, Any]]:
        (job,) = self.pool.submit(self.final, dag=self.dag)
        job.start()
        code = job.finish()
        where = Path(job.said["initialdir"]) / "runs" / f"condor-{self.dag}"
        return code, job.log, json.loads((where / "summary.json").read_text())


@pytest.fixture
def submit(tmp_path: Path) -> Iterator[Any]:
    made: list[SubmittedSwarm] = []

    def call(*options: str) -> SubmittedSwarm:
        made.append(SubmittedSwarm(tmp_path, *options))
        return made[-1]

    yield call
    for submission in made:
        submission.pool.close()


def test_jobs_without_a_shared_folder_are_evicted_come_late_and_are_added(submit: Any) -> None:
    swarm: SubmittedSwarm = submit()
    for peer in FIRST:
        swarm.peers[peer].start()
    swarm.train(*FIRST)
    assert swarm.peers[1].evict() == 143, "it left, as it was asked to"
    swarm.train(0, *FIRST[2:])
    swarm.peers[1].start()
    swarm.peers[LATE].start()
    swarm.train(*FIRST, LATE)
    summary = swarm.end_with_one_more()
    assert summary["samples"]["once"] > 0
    assert summary["samples"]["twice"] == 0
    brought = swarm.out / "runs" / f"condor-{swarm.dag}"
    assert {path.parent.name for path in brought.glob("peer-*/out.log")} == {
        f"peer-{life}" for life in ("1-1", *range(N + 1))
    }
    contact = (swarm.out / "contact").read_text()
    assert (swarm.out / "contact").stat().st_mode & 0o077 == 0
    assert contact.count(f"condor-{swarm.dag} 1 1 127.0.0.1:") == 1, (
        "the second life of the peer that was evicted"
    )
    assert contact.count(" done\n") == N
    secret = (swarm.out / "swarm.key").read_text().split('secret = "')[1].split('"')[0]
    files = [swarm.out / "contact", *(path for path in brought.rglob("*") if path.is_file())]
    assert not any(secret in path.read_text("utf-8", "replace") for path in files)
    swarm.peers[LATE].start()
    assert swarm.peers[LATE].finish() == 2, "nobody is left to take it in"
    assert (
        f"is over: peers {', '.join(map(str, FIRST))} finished, and no peer answers"
        in swarm.peers[LATE].log
    )


@only_long
def test_jobs_with_a_shared_folder_come_back_when_a_machine_is_lost(submit: Any) -> None:
    swarm: SubmittedSwarm = submit("--shared")
    for peer in range(N):
        swarm.peers[peer].start()
    swarm.train(*range(N))
    assert swarm.peers[1].evict(vacate_s=0.0) == -9, "no time to leave"
    swarm.train(0, *range(2, N))
    swarm.peers[1].start()
    swarm.train(*range(N))
    swarm.end_with_one_more()
    assert not list(swarm.out.glob("contact*"))
    assert not list(swarm.out.glob("swarm.key")), "the first job makes it, in the run's folder"
