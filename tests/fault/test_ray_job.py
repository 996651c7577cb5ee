"""A real Ray of two nodes: its actors are peers, one is killed and comes back, a node dies, and the
others come to the end."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from digits_until import SCRIPT
from hosts import Hosts, hosts, why_no_hosts

why = (
    "" if importlib.util.find_spec("ray") else "no Ray (the extra ray: make test-hosts installs it)"
)
pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(560),
    pytest.mark.skipif(bool(why := why or why_no_hosts()), reason=why),
]

WAIT_S = 200.0


@pytest.fixture
def short() -> Iterator[str]:
    """A folder whose path leaves room for the names of Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield folder


@pytest.fixture
def pair() -> Iterator[Hosts]:
    """Two hosts, with whatever ran on them gone afterwards:
    Ray's daemons leave the tree of who started them."""
    with hosts(2) as net:
        try:
            yield net
        finally:
            for number in (0, 1):
                net.kill_all(number)


def start(net: Hosts, number: int, cpus: int, *words: str) -> None:
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        *words,
        f"--node-ip-address={net.addresses[number]}",
    ]
    more = [f"--num-cpus={cpus}", "--disable-usage-stats", "--object-store-memory=100000000"]
    started: dict[str, Any] = {
        "capture_output": True,
        "text": True,
        "env": environment(),
        "start_new_session": True,
    }
    done = subprocess.run([*net.inside(number), *command, *more], check=False, **started)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def environment() -> dict[str, str]:
    # A busy machine takes longer to start a node than Ray waits for it.
    return {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",  # with Ray 2.60 a second node would lack the token
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "180",
    }


def now(run: Path, peer: int) -> int:
    path = run / f"ray-{peer}" / "events.jsonl"
    text = path.read_text() if path.exists() else ""
    return max(
        [int(found) for found in re.findall(r'"event":"round".*?"round":(\d+)', text)], default=-1
    )


def test_an_actor_that_is_killed_comes_back_and_a_lost_node_stops_nobody(
    pair: Hosts, tmp_path: Path, short: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    address = f"{pair.addresses[0]}:6399"
    start(pair, 0, 2, "--head", "--port=6399", "--include-dashboard=false", f"--temp-dir={short}")
    start(pair, 1, 1, f"--address={address}")
    words = shlex.split(
        f"ray -n 3 --address {address} -- --aggregator mean --run-dir out train.py {tmp_path}/until"
    )
    run, output = tmp_path / "out", tmp_path / "output"
    with output.open("wb") as out:
        driver = subprocess.Popen(
            [*pair.inside(0), sys.executable, "-m", "gossip.launch.cli", *words],
            cwd=tmp_path,
            env=environment(),
            stdout=out,
            stderr=out,
        )

    def wait(what: Callable[[], Any], about: str) -> None:
        until = time.monotonic() + WAIT_S
        while not what():
            if driver.poll() is not None or time.monotonic() > until:
                pytest.fail(f"{about} never came\n{output.read_text()[-5000:]}")
            time.sleep(0.1)  # between two looks, not instead of one

    try:
        wait(lambda: all(now(run, peer) >= 10 for peer in range(3)), "round 10 of three peers")
        seeds = {
            peer: json.loads((run / f"ray-{peer}" / "seeds" / f"{peer}.addr").read_text())
            for peer in range(3)
        }
        places = {
            peer: seed["control"].removeprefix("tcp://").rpartition(":")[0]
            for peer, seed in seeds.items()
        }
        lost = [peer for peer, place in places.items() if place == pair.addresses[1]]
        assert len(lost) == 1, places
        assert all(seed["key"] for seed in seeds.values()), "without keys"
        # One on the head's node: the driver, and what it is told of, live there, too.
        struck = next(peer for peer, place in places.items() if place == pair.addresses[0])
        told = re.search(rf"\+ peer {struck} at \S+, pid (\d+)", output.read_text())
        psutil.Process(int(told[1])).kill()
        wait(
            lambda: f"+ peer {struck}, incarnation 1 at" in output.read_text(),
            "another life of the actor",
        )
        at = max(now(run, peer) for peer in range(3))
        wait(
            lambda: all(now(run, peer) >= at + 50 for peer in range(3)),
            "fifty rounds of all three, the returned one among them",
        )
        pair.cut(1)
        pair.kill_all(1)
        others = [peer for peer in range(3) if peer not in lost]
        at = max(now(run, peer) for peer in range(3))
        wait(
            lambda: all(now(run, peer) >= at + 100 for peer in others),
            "a hundred rounds of those who are left",
        )
        (tmp_path / "until.new").write_text(str(max(now(run, peer) for peer in range(3)) + 50))
        (tmp_path / "until.new").rename(tmp_path / "until")
        assert driver.wait(WAIT_S) == 0, output.read_text()[-5000:]
    finally:
        driver.kill()
        driver.wait()
    said = output.read_text()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["exit_code"] == 0, said[-3000:]
    assert summary["finished"] == others, said[-3000:]
    assert [(row["peer"], row["incarnation"]) for row in summary["rejoins"]] == [(struck, 1)]
    assert f"x peers {lost[0]} are lost; the others have finished" in said
    assert summary["rounds_lost"] == 0
    accuracies = [float(found) for found in re.findall(r"\| accuracy (\S+)", said)]
    assert len(accuracies) == 2, said[-3000:]
    assert min(accuracies) > 0.85
