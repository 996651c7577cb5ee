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
import zmq

from gossip.config import resolve
from gossip.launch.doctor import check_reach, check_speed
from gossip.launch.doctor.check_reach import reach
from gossip.launch.doctor.findings import Finding
from gossip.launch.registry import door_messages
from gossip.launch.registry.door import JoinEndpoint, JoinServer
from gossip.run.keys import make_pair


def levels(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.topic, finding.level) for finding in found]


@contextlib.contextmanager
def listening(says: bytes | None, host: str = "127.0.0.1") -> Iterator[str]:
    """A program that says something to each who connects, and nothing more."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as end:
        end.bind((host, 0))
        end.listen()
        kept = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    visitor, _ = end.accept()
                    kept.append(visitor)
                    if says is not None:
                        visitor.sendall(says)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield (
            f"[{host}]:{end.getsockname()[1]}" if ":" in host else f"{host}:{end.getsockname()[1]}"
        )
        end.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        for visitor in kept:
            visitor.close()


def test_a_port_where_nothing_listens_is_told_apart_from_one_where_something_else_does() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        (closed,) = reach(address)
    assert closed.level == "fail"
    assert closed.said == (
        f"{address} refuses connections (from 127.0.0.1): the host is there, and nothing "
        "listens on that port"
    )
    with listening(b"SSH-2.0-OpenSSH_9.2\r\n") as address:
        connection, protocol = reach(address)
    assert connection.said.startswith(f"something listens at {address}, ")
    assert connection.facts["source"] == "127.0.0.1"
    assert (
        protocol.level,
        "it says 'SSH-2.0-OpenSSH_9.2', which is not gossip" in protocol.said,
    ) == ("fail", True)


def test_a_program_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_reach, "GREETING_S", 0.05)
    with listening(None) as address:
        assert levels(reach(address)) == [("connection", "ok"), ("protocol", "fail")]


def test_a_host_that_nobody_knows_is_said_to_be() -> None:
    (finding,) = reach("no-such-host.invalid:80")
    assert finding.level == "fail"
    assert "nobody knows a host 'no-such-host.invalid'" in finding.said


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (TimeoutError(), "no answer from 192.0.2.9:80 in 2 s"),
        (OSError(101, "Network is unreachable"), "there is no way from here to 192.0.2.9:80"),
        (OSError(13, "Permission denied"), "cannot connect to 192.0.2.9:80"),
    ],
)
def test_each_way_of_not_getting_there_has_its_words(
    monkeypatch: pytest.MonkeyPatch, error: OSError, says: str
) -> None:
    def refuse(*words: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", refuse)
    (finding,) = reach("192.0.2.9:80")
    assert finding.said.startswith(says)
    assert finding.do


@pytest.mark.parametrize("curve", [False, True])
def test_zeromq_without_a_door_is_told_apart_from_one_with_keys(
    monkeypatch: pytest.MonkeyPatch, curve: bool
) -> None:
    monkeypatch.setattr(check_reach, "CONNECT_S", 0.3)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        end = context.socket(zmq.ROUTER)
        if curve:
            end.set(zmq.CURVE_SERVER, 1)
            end.set(zmq.CURVE_SECRETKEY, zmq.curve_keypair()[1])
        port = end.bind_to_random_port("tcp://127.0.0.1")
        found = reach(f"127.0.0.1:{port}")
    finally:
        context.destroy(0)
    assert levels(found) == [("connection", "ok"), ("protocol", "ok" if curve else "warn")]
    assert ("ZeroMQ with keys" if curve else "no join server of gossip") in found[1].said


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
    monkeypatch.setattr(check_reach, "CONNECT_S", 20.0)  # however slow the machine
    with open_join_server(tmp_path) as address:
        yield address


def test_a_door_says_which_run_it_is_of(join_server: str) -> None:
    connection, protocol = reach(join_server)
    assert (connection.level, protocol.level) == ("ok", "ok")
    assert "a join server of the run digits" in protocol.said
    assert protocol.facts["seen"] == "127.0.0.1"


def test_a_door_of_other_versions_is_told_with_both(
    join_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = door_messages.Versions.here()
    other = door_messages.Versions(here.protocol, here.gossip, here.python, "2.99.0")
    monkeypatch.setattr(door_messages.Versions, "here", classmethod(lambda cls: other))
    _, _, versions = reach(join_server)
    assert versions.level == "fail"
    assert versions.said == f"this machine could not join: torch 2.99.0 here, {here.torch} there"


def test_a_key_where_there_are_none_is_an_error(join_server: str, tmp_path: Path) -> None:
    make_pair(tmp_path / "own.key")
    assert levels(reach(join_server, tmp_path / "own.key")) == [
        ("connection", "ok"),
        ("protocol", "fail"),
    ]


def test_a_door_with_keys_answers_who_has_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_reach, "CONNECT_S", 20.0)
    keys = [tmp_path / "swarm.key", tmp_path / "another.key"]
    for path in keys:
        make_pair(path)
    with open_join_server(tmp_path, keys[0]) as address:
        assert "a join server of the run digits" in reach(address, keys[0])[1].said
        wrong = reach(address, keys[1])[1]
        without = reach(address)[1]
    assert wrong.level == "fail"
    assert "no join server that takes this key" in wrong.said
    assert "refused by key" in wrong.said
    assert (without.level, "without a key it does not answer" in without.said) == ("ok", True)


def test_two_processes_exchange_bytes() -> None:
    (finding,) = check_speed.loopback()
    assert finding.level == "ok", finding.said
    assert finding.facts["bytes"] == check_speed.SENT_BYTES


def test_a_process_that_cannot_send_is_told_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [sys.executable, "-c", "raise OSError('no sockets here')"]
    monkeypatch.setattr(check_speed, "_command", lambda *more: words)
    (finding,) = check_speed.loopback()
    assert finding.level == "fail"
    assert "OSError: no sockets here" in finding.said


def test_a_torch_that_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        sys.executable,
        "-c",
        "raise ImportError('libgomp.so.1: cannot open shared object file')",
    ]
    monkeypatch.setattr(check_speed, "_command", lambda *more: words)
    threads = check_speed.Threads()
    (finding,) = threads.findings()
    threads.close()
    assert finding.level == "fail"
    assert "libgomp.so.1" in finding.said


def test_this_machine_is_examined_and_the_exit_code_says_whether_anything_failed(
    tmp_path: Path,
) -> None:
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
        *(
            "versions",
            "keys",
            "addresses",
            "hostname",
            "ports",
            "shared memory",
            "open files",
            "clock",
            "disk",
            "memory",
            "gpus",
        ),
        *("ssh", "slurm", "ray", "condor", "kubernetes", "loopback", "torch", "threads"),
    ]
    assert done.returncode == int(
        any(finding["level"] == "fail" for finding in said["findings"])
    ), done.stderr
    assert all(
        finding["do"] for finding in said["findings"] if finding["level"] in ("warn", "fail")
    )
    assert {"python", "packages", "platform", "hardware"} <= set(said["environment"])
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
