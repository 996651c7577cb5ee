"""``gossip run`` with real peers. The first starts as a shell starts it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import zygote
from command import CLI
from effort import effort
from following import following

from gossip.launch.report.explain import explain
from gossip.launch.report.top import TopView
from gossip.run.telemetry import read_lines

SCRIPT = """
import sys
import torch
import gossip

peer = gossip.init()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = peer.prepare(model, optimizer)
rounds = int(sys.argv[1])
while peer.round < rounds:
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    if "--raise" in sys.argv and peer.round == 3:
        raise ValueError("the user's own mistake")
    peer.log(loss=loss.item())
    optimizer.step()
print("arguments", sys.argv[1:], flush=True)
peer.close()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def command(*words: str) -> list[str]:
    return [*CLI, "run", "-n", "2", "--aggregator", "mean", "--run-dir", "out", *words]


def test_a_script_trains_with_its_own_arguments_and_leaves_a_run_folder(folder: Path) -> None:
    words = command("--json", "train.py", "20", "-n", "7", "--help", "--json")
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["status"], summary["rounds"], summary["peers"], summary["rounds_lost"]) == (
        "finished",
        20,
        2,
        0,
    )
    assert summary["replicas_identical"] is True
    assert summary["finished"] == [0, 1]
    assert summary["bytes_sent"] > 0
    assert "0| arguments ['20', '-n', '7', '--help', '--json']" in done.stderr
    out = folder / "out"
    names = (
        "config.toml",
        "environment.json",
        "commits.jsonl",
        "events.jsonl",
        "logbook.md",
        "summary.json",
        "peer-1/metrics.jsonl",
    )
    assert [name for name in names if not (out / name).is_file()] == []
    assert json.loads((out / "summary.json").read_text()) == summary
    again = zygote.run(words, cwd=folder, capture_output=True, text=True, timeout=100)
    assert again.returncode == 2
    assert "already exists" in again.stderr
    _is_shown_by_top_and_explained(out, rounds=20)


def _is_shown_by_top_and_explained(run: Path, rounds: int) -> None:
    """What a real run has written is what these read."""
    told = TopView(run).to_json()
    assert (told["state"], told["over"], told["step"]) == ("ended: finished", True, rounds)
    for peer in told["peers"]:
        assert (peer["state"], peer["step"], peer["participation"]) == ("done", rounds, 1.0)
        assert peer["sent_bytes"] > 0
        assert peer["memory"] > 50 << 20
    assert sum(peer["served"] for peer in told["peers"]) == rounds
    assert told["broken"] == []
    text = "\n".join(explain(run, None))
    assert f": {rounds} rounds in " in text
    assert "; ended: finished." in text
    assert re.search(r"A round took [\d.]+ m?s in the median", text)
    assert re.search(r"The rule took [\d.]+ m?s\.", text)
    assert "served by peer" in "\n".join(explain(run, "@7"))
    assert "Its update is in 20 of 20 rounds" in "\n".join(explain(run, "1"))


def test_a_module_of_a_package_trains_as_python_would_run_it(folder: Path) -> None:
    (folder / "lab").mkdir()
    (folder / "lab" / "__init__.py").touch()
    (folder / "lab" / "rounds.py").write_text("AT_MOST = 5\n")
    own = SCRIPT.replace("import sys\n", "import sys\nfrom .rounds import AT_MOST\n")
    (folder / "lab" / "train.py").write_text(own.replace("int(sys.argv[1])", "AT_MOST"))
    words = command("--json", "-m", "lab.train", "20", "-m", "-n", "7")
    done = zygote.run(words, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["status"], summary["rounds"], summary["peers"]) == ("finished", 5, 2)
    assert "0| arguments ['20', '-m', '-n', '7']" in done.stderr
    assert json.loads((folder / "out" / "command.json").read_text())["command"][2:] == [
        *("-m", "lab.train", "20", "-m", "-n", "7")
    ]


def test_peers_train_and_are_joined_over_ipv6_alone(folder: Path) -> None:
    with socket.socket(socket.AF_INET6) as end:
        try:
            end.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"this machine has no ::1: {error}")
    words = command("--keys", "--room", "3", "train.py", "1000000000")
    processes = [zygote.Popen(words, cwd=folder, env={**os.environ, "GOSSIP_HOST": "::1"})]
    try:
        with following(folder / "out") as written:
            join_servers = written.until(
                lambda: written.rows("events.jsonl", "join_server"), "a door", 100, processes[0].pid
            )
            assert join_servers[0]["address"].startswith("[::1]:")
            join = [*CLI, "join", "--key", "out/swarm.key", "--run-dir", "third"]
            there = (join_servers[0]["address"], "--", "train.py", "1000000000")
            processes.append(zygote.Popen([*join, *there], cwd=folder))
            of_all = lambda: [  # noqa: E731
                row
                for row in written.rows("events.jsonl", "round")
                if row["contributors"] == [0, 1, 2]
            ]
            written.until(of_all, "a round of all three", 100, processes[0].pid)
        for process in processes:
            process.send_signal(signal.SIGINT)
        assert [process.wait(60) for process in processes] == [130, 130]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    rows = [row for run in ("out", "third") for row in read_lines(folder / run / "events.jsonl")]
    at = {row["peer"]: row["control"] for row in rows if row.get("event") == "started"}
    assert sorted(at) == [0, 1, 2]
    assert all(address.startswith("tcp://[::1]:") for address in at.values()), at


LATE = """
import os, time

if os.environ["GOSSIP_PEER"] == "2":
    open("begun").read()  # until somebody writes


def tell(peer):
    time.sleep(0.03)
    if peer.id == 0 and peer.round == 3:
        open("begun", "w").close()
"""


def test_enough_peers_begin_without_one_that_comes_later_and_is_taken_in(folder: Path) -> None:
    (folder / "train.py").write_text(
        LATE + SCRIPT.replace("    peer.log(", "    tell(peer)\n    peer.log(")
    )
    os.mkfifo(folder / "begun")
    words = command("-n", "3", "--min-peers", "2", "--patience", "0.5", "train.py", "150")
    done = zygote.run(words, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (folder / "out" / "events.jsonl").read_text().splitlines()]
    assert {row["peer"]: row["present"] for row in rows if row.get("event") == "ready"} == {
        0: [0, 1],
        1: [0, 1],
    }
    assert json.loads((folder / "out" / "summary.json").read_text())["finished"] == [0, 1, 2]


@pytest.mark.parametrize(
    "closed",
    effort(["| head -1", ">&- 2>&- <&-"], ["| head -1", ">&-", ">&- 2>&- <&-", "> /dev/full"]),
)
def test_a_run_without_a_reader_of_its_output_comes_to_its_end(folder: Path, closed: str) -> None:
    line = f"({' '.join(command('train.py', '20'))}; echo $? > code) {closed}"
    subprocess.run(["bash", "-c", line], cwd=folder, check=False, timeout=60)
    lost = "head" in closed or "full" in closed
    told = (folder / "out" / "screen.log").read_text() if lost else ""
    assert (folder / "code").read_text().strip() == "0"
    assert json.loads((folder / "out" / "summary.json").read_text())["status"] == "finished"
    assert ("arguments ['20']" in told) == lost
    assert "Traceback" not in (folder / "out" / "peer-0" / "out.log").read_text()


def test_a_run_ends_where_the_parent_ignores_the_end_of_children(folder: Path) -> None:
    """As some job runners do. The kernel forgot how each peer had ended, and the run hung."""
    line = f"trap '' CHLD; exec {' '.join(command('train.py', '20', '--raise'))}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr.replace("| Traceback", "")
