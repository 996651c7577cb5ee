"""A run of ``gossip hosts`` on network namespaces; ``ssh`` is a script that enters them."""

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

from hosts import Hosts

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
    model(torch.randn(64, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
"""


def command_in(on: Hosts, folder: Path, *options: str, script: str = SCRIPT) -> list[str]:
    """``gossip hosts`` with those options, run on the first host. Writes its script."""
    (folder / "ssh.py").write_text(SSH)
    (folder / "train.py").write_text(script)
    ssh = f"{sys.executable} {folder / 'ssh.py'} {folder}"
    words = ["-H", ",".join(on.names), "--ssh", ssh, "--workdir", str(folder)]
    gossip = [sys.executable, "-P", "-m", "gossip.launch.cli", "hosts"]
    return [*on.inside(0), *gossip, *words, *options, "train.py"]


def check_pairs(on: Hosts, folder: Path) -> tuple[int, list[dict[str, str]]]:
    """Return the exit code of ``gossip hosts --check``, and its lines about pairs."""
    done = subprocess.run(
        command_in(on, folder, "--check", "--json"),
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = json.loads(done.stdout)["lines"]
    return done.returncode, [line for line in lines if ">" in line["about"]]


class HostsRun:
    """A run of ``gossip hosts`` with a peer on each of some hosts, its launcher on the first."""

    def __init__(self, on: Hosts, folder: Path) -> None:
        self.on, self.folder = on, folder
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.launcher = subprocess.Popen(
                command_in(on, folder, "--name", "run", "--aggregator", "mean"),
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

    def wait(self, what: Callable[[], Any], within_s: float = WAIT_S) -> Any:
        until = time.monotonic() + within_s
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
def hosts_run(on: Hosts, folder: Path) -> Iterator[HostsRun]:
    run = HostsRun(on, folder)
    try:
        run.wait(lambda: len(run.rows(event="ready")) == len(on.names))
        yield run
        run.launcher.send_signal(signal.SIGTERM)
        assert run.launcher.wait(WAIT_S) == 143, run.log.read_text()
    finally:
        for number in range(len(on.names)):
            on.kill_all(number)
        run.launcher.wait()
