"""Hosts that go and come back while ``gossip hosts`` trains: late, and with another address.
Network namespaces; ``ssh`` is a script that enters them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts, hosts, ip, why_no_hosts

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why := why_no_hosts()), reason=why),
]
WAIT_S = 120.0
SSH = """
import os, sys
host, command = sys.argv[-2:]
if os.path.exists(f"{sys.argv[1]}/{host}.down"):
    print(f"ssh: connect to host {host} port 22: No route to host", file=sys.stderr)
    sys.exit(255)
os.execvp("nsenter", ["nsenter", f"--net=/run/netns/{host}", "sh", "-c", command])
"""
SCRIPT = """
import sys, time
from pathlib import Path
import torch
import gossip
peer = gossip.init()
model = torch.nn.Linear(8, 1)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
for step in peer.steps(100_000):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
"""


class HostsRun:
    """A run of ``gossip hosts`` with one peer on each of three hosts, its launcher on the first."""

    def __init__(self, on: Hosts, folder: Path) -> None:
        self.on, self.folder = on, folder
        (folder / "ssh.py").write_text(SSH)
        (folder / "train.py").write_text(SCRIPT)
        words = [
            "-H",
            ",".join(on.names),
            "--ssh",
            f"{sys.executable} {folder / 'ssh.py'} {folder}",
        ]
        options = ["--workdir", str(folder), "--name", "run", "--aggregator", "mean", "train.py"]
        gossip = [sys.executable, "-P", "-m", "gossip.launch.cli", "hosts"]
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.launcher = subprocess.Popen(
                [*on.inside(0), *gossip, *words, *options],
                cwd=folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def said(self, text: str) -> bool:
        return text in self.log.read_text()

    def rows(self, **fields: Any) -> list[dict[str, Any]]:
        path = self.folder / "runs" / "run" / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        return [row for row in rows if fields.items() <= row.items()]

    def wait(self, what: Callable[[], Any]) -> Any:
        until = time.monotonic() + WAIT_S
        while not (found := what()):
            assert time.monotonic() < until, self.log.read_text()
            assert self.launcher.poll() is None, self.log.read_text()
            time.sleep(0.05)  # between two looks, not instead of one
        return found

    def trains(self, peer: int, incarnation: int) -> bool:
        """Whether that life of a peer takes part in rounds."""
        lives = self.rows(event="spawned", peer=peer, incarnation=incarnation)
        rounds = self.rows(event="round", peer=peer)
        return bool(lives and [row for row in rounds if row["t"] > lives[0]["t"]])

    def lose(self, number: int) -> None:
        (self.folder / f"{self.on.names[number]}.down").touch()
        self.on.kill_all(number)

    def reboot(self, number: int) -> None:
        (self.folder / f"{self.on.names[number]}.down").unlink()


@contextmanager
def run_in(folder: Path) -> Iterator[HostsRun]:
    with hosts(3) as on:
        run = HostsRun(on, folder)
        try:
            run.wait(lambda: len(run.rows(event="ready")) == 3)
            yield run
            run.launcher.send_signal(signal.SIGTERM)
            assert run.launcher.wait(WAIT_S) == 143, run.log.read_text()
        finally:
            for number in range(3):
                on.kill_all(number)
            run.launcher.wait()


def test_a_host_that_is_away_for_longer_than_its_restarts_take_comes_back(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        run.lose(2)
        run.wait(lambda: run.said("No route to host"))
        since = time.monotonic()
        run.wait(lambda: time.monotonic() > since + 15)  # 1 + 2 + 5 s are the first pauses
        run.reboot(2)
        run.wait(lambda: run.trains(2, 1))


def test_a_host_that_comes_back_with_another_address_takes_part(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        run.lose(2)
        ip("-n", run.on.names[2], "addr", "flush", "dev", "eth0")
        ip("-n", run.on.names[2], "addr", "add", "10.77.0.77/24", "dev", "eth0")
        run.reboot(2)
        run.wait(lambda: run.trains(2, 1))
        hosts_file = json.loads((tmp_path / "runs" / "run" / "hosts.json").read_text())
        assert hosts_file["hosts"][run.on.names[2]]["address"] == "10.77.0.77"
