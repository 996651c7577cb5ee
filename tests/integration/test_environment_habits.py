"""What a user's folders and processes do to a run: files under the names of other modules, worker
processes that import the script again, children of a peer, torch.distributed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import zygote

from gossip.run import read_lines

CLI = [sys.executable, "-P", "-m", "gossip.launch.cli"]
"""As the command does, it leaves the working directory out of the path."""
TRAIN = """
import torch, gossip
peer = gossip.init()
model = torch.nn.Linear(4, 1)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
while peer.round < 3:
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
"""
RULE = """
import my_options
from gossip.aggregators import rule

@rule
def scaled(updates, *, f=0):
    return updates.mean(dim=0) * my_options.SCALE
"""
PLANTED = """
import os
open({mark!r}, "a").write(__file__ + "\\n")
raise ImportError("a file of the working directory was imported")
"""
CHILDREN = """
import multiprocessing, os, subprocess, sys
import gossip

def join(where):
    try:
        gossip.init()
    except gossip.errors.ConfigError as error:
        print(where, "refused:", error, flush=True)
    else:
        print(where, "joined", flush=True)

def start(method, where):
    child = multiprocessing.get_context(method).Process(target=join, args=(where,))
    child.start()
    child.join()

if __name__ == "__main__":
    start("fork", "early")
    peer = gossip.init()
    start("fork", "forked")
    start("spawn", "spawned")
    subprocess.run([sys.executable, "-c", "import train; train.join('another script')"])
    alone = {name: text for name, text in os.environ.items() if name != "GOSSIP_CONFIG"}
    words = ["-c", "import train; train.join('a script alone')"]
    subprocess.run([sys.executable, *words], env=alone)
"""
GROUP = """
import os, torch, gossip
if int(os.environ.get("RANK", -1)) != -1:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    there = f"file://{os.getcwd()}/there"  # a port that is free now may not be so then
    torch.distributed.init_process_group("gloo", init_method=there, rank=rank, world_size=size)
peer = gossip.init()
print("trains", flush=True)
"""


def run(folder: Path, *words: str, start: Any = subprocess.run) -> Any:
    command = [*CLI, "run", "--run-dir", str(folder / "out"), *words]
    return start(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def test_files_of_the_working_directory_hide_no_module_from_any_process(tmp_path: Path) -> None:
    """The rule of the working directory is found there, by the launcher, its helpers and nodes."""
    scripts, here, mark = tmp_path / "scripts", tmp_path / "here", tmp_path / "mark"
    scripts.mkdir()
    here.mkdir()
    (scripts / "train.py").write_text(TRAIN)
    for name in ("subprocess", "queue", "random", "types", "json", "torch", "zmq"):
        (here / f"{name}.py").write_text(PLANTED.format(mark=str(mark)))
    (here / "my_rules.py").write_text(RULE)
    (here / "my_options.py").write_text("SCALE = 0.5\n")
    words = ("-n", "2", "--aggregator", "my_rules:scaled", str(scripts / "train.py"))
    done = run(here, *words)
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0, done.stderr
    assert json.loads((here / "out" / "summary.json").read_text())["rounds"] == 3


def test_files_beside_the_script_are_imported_as_plain_python_imports_them(tmp_path: Path) -> None:
    """The process that forks peers has imported Python's own module of that name already."""
    (tmp_path / "calendar.py").write_text("KEY = 'a key of mine'\n")
    (tmp_path / "train.py").write_text(f"import calendar\nprint(calendar.KEY)\n{TRAIN}")
    done = run(tmp_path, "-n", "1", "train.py", start=zygote.run)
    assert done.returncode == 0, done.stderr
    assert "a key of mine" in done.stdout + done.stderr


def test_a_file_beside_the_script_that_breaks_torch_is_named(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("def draw(): ...\n")
    (tmp_path / "train.py").write_text(TRAIN)
    done = run(tmp_path, "-n", "1", "train.py", start=zygote.run)
    assert done.returncode != 0
    assert f"hint: rename {tmp_path / 'random.py'}" in done.stdout + done.stderr


def test_a_file_named_gossip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gossip.py").touch()
    (tmp_path / "train.py").write_text(TRAIN)
    done = run(tmp_path, "-n", "1", "train.py", start=zygote.run)
    assert done.returncode == 2
    assert str(tmp_path / "gossip.py") in done.stderr
    assert "hint: rename" in done.stderr
    assert not (tmp_path / "out").exists()


def test_children_of_a_peer_are_not_the_peer(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CHILDREN)
    done = run(tmp_path, "-n", "1", "train.py", start=zygote.run)
    assert done.returncode == 0, done.stderr
    said = [line[3:] for line in (done.stdout + done.stderr).splitlines() if line[:2] == "0|"]
    refused = [line.partition(" refused")[0] for line in said if "refused" in line]
    assert refused == ["early", "forked", "spawned", "another script"]
    assert [line for line in said if "joined" in line] == ["a script alone joined"]
    events = list(read_lines(tmp_path / "out" / "events.jsonl"))
    assert not [row for row in events if row.get("incarnation", 0) > 0], "nobody came twice"


def test_a_branch_for_ddp_under_torchrun_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GROUP)
    ranks = [
        zygote.Popen(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29500",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        out, err = rank.communicate(timeout=200)
        assert rank.returncode == 1
        assert "trains" not in out
        assert "hint: remove init_process_group" in err
    assert not (tmp_path / "runs").exists(), "no peer began a run"
