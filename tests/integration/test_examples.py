"""What README.md and examples/ promise, as a user would try it: in a folder of one's own."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zygote
from command import gossip
from effort import LONG

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = "127.0.0.1"
EXAMPLES = ROOT / "examples"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder: the two examples, and an ``aggregators.py`` that has
    nothing to do with us."""
    for name in ("train.py", "my_rules.py"):
        shutil.copy(EXAMPLES / name, tmp_path / name)
    (tmp_path / "aggregators.py").write_text(
        "raise RuntimeError('nobody has asked for this file')\n"
    )
    return tmp_path


def run(
    project: Path, *command: str, start: Callable[..., Any] = subprocess.run
) -> subprocess.CompletedProcess[str]:
    done = start(command, cwd=project, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def accuracies(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"accuracy (\d\.\d+)", text)]


def test_the_example_adds_five_lines() -> None:
    lines = (EXAMPLES / "train.py").read_text().split('"""')[2].splitlines()
    ours = [line for line in lines if re.search(r"\bgossip\.|\bpeer\.|import gossip", line)]
    assert len(ours) == 5
    assert all("# (gossip)" in line for line in ours)


def test_the_readme_shows_the_rule_of_the_examples() -> None:
    block = re.search(
        r"```python\n# my_rules.py.*?\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    shown = [line for line in block[1].splitlines() if line.strip()]
    written = [
        line
        for line in (EXAMPLES / "my_rules.py").read_text().split('"""', 2)[2].splitlines()
        if line.strip()
    ]
    assert shown == written
    assert len(shown) <= 10


def test_the_example_trains_in_a_swarm_with_a_rule_from_a_file_beside_an_unrelated_aggregators_py(
    project: Path,
) -> None:
    words = "run -n 3 --run-dir out --aggregator my_rules.py:midpoint train.py --lr 0.05 --epochs 2"

    done = gossip(project, *words.split())

    seen = accuracies(done.stdout + done.stderr)
    assert len(seen) == 3
    assert len(set(seen)) == 1, "replicas differ"
    summary = json.loads((project / "out" / "summary.json").read_text())
    assert (summary["status"], summary["finished"], summary["rounds_lost"]) == (
        "finished",
        [0, 1, 2],
        0,
    )
    assert summary["aggregator"] == "my_rules.py:midpoint"
    assert summary["samples"]["never"] == 0
    assert summary["epochs"][0]["once"] == 1437
    assert "epoch 0: 1437 samples used once, 0 twice, in" in done.stderr + done.stdout


def test_the_script_of_ddp_goes_on_as_one_of_gossip_after_a_kill(tmp_path: Path) -> None:
    """Its schedule comes out as planned, and a second start has nothing left to do."""
    words = "run -n 3 --resume auto --deterministic --run-dir"
    command = words.split()
    script = [str(EXAMPLES / "from_ddp.py"), "--epochs", "2"]

    first = gossip(tmp_path, *command, "first", *script)
    again = gossip(tmp_path, *command, "again", *script)

    assert "the run starts from the beginning" in first.stdout + first.stderr
    seen = accuracies(first.stdout + first.stderr)
    assert len(seen) == 2, "one peer says the mean of all"
    summary = json.loads((tmp_path / "first" / "summary.json").read_text())
    steps, operations = 2 * 15, 2
    assert (summary["rounds"], summary["finished"]) == (steps + operations, [0, 1, 2])
    assert (tmp_path / "ckpt" / "step-000000030" / "model.safetensors").is_file()
    assert "goes on from step 30" in again.stdout + again.stderr
    assert accuracies(again.stdout + again.stderr) == []


def test_a_script_of_ddp_says_what_to_read_and_runs_under_torchrun(tmp_path: Path) -> None:
    script = [str(EXAMPLES / "ddp.py"), "--epochs", "1"]
    done = gossip(tmp_path, "run", "-n", "2", *script, code=None)
    assert done.returncode != 0
    assert done.stderr.count("docs/from_ddp.md") + done.stdout.count("docs/from_ddp.md") == 1
    assert len(accuracies(as_torchrun_runs(tmp_path, *script))) == 1


def as_torchrun_runs(folder: Path, *script: str) -> str:
    """What a script of two ranks says; in `make test` they have the variables of torchrun without
    the seconds in which each imports torch."""
    if LONG:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        return run(folder, *torchrun, *script).stdout
    with socket.socket() as free:
        # Below the ports that the system gives to others meanwhile.
        port = next(str(each) for each in range(20_000, 30_000) if free.connect_ex((HERE, each)))
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": HERE}
    ranks = [
        zygote.Popen(
            [sys.executable, *script],
            cwd=folder,
            env={**os.environ, **place, "MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    said = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return "".join(out for out, _ in said)
