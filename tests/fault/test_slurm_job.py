"""A real Slurm with two nodes: its tasks are peers, a node dies, and the job ends well."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from digits_until import SCRIPT
from slurm_rig import Slurm, slurm, why_no_slurm

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(420),
    pytest.mark.skipif(bool(why := why_no_slurm()), reason=why),
]

WAIT_S = 150.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Slurm]:
    (tmp_path / "train.py").write_text(SCRIPT)
    with slurm(tmp_path / "slurm", nodes=2) as made:
        yield made


def submit(cluster: Slurm, folder: Path, *words: str) -> tuple[str, Path]:
    """Number and run folder of a job."""
    done = cluster.command(
        sys.executable, "-m", "gossip.launch.cli", "slurm", "--submit", *words, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    number = done.stdout.split(":")[0].removeprefix("job ")
    assert f"runs/slurm-{number}, output in slurm-{number}.out" in done.stdout
    return number, folder / "runs" / f"slurm-{number}"


def events(run: Path, peer: int, name: str) -> list[dict[str, Any]]:
    path = run / f"events-{peer}.jsonl"
    text = path.read_text() if path.exists() else ""
    rows = [json.loads(line) for line in text.splitlines(keepends=True)[1:] if line.endswith("\n")]
    return [row for row in rows if row["event"] == name]


def now(run: Path, peer: int) -> int:
    return max([row["round"] for row in events(run, peer, "round")], default=-1)


def wait(what: Callable[[], Any], about: str, *outputs: Path) -> None:
    until = time.monotonic() + WAIT_S
    while not what():
        if time.monotonic() > until:
            pytest.fail(
                f"{about} never came\n"
                + "\n".join(path.read_text()[-4000:] for path in outputs if path.exists())
            )
        time.sleep(0.1)  # between two looks, not instead of one


def test_a_job_that_loses_a_node_trains_on_and_ends_with_0(cluster: Slurm, tmp_path: Path) -> None:
    number, run = submit(
        cluster,
        tmp_path,
        *shlex.split("-N 2 --per-node 2 --time 0:30:00 --"),
        *shlex.split("--aggregator mean --quorum available train.py"),
    )
    output = tmp_path / f"slurm-{number}.out"
    wait(lambda: all(now(run, peer) >= 10 for peer in range(4)), "round 10 of four peers", output)
    seeds = [
        json.loads((run / "seeds" / f"{peer}.addr").read_text())["control"] for peer in range(4)
    ]
    addresses = [cluster.net.addresses[node] for node in (1, 1, 2, 2)]
    assert [seed.rpartition(":")[0] for seed in seeds] == [
        f"tcp://{address}" for address in addresses
    ]
    assert (run / "swarm.key").stat().st_mode & 0o077 == 0
    assert all(
        json.loads((run / "seeds" / f"{peer}.addr").read_text())["key"] for peer in range(4)
    ), "without keys"
    cluster.kill_node(2)
    lost_at = now(run, 0)
    wait(
        lambda: all(now(run, peer) >= lost_at + 100 for peer in (0, 1)),
        "a hundred rounds of those who are left",
        output,
    )
    # Slurm hears of its node after ten seconds, and then would end the job.
    wait(
        lambda: "down" in cluster.command("sinfo", "-h", "-n", "n2", "-o", "%t").stdout,
        "the end of node n2",
        output,
    )
    heard_at = now(run, 0)
    wait(
        lambda: now(run, 0) >= heard_at + 50,
        "fifty rounds after Slurm has given up the node",
        output,
    )
    (run / "until.new").write_text(str(now(run, 0) + 50))
    (run / "until.new").rename(run / "until")
    wait(
        lambda: cluster.job(number)["JobState"] not in ("RUNNING", "COMPLETING"),
        "the end of the job",
        output,
    )
    job, said = cluster.job(number), output.read_text()
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), said[-4000:]
    assert "finished: 0, 1; not: 2, 3" in said
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["exit_code"], summary["finished"], summary["rounds_lost"]) == (0, [0, 1], 0)
    assert summary["replicas_identical"] is True
    accuracies = [float(line.split()[-1]) for line in said.splitlines() if "| accuracy" in line]
    assert len(accuracies) == 2
    assert min(accuracies) > 0.85


def test_before_its_time_is_up_a_jobs_peers_leave_politely(cluster: Slurm, tmp_path: Path) -> None:
    """Without the help of ``gossip slurm``: any srun with several tasks does."""
    run = f"{sys.executable} -m gossip.launch.cli run --aggregator mean train.py"
    text = f"#!/bin/bash\nsrun --kill-on-bad-exit=0 {run}\necho srun $?\nexit 0\n"
    options = ["--nodes=1", "--ntasks=2", "--output=out", "--parsable"]
    number = cluster.command("sbatch", *options, cwd=tmp_path, text=text).stdout.strip()
    run_dir, output = tmp_path / "runs" / f"slurm-{number}.0", tmp_path / "out"
    wait(
        lambda: all(now(run_dir, peer) >= 10 for peer in range(2)), "round 10 of two peers", output
    )
    # As --signal=TERM@90 does, without the wait.
    assert cluster.command("scancel", "--signal=TERM", number).returncode == 0
    wait(lambda: cluster.job(number)["JobState"] == "COMPLETED", "the end of the job", output)
    said = output.read_text()
    assert "srun 143" in said
    halted = [row for peer in (0, 1) for row in events(run_dir, peer, "halted")]
    assert len(halted) == 2, said
    exited = [row["how"] for peer in (0, 1) for row in events(run_dir, peer, "exited")]
    assert exited == ["exit code 143", "exit code 143"], said
    assert os.listdir(run_dir / "seeds"), "nobody came"
