"""A run that a test disturbs from outside, and what must hold at its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import zygote
from following import Following

WAIT_S = 120.0
AHEAD = 40
"""Rounds until the end, once the test has seen enough. A peer makes fewer until it reads of it."""
MARK = "GOSSIP_TEST_TRIAL"
CLI = [sys.executable, "-P", "-m", "gossip.launch.cli"]
SCRIPT = """
import hashlib, os, resource, time
from pathlib import Path
import gossip
first_life = os.environ.get("GOSSIP_INCARNATION", "0") == "0"
peer = gossip.init()
import torch
rate, width = 0.1, 2
{begin}
inputs = torch.randn(240, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(inputs, torch.zeros(240, 1))
model = torch.nn.Linear(4, width)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=rate))
loader = peer.shard(torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
{ready}
until = Path("until")
def is_over():
    return until.exists() and peer.round >= int(until.read_text())
while not is_over():
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        time.sleep(0.02)
        {step}
        optimizer.step()
        if is_over():
            break
digest = hashlib.blake2b(digest_size=8)
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
new = Path(f"end-{{peer.id}}.new")
new.write_text(f"{{peer.round}} {{digest.hexdigest()}}")
new.rename(f"end-{{peer.id}}")
{end}
peer.close()
"""


def make_script(*, begin: str = "", ready: str = "", step: str = "pass", end: str = "") -> str:
    """Return a training script with statements of the test in four places."""
    return SCRIPT.format(begin=begin, ready=ready, step=step, end=end)


def build_command(peers: int, *options: str) -> list[str]:
    """Return ``gossip run`` of ``train.py``."""
    return [*CLI, "run", "-n", str(peers), *RUN_OPTIONS, *options, "train.py"]


RUN_OPTIONS = ("--name", "run", "--aggregator", "mean")


class Trial:
    """A run whose launcher works in ``folder``. Its record is in ``runs/run`` there."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        peers: int = 3,
        start: Callable[..., Any] = zygote.Popen,
        environment: dict[str, str] | None = None,
        **streams: Any,
    ) -> None:
        self.folder, self.peers = folder, range(peers)
        self.record, self.log = folder / "runs" / "run", folder / "log"
        self._mark = uuid.uuid4().hex
        self._written = Following(self.record)
        with self.log.open("ab") as log:
            self.launcher: subprocess.Popen[bytes] = start(
                command,
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", MARK: self._mark, **(environment or {})},
                **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, **streams},
            )

    # --- what has been written -------------------------------------------------------------------

    def rows(self, *events: str, **fields: Any) -> list[dict[str, Any]]:
        """Return events with those names and fields."""
        found = self._written.rows("events.jsonl", *events)
        return [row for row in found if fields.items() <= row.items()]

    def latest_round(self, peer: int) -> int:
        """Return the latest round that a peer has applied; -1 before the first."""
        return max((row["round"] for row in self.rows("round", peer=peer)), default=-1)

    def wait(self, what: Callable[[], Any], about: str) -> Any:
        """Return what ``what`` returns, once it is true. Fail when the launcher has ended."""
        until = time.monotonic() + WAIT_S
        while not (found := what()):
            said = f"{about} never came\n{self.log.read_text()[-4000:]}"
            assert time.monotonic() < until, said
            assert self.launcher.poll() is None or what(), said
            time.sleep(0.01)  # between two looks, not instead of one
        return found

    def wait_for_rounds(self, more: int, *peers: int) -> None:
        """Wait until each of those peers (default: all) has applied so many more rounds."""
        named = peers or tuple(self.peers)
        until = max(map(self.latest_round, named)) + more
        self.wait(
            lambda: all(self.latest_round(peer) >= until for peer in named),
            f"round {until} at peers {named}",
        )

    def wait_for_life(self, peer: int, incarnation: int) -> None:
        """Wait until that life of a peer contributes to a round of every other peer."""

        def contributes() -> bool:
            lives = self.rows("spawned", peer=peer, incarnation=incarnation)
            since = lives[0]["t"] if lives else float("inf")
            rounds = [row for row in self.rows("round") if row["t"] > since]
            seen = {row["peer"] for row in rounds if peer in row["contributors"]}
            return seen >= set(self.peers)

        self.wait(contributes, f"a round of all with peer {peer}, incarnation {incarnation}")

    # --- processes -------------------------------------------------------------------------------

    def list_processes(self) -> list[psutil.Process]:
        """Return all that the run has started and that has not ended, its launcher included."""
        found = []
        mark = f"{MARK}={self._mark}".encode()
        for process in psutil.process_iter():
            try:
                environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                if mark in environment and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (OSError, psutil.NoSuchProcess):
                continue  # it has ended
        return found

    def signal_all(self, number: int) -> None:
        for process in self.list_processes():
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def kill_peer(self, peer: int) -> None:
        """Kill the trainer and the node of the latest life of a peer."""
        os.killpg(self.rows("spawned", peer=peer)[-1]["pid"], signal.SIGKILL)

    def wait_for_no_process(self, within_s: float = 10.0) -> None:
        until = time.monotonic() + within_s
        while left := self.list_processes():
            assert time.monotonic() < until, left
            time.sleep(0.02)  # between two looks, not instead of one

    # --- its end ---------------------------------------------------------------------------------

    def plan_end(self) -> int:
        """Return the number of rounds that the run is to have from now on."""
        planned = max(map(self.latest_round, self.peers)) + AHEAD
        new = self.folder / "until.new"
        new.write_text(str(planned))
        new.rename(self.folder / "until")
        return planned

    def finish(self, resumed_at: int = 0) -> dict[str, Any]:
        """Return the summary of a run that ends as planned: all its rounds, no sample twice, equal
        replicas, no process left.

        Args:
            resumed_at: The step of the checkpoint from which the run goes on.
        """
        planned = self.plan_end()
        code = self.launcher.wait(WAIT_S)
        said = self.log.read_text()[-4000:]
        assert code == 0, said
        self.wait_for_no_process()
        # The launcher of several hosts writes the record anew, in the order of time.
        self._written.close()
        self._written = Following(self.record)
        summary: dict[str, Any] = json.loads((self.record / "summary.json").read_text())
        told = (summary["status"], summary["rounds"], summary["finished"])
        wanted = ("finished", planned - resumed_at, [*self.peers])
        assert told == wanted, (planned, summary, said)
        assert summary["replicas_identical"] is True, summary
        assert summary["samples"]["once"] > 0, summary
        assert summary["samples"]["twice"] == 0, summary
        ends = [(self.folder / f"end-{peer}").read_text().split() for peer in self.peers]
        assert {int(rounds) for rounds, _ in ends} == {planned}, (planned, ends)
        assert len({digest for _, digest in ends}) == 1, ends
        return summary

    def close(self) -> None:
        self.signal_all(signal.SIGKILL)
        self.launcher.wait()
        self._written.close()


@contextmanager
def start_trial(
    folder: Path, command: Sequence[str], text: str | None = None, **options: Any
) -> Iterator[Trial]:
    """Start a run of a script, by default ``make_script()``; kill what is left of it at the end."""
    (folder / "train.py").write_text(text or make_script())
    run = Trial(folder, command, **options)
    try:
        yield run
    finally:
        run.close()
