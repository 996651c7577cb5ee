"""``gossip hosts`` with real agents and an ssh without a network: what is sent arrives; where one
host fails nothing starts."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zygote
from conftest import MARK, marked

from gossip.launch.guardian import TOKEN_VARIABLE
from gossip.launch.ssh import hostfacts
from gossip.topologies.weights import read_weights
from gossip.transport.addresses import is_loopback

FAKE_SSH = Path(__file__).resolve().parent.parent / "fake_ssh.py"
# Ends well, and has no need of a swarm.
SCRIPT = """
import os, sys
word = os.environ["A_SECRET"]
def others():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield open(f"/proc/{pid}/cmdline", "rb").read()
        except OSError:
            pass
seen = sum(word.encode() in command for command in others())
folder = os.path.basename(os.getcwd())
print(f"{word[::-1]} in {folder}, seen {seen} times, {sys.argv[1:]}", flush=True)
"""


def gossip(
    folder: Path, *words: str, start: Callable[..., Any] = zygote.run
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "gossip.launch.cli",
        "hosts",
        "--ssh",
        f"{sys.executable} {FAKE_SSH}",
        *words,
    ]
    environment = {**os.environ, "GOSSIP_WARM": "false", "A_SECRET": "tell-nobody"}
    done: subprocess.CompletedProcess[str] = start(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("here", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(SCRIPT)
    (tmp_path / "hosts.txt").write_text(
        f"a slots=2  # in the folder that we are in\nme@b workdir={tmp_path / 'b'}\n"
    )
    return tmp_path / "here"


def test_what_is_sent_arrives_and_stands_in_no_command_line(folder: Path) -> None:
    words = shlex.split(
        "-H ../hosts.txt --name x --env A_SECRET --env TYPED=hunter2 --aggregator mean --quiet"
        " -- train.py --lr 'a b'"
    )
    done = gossip(folder, *words, start=subprocess.run)
    assert done.returncode == 0, done.stderr
    for prefix, where in (("[0@a]", "here"), ("[1@a]", "here"), ("[2@b]", "b")):
        assert f"{prefix} ydobon-llet in {where}, seen 0 times, ['--lr', 'a b']" in done.stdout
    run = folder / "runs" / "x"
    assert "ydobon-llet in b" in (run / "peer-2" / "out.log").read_text(), (
        "what a host has logged is fetched"
    )
    assert json.loads((run / "summary.json").read_text())["finished"] == [0, 1, 2]
    assert json.loads((run / "hosts.json").read_text())["hosts"]["b"]["ssh"] == "me@b"
    written = "".join(path.read_text() for path in folder.parent.rglob("*") if path.is_file())
    assert "tell-nobody" not in written
    assert "hunter2" not in written
    assert '"TYPED=(not shown)"' in (run / "environment.json").read_text()


def test_one_host_that_cannot_be_reached_stops_all_with_a_hint(folder: Path) -> None:
    done = gossip(folder, "-H", "a,denied", "--name", "x", "--", "train.py")
    assert done.returncode == 4
    assert done.stderr == (
        "error: ssh denied: Permission denied (publickey). gossip never asks for passwords\n"
        "  hint: ssh denied true     must work without typing; then run this again. a is fine, "
        "nothing was started\n"
    )
    assert "ok    a" in done.stdout
    assert not (folder / "runs").exists()


def test_check_only_looks(folder: Path) -> None:
    done = gossip(folder, "-H", "../hosts.txt", "--check", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [
        (line["level"] != "fail", line["about"])
        for line in report["lines"]
        if line["level"] == "ok" or " " in line["about"]
    ]
    assert set(report["addresses"]) == {"a", "b"}
    assert len(set(report["addresses"].values())) == 1, "they are one machine"
    assert "servers" not in {line["about"] for line in report["lines"]}, (
        "so none is slower than another"
    )
    assert not (folder / "runs").exists()


# A way out of a known speed: it is measured, but on a busy machine two that are alike
# may look unlike.
RATED = """
import sys
if "gossip.launch.ssh.agent" in sys.orig_argv:
    import gossip.launch.ssh.pairs as pairs
    real = pairs.measure
    async def measure(*where):
        return {{name: {rate} if each > 0 else each for name, each in (await real(*where)).items()}}
    pairs.measure = measure
"""


def rated_python(where: Path, rate: float) -> Path:
    """An interpreter whose agents find ``rate`` Mbit/s wherever they send."""
    where.mkdir()
    (where / "sitecustomize.py").write_text(RATED.format(rate=rate))
    python = where / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={where}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_who_is_seen_to_be_slow_before_the_start_serves_less_often(folder: Path) -> None:
    beyond = [
        address
        for address in hostfacts.addresses()
        if not is_loopback(address) and ":" not in address
    ]
    if not beyond:
        pytest.skip("this machine has no address but loopback, where all hosts are taken for one")
    fast, slow = (
        rated_python(folder.parent / "fast", 900.0),
        rated_python(folder.parent / "slow", 45.0),
    )
    rows = [
        f"{name} address={beyond[0]} python={each}"
        for name, each in (("a slots=2", fast), ("b", slow), ("c", fast))
    ]
    (folder.parent / "mixed.txt").write_text("\n".join(rows))
    done = gossip(
        folder,
        *shlex.split("-H ../mixed.txt --name x --env A_SECRET --aggregator mean -- train.py"),
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if " servers " in line)
    assert re.fullmatch(
        r"ok +servers +each peer of a, c serves 8 times as often as each of b \(900 / 45 Mbit/s\)",
        line,
    ), line
    settings = tomllib.loads((folder / "runs" / "x" / "config.toml").read_text())["server_weights"]
    assert read_weights(settings).keys() == {0, 1, 3}, "all peers but that of the slow host"
    assert f"x: 4 peers, rolling:weights={settings}, mean" in done.stdout
    assert (
        json.loads((folder / "runs" / "x" / "hosts" / "b" / "config.json").read_text())[
            "server_weights"
        ]
        == settings
    )


# As a summary of a run of days: whoever works that out when nobody is there any more
# would be left behind.
NEVER_DONE = """
import sys
if "gossip.launch.ssh.agent" in sys.orig_argv:
    import time
    import gossip.launch.local.runs as runs
    runs.conclude = lambda *_: time.sleep(3600)
"""


def test_agents_whose_launcher_is_killed_leave_with_lines_unwritten(folder: Path) -> None:
    (folder.parent / "sitecustomize.py").write_text(NEVER_DONE)
    for name in ("here", "b"):
        (folder.parent / name / "train.py").write_text(
            "import time\nprint('up', flush=True)\ntime.sleep(3600)\n"
        )
    # The launcher's guardian does not reach the other end of a real ssh.
    ssh = f"env -u {TOKEN_VARIABLE} setsid --wait {sys.executable} {FAKE_SSH}"
    words = [sys.executable, "-m", "gossip.launch.cli", "hosts", "--ssh", ssh, "-H", "../hosts.txt"]
    path = f"{folder.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "GOSSIP_WARM": "false", "PYTHONPATH": path}
    with (folder / "out").open("wb") as out:
        launcher = subprocess.Popen(
            [*words, "--aggregator", "mean", "--", "train.py"],
            cwd=folder,
            env=environment,
            stdout=out,
        )
    until = time.monotonic() + 200
    try:
        while (folder / "out").read_text().count("] up") < 3:
            assert time.monotonic() < until
            assert launcher.poll() is None
            time.sleep(0.05)  # between two looks, not instead of one
    finally:
        launcher.kill()
        launcher.wait()
    until = time.monotonic() + 60
    while left := marked(os.environ[MARK]):
        assert time.monotonic() < until, left
        time.sleep(0.02)
