"""Peers as real processes over ZeroMQ, forked from one that has imported torch, as a launcher does,
and what they write down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import zygote
from following import Following

from gossip.config import RunConfig
from gossip.launch.guardian import reap
from gossip.launch.local.warm import ForkedProcess, WarmStart
from gossip.run.rendezvous import announce_end

T = TypeVar("T")
WAIT_S = 60.0
AHEAD = 30
"""Rounds until the end, when a test has seen enough:
more than a peer makes while the word gets around."""

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
    time.sleep(0.03)
with torch.no_grad():
    total = sum(p.double().sum() for p in model.parameters()).item()
    print("sum", peer.round, total.hex(), flush=True)
peer.close()
"""


class SwarmPeer:
    """One process in a session of its own, by ``subprocess.Popen``'s words as far
    as tests use them."""

    def __init__(self, forked: ForkedProcess, status: socket.socket) -> None:
        self.pid, self.returncode = forked.pid, forked.returncode
        self._streams, self._said = (forked.stdout, forked.stderr), (bytearray(), bytearray())
        self._status = status  # its end would tell the peer that its launcher is gone
        self._end = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        if self.returncode is None and not select.select([self._end], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"peer of pid {self.pid}", timeout)
        code = self.poll()
        assert code is not None
        return code

    def communicate(self, timeout: float) -> tuple[str, str]:
        """All that it has said until both its streams end."""
        until, open_ = time.monotonic() + timeout, dict(zip(self._streams, self._said, strict=True))
        while open_:
            ready, _, _ = select.select([*open_], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired(f"peer of pid {self.pid}", timeout)
            for stream in ready:
                said = stream.read(2**16)
                open_[stream].extend(said or b"")
                if not said:
                    del open_[stream]
        self.wait(max(0.0, until - time.monotonic()))
        out, err = (bytes(said).decode() for said in self._said)
        return out, err

    def close(self) -> None:
        """Ends all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(WAIT_S)
        reap(self.pid)
        for stream in self._streams:
            stream.close()
        self._status.close()
        os.close(self._end)


class ProcessSwarm:
    """``n`` peers and what they write down."""

    def __init__(
        self,
        folder: Path,
        n: int,
        busy: tuple[int, int] = (-1, 0),
        trainer: str = TRAINER,
        ahead: int = AHEAD,
        **config: Any,
    ) -> None:
        self.folder, self.n, self.ahead = folder, n, ahead
        self._files = Following(folder)
        (folder / "train.py").write_text(trainer)
        path = folder / "config.json"
        options = {
            "aggregator": "mean",
            "f": 0,
            "round_timeout_s": 5.0,
            "quorum_timeout_s": 20.0,
            **config,
        }
        RunConfig(run=os.urandom(8).hex(), peers=n, **options).dump(path)
        environment = {**os.environ, "GOSSIP_RUN_DIR": str(folder), "GOSSIP_CONFIG": str(path)}
        self._words = [str(folder / "train.py"), *map(str, busy)]
        # a test that changes how interpreters start has a warm process that starts so
        cold = zygote.at_start(environment) != zygote.at_start(zygote.zygote().environment)
        with contextlib.nullcontext() if cold else zygote.forked_warm_processes():
            self._warm = WarmStart(environment, secrets.token_hex(16), pytest.fail)
        asyncio.run(self._warm.ready(asyncio.Event()))
        self.peers = [self._start(peer) for peer in range(n)]
        self._replaced: list[SwarmPeer] = []
        self.output: dict[int, str] = {}  # of peers that have ended

    def _start(self, peer: int, incarnation: int = 0) -> SwarmPeer:
        ours, theirs = socket.socketpair()
        with theirs:
            own = {"GOSSIP_PEER": str(peer), "GOSSIP_INCARNATION": str(incarnation)}
            return SwarmPeer(self._warm.start(self._words, own, theirs), ours)

    def start_again(self, peer: int, incarnation: int) -> None:
        """After its end."""
        self.peers[peer].close()
        self.peers[peer] = self._start(peer, incarnation)

    def replace(self, peer: int, incarnation: int) -> SwarmPeer:
        """Return the former process of a peer, which is left as it is."""
        former = self.peers[peer]
        self._replaced.append(former)
        self.peers[peer] = self._start(peer, incarnation)
        return former

    def events(self, peer: int, *names: str) -> list[dict[str, Any]]:
        return self._files.rows(f"peer-{peer}/events.jsonl", *names)

    def commits(self, peer: int) -> list[dict[str, Any]]:
        return self._files.rows(f"peer-{peer}/commits.jsonl")

    def wait(self, what: Callable[[], T], about: str) -> T:
        """What ``what`` returns, as soon as it is true."""
        return self._files.until(what, about, WAIT_S, story=self.report)

    def wait_round(self, peer: int, round_id: int) -> None:
        self.wait(
            lambda: [e for e in self.events(peer, "round") if e["round"] >= round_id],
            f"round {round_id} at peer {peer}",
        )

    def node_pid(self, peer: int) -> int:
        started = self.wait(lambda: self.events(peer, "started"), f"the node of peer {peer}")
        return int(started[-1]["pid"])

    def now(self) -> int:
        """The latest round that anybody told of."""
        return max(
            [event["round"] for peer in range(self.n) for event in self.events(peer, "round")[-1:]],
            default=0,
        )

    def finish(self, *peers: int) -> dict[int, str]:
        """Ends the training some rounds ahead, waits until the peers have ended well. Returns the
        last line that each printed."""
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
            self.output[peer] = out
        return said

    def report(self) -> str:
        """The last events of each peer."""
        rows = []
        for peer in range(self.n):
            told = [
                event for event in self.events(peer) if event["event"] != "round"
            ] + self.events(peer, "round")[-1:]
            rows += [f"peer {peer}: {event}" for event in told[-12:]]
        return "\n".join(rows)

    def close(self) -> None:
        for peer in (*self.peers, *self._replaced):
            peer.close()
        self._warm.close()
        self._files.close()


def again(swarm: ProcessSwarm, peer: int, by: int) -> None:
    """Waits until ``peer`` contributes to rounds that ``by`` applies."""

    def look() -> bool:
        told = swarm.events(by, "round")
        return bool(told) and peer in told[-1]["contributors"]

    swarm.wait(look, f"a round with peer {peer}")


def roster(swarm: ProcessSwarm) -> list[int]:
    """Of the latest round."""
    latest = max(
        (commit for peer in range(swarm.n) for commit in swarm.commits(peer)),
        key=lambda commit: commit["round"],
    )
    return sorted(latest["roster"])
