"""Newcomers behind a link that carries less than the rounds of the others, on hosts of their own:
the others never wait."""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zygote
from effort import only_long
from following import Following
from hosts import Hosts, hosts, why_no_hosts

pytestmark = [pytest.mark.timeout(240), pytest.mark.skipif(bool(why := why_no_hosts()), reason=why)]

WAIT_S = 100.0
NUMBERS, MBIT_S = 400_000, 5
"""The result of a round travels for 2.6 s over the narrow link,
the states of both newcomers for 5.2 s."""
SCRIPT = f"""
import time
import gossip
peer = gossip.init()
import torch
torch.manual_seed(0)
model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones({NUMBERS}))])
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
while not (peer.run_dir / "end").exists():
    optimizer.zero_grad(set_to_none=False)
    model[0].sum().backward()
    time.sleep(0.3)
    optimizer.step()
peer.close()
"""


class NarrowRun:
    """Two peers on the first host, and two that join on the second."""

    def __init__(self, folder: Path, pair: Hosts) -> None:
        self.folder, self.out = folder, folder / "runs" / "out"
        (folder / "train.py").write_text(SCRIPT)
        self._pair = pair
        self._launchers: list[subprocess.Popen[bytes]] = []
        self._launch(
            "run",
            "-n",
            "2",
            "--room",
            "4",
            "--aggregator",
            "mean",
            "--round-timeout",
            "60",
            "--run-dir",
            "runs/out",
        )
        self.written = Following(self.out)

    def join(self) -> None:
        self._launch("join", "-n", "2", "out")

    def _launch(self, command: str, *words: str) -> None:
        number = 0 if command == "run" else 1
        listen = {"GOSSIP_INSECURE": "true", "GOSSIP_LISTEN": self._pair.addresses[number]}
        environment = {**os.environ, **listen, **self._pair.on(number)}
        script = ["train.py"] if command == "run" else []
        started = [sys.executable, "-m", "gossip.launch.cli", command, "--quiet", *words, *script]
        with (self.folder / "log").open("ab") as log:
            self._launchers.append(
                zygote.Popen(started, cwd=self.folder, env=environment, stdout=log, stderr=log)
            )

    def wait_for(self, event: str, peers: set[int], count: int) -> None:
        """Until there are so many of these events of each of the peers."""

        def seen() -> bool:
            rows = [row["peer"] for row in self.written.rows("events.jsonl", event)]
            return all(rows.count(peer) >= count for peer in peers)

        about = f"{count} times {event} of {sorted(peers)}"
        self.written.until(
            seen, about, WAIT_S, self._launchers[0].pid, (self.folder / "log").read_text
        )

    def ended_at(self, peer: int) -> list[float]:
        """When each round of this peer ended, in its clock."""
        return [
            row["t"] for row in self.written.rows("events.jsonl", "round") if row["peer"] == peer
        ]

    def close(self) -> None:
        (self.out / "end").touch()
        for launcher in self._launchers:
            launcher.terminate()
            launcher.wait(WAIT_S)
        self.written.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[NarrowRun]:
    with hosts(2) as pair:
        pair.narrow(1, MBIT_S)
        run = NarrowRun(tmp_path, pair)
        yield run
        run.close()


@only_long
def test_nobody_waits_for_newcomers_whose_link_carries_less_than_the_rounds(run: NarrowRun) -> None:
    run.wait_for("round", {0, 1}, 5)
    run.join()
    run.wait_for("restored", {2, 3}, 1)
    run.wait_for("round", {0, 1}, len(run.ended_at(0)) + 10)
    ends = run.ended_at(0)
    took = [after - before for before, after in itertools.pairwise(ends)]
    assert max(took) < max(5.0, 6 * statistics.median(took)), took
    handed_on = [row["reason"] for row in run.written.rows("events.jsonl", "attempt")]
    # A newcomer that connects while the link is full of another's state may suspect somebody until
    # its first words are through. Nobody waits for it then.
    assert len(handed_on) <= 1, (
        f"newcomers whose link is full take late answers for none: {handed_on}"
    )
    assert [why for why in handed_on if not why.endswith("is skipped: suspect")] == []
