"""Nodes and trainers as real processes over ZeroMQ: what is killed, stopped or busy, and what the others make of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gossip.config import RunConfig
from gossip.rendezvous import announce_end

pytestmark = pytest.mark.timeout(300)  # one claim after another, each of which may wait for processes to start

WAIT_S = 60.0
AHEAD = 150
"""Rounds until the end, when a test has seen enough: more than a peer makes while the word gets around."""

TRAINER = """
import os, sys, time
import gossip
peer = gossip.init()
import torch
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = peer.prepare(model, optimizer)
busy_peer, busy_round = int(sys.argv[1]), int(sys.argv[2])
until = peer.run_dir / "until"
while not until.exists() or peer.round < int(until.read_text()):
    if peer.id == busy_peer and peer.round >= busy_round:
        busy_peer = -1
        print("busy", flush=True)
        sum(range(10**8))  # one instruction that holds the interpreter's lock for seconds
        print("done", flush=True)
    torch.manual_seed(1000 * peer.id + peer.round)
    optimizer.zero_grad()
    model(torch.randn(4, 6)).square().sum().backward()
    optimizer.step()
    time.sleep(0.002)
with torch.no_grad():
    print("sum", peer.round, sum(p.double().sum() for p in model.parameters()).item().hex(), flush=True)
peer.close()
"""


class Swarm:
    """``n`` peers, each in a session of its own as the launcher starts them, and what they write down."""

    def __init__(
        self, folder: Path, n: int, busy: tuple[int, int] = (-1, 0), trainer: str = TRAINER, ahead: int = AHEAD, **config: Any
    ) -> None:
        self.folder, self.n, self.ahead = folder, n, ahead
        (folder / "train.py").write_text(trainer)
        path = folder / "config.json"
        options = {"aggregator": "mean", "f": 0, "round_timeout_s": 5.0, "quorum_timeout_s": 20.0, **config}
        RunConfig(run=os.urandom(8).hex(), peers=n, **options).dump(path)
        self.started_at = time.monotonic()
        self.peers: list[subprocess.Popen[str]] = []
        for peer in range(n):
            environment = {
                **os.environ,
                "GOSSIP_PEER": str(peer),
                "GOSSIP_RUN_DIR": str(folder),
                "GOSSIP_CONFIG": str(path),
            }
            command = [sys.executable, str(folder / "train.py"), *map(str, busy)]
            pipe = subprocess.PIPE
            self.peers.append(
                subprocess.Popen(command, env=environment, start_new_session=True, stdout=pipe, stderr=pipe, text=True)
            )

    def events(self, peer: int, *names: str) -> list[dict[str, Any]]:
        path = self.folder / f"peer-{peer}" / "events.jsonl"
        if not path.exists():
            return []
        whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")][1:]
        lines = [json.loads(line) for line in whole]
        return [line for line in lines if not names or line["event"] in names]

    def wait(self, what: Callable[[], Any], about: str) -> Any:
        """What ``what`` returns, as soon as it is true."""
        until = time.monotonic() + WAIT_S
        while not (found := what()):
            if time.monotonic() > until:
                pytest.fail(f"{about} never came\n{self.report()}")
            time.sleep(0.01)  # between two looks, not instead of one
        return found

    def wait_round(self, peer: int, round_id: int) -> None:
        self.wait(lambda: [e for e in self.events(peer, "round") if e["round"] >= round_id], f"round {round_id} at peer {peer}")

    def node_pid(self, peer: int) -> int:
        started = self.wait(lambda: self.events(peer, "started"), f"the node of peer {peer}")
        return int(started[-1]["pid"])

    def now(self) -> int:
        """The latest round that anybody told of."""
        return max([event["round"] for peer in range(self.n) for event in self.events(peer, "round")], default=0)

    def finish(self, *peers: int) -> dict[int, str]:
        """Ends the training some rounds ahead, waits until the peers have ended well. Returns the last line that each printed."""
        new = self.folder / "until.new"
        new.write_text(str(self.now() + self.ahead))
        new.rename(self.folder / "until")
        for peer, process in enumerate(self.peers):
            if process.poll() is not None:  # as a launcher does: nobody waits for it to come back
                announce_end(self.folder / "seeds", peer)
        said = {}
        for peer in peers:
            try:
                out, err = self.peers[peer].communicate(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                pytest.fail(f"peer {peer} does not end\n{self.report()}")
            assert self.peers[peer].returncode == 0, f"peer {peer}: {err[-3000:]}\n{self.report()}"
            said[peer] = out.strip().splitlines()[-1]
        return said

    def report(self) -> str:
        """The last events of each peer."""
        rows = []
        for peer in range(self.n):
            told = [event for event in self.events(peer) if event["event"] != "round"] + self.events(peer, "round")[-1:]
            rows += [f"peer {peer}: {event}" for event in told[-12:]]
        return "\n".join(rows)

    def close(self) -> None:
        for process in self.peers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Callable[..., Swarm]]:
    made: list[Swarm] = []

    def make(n: int, **options: Any) -> Swarm:
        made.append(Swarm(tmp_path, n, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def again(swarm: Swarm, peer: int, by: int) -> None:
    """Waits until ``peer`` contributes to rounds that ``by`` applies."""

    def look() -> bool:
        told = swarm.events(by, "round")
        return bool(told) and peer in told[-1]["contributors"]

    swarm.wait(look, f"a round with peer {peer}")


def commits(swarm: Swarm, peer: int) -> list[dict[str, Any]]:
    path = swarm.folder / f"peer-{peer}" / "commits.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True)[1:] if line.endswith("\n")]


def roster(swarm: Swarm) -> list[int]:
    """Of the latest round."""
    latest = max((commit for peer in range(swarm.n) for commit in commits(swarm, peer)), key=lambda commit: commit["round"])
    return sorted(latest["roster"])


# A swarm of n is 2 n processes that import torch each, 2.5 s of a processor: so one swarm bears several claims in turn.


def test_peers_find_each_other_train_wait_for_no_one_who_is_busy_and_end_with_the_same_bits(swarm: Callable[..., Swarm]) -> None:
    """One trainer holds the interpreter's lock for seconds, and is not taken for dead."""
    three = swarm(3, busy=(1, 30))
    three.wait(lambda: three.now() > 60, "rounds without the one that is busy")
    again(three, 1, by=0)
    said = three.finish(0, 1, 2)
    assert len(set(said.values())) == 1
    ready = three.events(1, "ready")[0]["t"]
    for peer in (0, 2):
        last = three.events(peer, "round")[-1]["t"]
        wrong = [e for e in three.events(peer, "dead", "suspect") if e["subject"] == 1 and ready < e["t"] < last]
        assert not wrong, wrong
    _, rounds, _ = said[0].split()
    for peer in range(3):
        halted = three.events(peer, "halted")[-1]
        assert (halted["exit_code"], halted["reason"]) == (0, "finished")
        assert halted["traffic"]["sent_bytes"] > 0
    made = [commit for peer in range(3) for commit in commits(three, peer)]
    assert {commit["round"] for commit in made} == set(range(int(rounds)))
    assert sorted(commit["round"] for commit in made if commit["round"] < 30) == list(range(30)), "each round is made once"
    assert all(commit["contributors"] for commit in made)


def test_who_slept_and_whose_node_was_killed_go_on_and_who_is_asked_to_stop_leaves_politely(swarm: Callable[..., Swarm]) -> None:
    three = swarm(3, faults=("hang:1@50+1s",))
    three.wait(lambda: three.events(1, "fault"), "the hang")
    three.wait(lambda: psutil.Process(three.peers[1].pid).status() == psutil.STATUS_STOPPED, "the stop")
    three.wait(lambda: three.now() > 60, "a round without the sleeper")
    os.killpg(three.peers[1].pid, signal.SIGCONT)
    again(three, 1, by=0)

    former = three.node_pid(1)
    os.kill(former, signal.SIGKILL)
    three.wait(lambda: len(three.events(1, "started")) == 2, "another node of peer 1")
    second = three.events(1, "started")[-1]
    assert second["pid"] != former
    assert second["incarnation"] == 1
    three.wait(lambda: [e for e in three.events(1, "round") if e["t"] > second["t"]], "a round of the new node")
    again(three, 1, by=0)

    os.killpg(three.peers[2].pid, signal.SIGTERM)  # the node too, as schedulers do
    assert three.peers[2].wait(WAIT_S) == 143
    three.wait(lambda: [e for e in three.events(0, "left") if e["subject"] == 2], "its goodbye")
    said = three.finish(0, 1)
    assert said[0] == said[1]


def test_a_crash_strikes_its_victim_or_whoever_serves_and_a_killed_trainers_node_tells_of_it(swarm: Callable[..., Swarm]) -> None:
    """Of five peers one crashes as planned, one dies when it serves, one is killed by hand: the two that are left end alike."""
    five = swarm(5, faults=("crash:2@50", "crash:server@80"))
    five.wait(lambda: five.events(2, "fault"), "the crash")
    assert five.peers[2].wait(WAIT_S) == -signal.SIGKILL
    fault = five.events(2, "fault")[-1]
    assert (fault["kind"], fault["round"]) == ("crash", 50)

    others = [0, 1, 3, 4]
    five.wait(lambda: any(five.events(peer, "fault") for peer in others), "the crash of the server")
    (server,) = [peer for peer in others if five.events(peer, "fault")]
    assert five.peers[server].wait(WAIT_S) == -signal.SIGKILL
    others.remove(server)
    five.wait(lambda: roster(five) == others, f"a roster of {others}")  # until then two of them are no majority
    makers = [peer for peer in range(5) for commit in commits(five, peer) if commit["round"] == 80]
    assert len(makers) == 1
    assert makers != [server], "round 80 is made once, by another than the one that died before its commit was out"

    first, second, third = others
    node = psutil.Process(five.node_pid(third))
    os.kill(five.peers[third].pid, signal.SIGKILL)
    killed_at = time.monotonic()
    node.wait(WAIT_S)
    # A node that says goodbye for its trainer is heard at once: no suspicion need run out.
    gone = five.wait(lambda: [e for e in five.events(first, "dead", "left") if e["subject"] == third], f"the death of {third}")
    assert gone[0]["by"] == third, "it was announced, not found out"
    assert gone[0]["t"] > killed_at
    said = five.finish(first, second)
    assert said[first] == said[second]
