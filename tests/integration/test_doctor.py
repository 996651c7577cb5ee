"""``gossip doctor`` on this machine, and against real listeners of several kinds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossip.config import resolve
from gossip.launch.doctor import check_reach
from gossip.launch.doctor.check_reach import reach
from gossip.launch.registry import join_messages
from gossip.launch.registry.join_server import JoinEndpoint, JoinServer
from gossip.run.keys import make_pair


def test_why_nothing_answers_is_told() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        (closed,) = reach(address)
    assert closed.level == "fail"
    assert closed.said == f"{address} (from 127.0.0.1): connection refused: nothing listens there"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        (other,) = reach(f"127.0.0.1:{silent.getsockname()[1]}")
    assert "connected, but no reply" in other.said


def test_a_host_that_nobody_knows_is_said_to_be() -> None:
    (finding,) = reach("no-such-host.invalid:80")
    assert finding.level == "fail"
    assert "the host 'no-such-host.invalid' cannot be resolved" in finding.said


@contextlib.contextmanager
def open_join_server(tmp_path: Path, key: Path | None = None) -> Iterator[str]:
    """The address of a door that is open for as long as the body runs, in a loop of its own."""
    config = (
        resolve({"peers": 2, "room": 6, "name": "digits"})
        .with_values("drawn", run="00000000000000aa", f=0)
        .config
    )
    opened, over = threading.Event(), asyncio.Event()
    address = []
    loops = []

    async def serve() -> None:
        join_server = JoinServer(config, tmp_path, {0: 0, 1: 0}, JoinEndpoint(key=key))
        await join_server.open()
        address.append(join_server.address)
        loops.append(asyncio.get_running_loop())
        opened.set()
        await over.wait()
        await join_server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert opened.wait(30)
    yield address[0]
    loops[0].call_soon_threadsafe(over.set)
    thread.join(30)


@pytest.fixture
def join_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(check_reach, "ASK_S", 20.0)  # however slow the machine
    with open_join_server(tmp_path) as address:
        yield address


def test_a_door_says_which_run_it_is_of(join_server: str) -> None:
    (found,) = reach(join_server)
    assert found.level == "ok"
    assert "belongs to run digits" in found.said
    assert found.facts["seen"] == "127.0.0.1"


def test_a_door_of_other_versions_is_told_with_both(
    join_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = join_messages.Versions.here()
    other = join_messages.Versions(here.protocol, here.gossip, here.python, "2.99.0")
    monkeypatch.setattr(join_messages.Versions, "here", classmethod(lambda cls: other))
    _, versions = reach(join_server)
    assert versions.level == "fail"
    assert versions.said == f"this machine could not join: torch 2.99.0 here, {here.torch} there"


def test_a_key_where_there_are_none_is_an_error(join_server: str, tmp_path: Path) -> None:
    make_pair(tmp_path / "own.key")
    (found,) = reach(join_server, tmp_path / "own.key")
    assert found.level == "fail"


def test_a_door_with_keys_answers_who_has_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_reach, "ASK_S", 20.0)
    keys = [tmp_path / "swarm.key", tmp_path / "another.key"]
    for path in keys:
        make_pair(path)
    with open_join_server(tmp_path, keys[0]) as address:
        assert reach(address, keys[0])[0].level == "ok"
        found = [*reach(address, keys[1]), *reach(address)]
    assert [each.level for each in found] == ["fail", "fail"]
    assert all("refused by key" in each.said and "swarm.key" in each.do for each in found)


def test_this_machine_is_examined_and_the_exit_code_says_if_anything_failed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gossip.launch.cli", "doctor", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = json.loads(done.stdout)
    assert said["schema"] == "gossip.doctor/1"
    topics = [finding["topic"] for finding in said["findings"]]
    assert topics == [
        *("versions", "keys", "addresses", "shared memory", "open files"),
        *("disk", "memory", "threads", "torch"),
    ]
    assert done.returncode == int(
        any(finding["level"] == "fail" for finding in said["findings"])
    ), done.stderr
    assert all(
        finding["do"] for finding in said["findings"] if finding["level"] in ("warn", "fail")
    )
    assert {"python", "packages", "platform", "hardware"} <= set(said["environment"])
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
