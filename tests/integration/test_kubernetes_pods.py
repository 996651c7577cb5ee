"""The pods of ``gossip kubernetes`` as processes of this machine: lost, late, started again. No
cluster has seen them."""

from __future__ import annotations

import json
import shlex
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zygote
from effort import effort
from kube import Cluster

pytestmark = pytest.mark.timeout(600)

WAIT_S = 90.0
ALL = tuple(range(effort(2, 3)))
"""The pods of a job that needs no more of them to show what it shows."""
SCRIPT = """
import sys, time, torch, gossip
from pathlib import Path
peer = gossip.init()
x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = torch.nn.Linear(8, 2)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
loader = peer.shard(torch.utils.data.TensorDataset(x, y), batch_size=16)
until = Path(sys.argv[1])
over = False
while not over:
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        time.sleep(0.04)
        optimizer.step()
        over = until.exists() and peer.round >= int(until.read_text())
        if over:
            break
peer.close()
"""


class KubernetesJob:
    """What ``gossip kubernetes`` has written, and the pods of it.

    Args:
        counts: See ``Cluster``.
    """

    def __init__(
        self, folder: Path, *options: str, training: tuple[str, ...] = (), counts: bool = True
    ) -> None:
        self.end, self.folder = folder / "until", folder
        (folder / "train.py").write_text(SCRIPT)
        cli = [sys.executable, "-m", "gossip.launch.cli"]
        words = [*cli, *shlex.split("kubernetes --image i --name t"), *options]
        asked = [
            *words,
            "--",
            "--aggregator",
            "mean",
            *training,
            str(folder / "train.py"),
            str(self.end),
        ]
        done = zygote.run(asked, capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stderr
        self.cluster = Cluster(folder, done.stdout, counts=counts)

    def start(self, *indexes: int) -> None:
        for index in indexes:
            self.cluster.start(index)

    def run_folder(self, index: int) -> Path:
        """Where a pod writes: the folder is its own, or of a claim."""
        own = self.cluster.pods[index].folder / "own" / "t"
        return own if own.exists() else self.folder / "claims" / "c" / "runs" / "t"

    def events(self, index: int) -> list[dict[str, Any]]:
        """What the launcher of a pod has written down, as far as it is whole."""
        files = [
            self.run_folder(index) / name for name in ("events.jsonl", f"events-{index}.jsonl")
        ]
        rows = [
            line
            for file in files
            if file.exists()
            for line in file.read_text().splitlines()
            if line.endswith("}")
        ]
        return [json.loads(row) for row in rows]

    def last(self, index: int) -> dict[str, Any]:
        """The last round that a peer has told of."""
        rows = [row for row in self.events(index) if row.get("event") == "round"]
        return rows[-1] if rows else {"round": -1, "contributors": []}

    def lives(self, index: int) -> list[int]:
        """Of the pod that an index has at present."""
        return [
            row["incarnation"]
            for row in self.events(index)
            if row.get("event") == "spawned" and row["peer"] == index
        ]

    def train(self, *peers: int, more: int = 4) -> None:
        """Waits until a round has just these peers, as each of them tells,
        and some more are over."""
        for peer in peers:
            self.wait(
                f"a round of {peers} as {peer} tells",
                lambda peer=peer: set(self.last(peer)["contributors"]) == {*peers},
            )
        until = self.last(peers[0])["round"] + more
        self.wait(f"round {until}", lambda: self.last(peers[0])["round"] >= until)

    def wait(self, what: str, done: Any) -> None:
        until = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < until, f"{what} never came\n{self.cluster.log()}"
            time.sleep(0.05)  # between two looks, not instead of one

    def tell_end(self, index: int) -> None:
        scratch = self.end.with_suffix(".new")
        scratch.write_text(str(self.last(index)["round"] + 15))
        scratch.rename(self.end)

    def finish(self, *indexes: int) -> list[int]:
        if not self.end.exists():
            self.tell_end(indexes[-1])
        return [self.cluster.pods[index].process.wait(WAIT_S) for index in indexes]


@pytest.fixture
def apply(tmp_path: Path) -> Iterator[Any]:
    made: list[KubernetesJob] = []

    def call(*options: str, **more: Any) -> KubernetesJob:
        made.append(KubernetesJob(tmp_path, *options, **more))
        return made[-1]

    yield call
    for job in made:
        job.cluster.close()


def test_pods_without_a_volume_meet_by_name_and_the_first_is_not_special(apply: Any) -> None:
    job: KubernetesJob = apply(
        "-n", "4", training=("--min-peers", "3", "--patience", "1", "--quorum", "available")
    )
    job.start(2, 1, 0)
    job.train(0, 1, 2)
    assert job.cluster.lose(0) == -9, "and its node is not replaced for a while"
    job.train(1, 2)
    job.start(3)  # late, and it has never met the first
    job.train(1, 2, 3)
    code = job.cluster.lose(1)
    assert job.cluster.starts_again(1, code)
    job.train(2, 3)
    job.start(1)  # at another address, under its own id
    job.train(1, 2, 3)
    assert job.lives(1) == [1]
    assert job.lives(3) == [0], "it was late, and had no life before"
    secret = (
        next(iter(job.cluster.secrets.values()))["swarm.key"].split('secret = "')[1].split('"')[0]
    )
    for pod in job.cluster.pods.values():
        assert not any(secret in word for word in (*pod.words, *pod.environment.values())), (
            "it comes as a file"
        )
    key = job.run_folder(1) / "swarm.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert json.loads((job.run_folder(1) / "seeds" / "2.addr").read_text())["key"], (
        "peers have keys of their own"
    )
    job.start(0)  # a node at last
    job.train(0, 1, 2, 3)
    assert job.finish(0, 1, 2, 3) == [0, 0, 0, 0], job.cluster.log()
    pod = job.cluster.pods[1]
    assert f"peer 1 of 4, incarnation 1 at {pod.address}:7421" in pod.log()


def test_late_names_are_found_and_a_pod_whose_failures_nobody_counts_asks_which_life_is_its_next(
    apply: Any,
) -> None:
    job: KubernetesJob = apply(
        "-n", str(len(ALL)), counts=False, training=("--quorum", "available")
    )
    pods = [job.cluster.start(index, named=False) for index in ALL]
    for pod in pods:
        job.wait(
            "a pod that finds nobody", lambda pod=pod: "0 of the others found by name" in pod.log()
        )
    job.cluster.name(*ALL)  # names take a while to get about
    job.train(*ALL)
    for life in effort((1,), (1, 2)):
        job.cluster.lose(0)
        job.train(*ALL[1:])
        job.start(0)
        job.train(*ALL)
        assert job.lives(0) == [life]
    assert job.finish(*ALL) == [0 for _ in ALL], job.cluster.log()


def test_pods_on_a_shared_volume_meet_there_and_one_that_is_lost_comes_back(apply: Any) -> None:
    job: KubernetesJob = apply(
        "-n", str(len(ALL)), "--claim", "c", training=("--quorum", "available")
    )
    job.start(*ALL)
    job.train(*ALL)
    run = job.run_folder(0)
    assert all(json.loads((run / "seeds" / f"{peer}.addr").read_text())["key"] for peer in ALL), (
        "without keys"
    )
    job.cluster.lose(1)
    job.train(0, *ALL[2:])
    job.start(1)
    job.train(*ALL)
    assert job.finish(*ALL) == [0 for _ in ALL], job.cluster.log()
    command = [sys.executable, "-m", "gossip.launch.schedulers.task_runs", str(run), "0"]
    done = zygote.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"finished: {', '.join(map(str, ALL))}\n" in done.stdout
    assert [row["peer"] for row in json.loads((run / "summary.json").read_text())["rejoins"]] == [1]
