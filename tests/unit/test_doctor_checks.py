from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from gossip.errors import ConfigError
from gossip.launch.doctor import check_reach, check_speed, checks, command as doctor, findings
from gossip.launch.doctor.findings import Finding

Usage = namedtuple("Usage", "total used free")


def one(found: list[Finding]) -> Finding:
    (finding,) = found
    return finding


def test_each_line_says_how_it_is_and_what_to_do() -> None:
    finding = Finding("warn", "disk", "full", "make room")
    assert findings.lines(finding) == ["warn  disk: full", "      try: make room"]
    assert findings.lines(Finding("ok", "disk", "empty")) == ["ok    disk: empty"]
    assert (
        findings.tally([finding, Finding("fail", "a", "b", "c"), finding]) == "1 error, 2 warnings"
    )
    assert json.loads(json.dumps(doctor.report([finding])))["findings"][0]["do"] == "make room"


def test_the_machine_that_runs_the_tests_has_the_versions() -> None:
    finding = one(checks.versions())
    assert finding.level == "ok"
    assert "torch 2." in finding.said


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ({"torch": "2.5.1+cpu"}, "torch 2.5.1+cpu is older than 2.6"),
        ({"msgpack": None}, "msgpack is missing"),
    ],
)
def test_missing_and_old_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, there: dict[str, str | None], says: str
) -> None:
    real = checks.importlib.metadata.version

    def version(name: str) -> str:
        if name in there and there[name] is None:
            raise checks.importlib.metadata.PackageNotFoundError(name)
        return there.get(name) or real(name)

    monkeypatch.setattr(checks.importlib.metadata, "version", version)
    finding = one(checks.versions())
    assert finding.level == "fail"
    assert finding.said.startswith(says)


def test_versions_are_compared_as_numbers() -> None:
    assert checks.numbers("2.13.0+cpu") > checks.numbers("2.6")
    assert checks.numbers("26.4") < checks.numbers("27")


def test_a_key_that_others_can_read_is_an_error(tmp_path: Path) -> None:
    assert one(checks.keys(tmp_path)).level == "ok"
    key = tmp_path / "digits-1" / "swarm.key"
    key.parent.mkdir()
    key.touch(0o600)
    assert one(checks.keys(tmp_path)).level == "ok"
    key.chmod(0o640)
    finding = one(checks.keys(tmp_path))
    assert (finding.level, finding.do) == ("fail", f"chmod 600 {key}")


def test_a_libzmq_that_cannot_encrypt_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(zmq, "has", lambda what: False)
    assert one(checks.keys(tmp_path)).level == "fail"


def interfaces(monkeypatch: pytest.MonkeyPatch, up: dict[str, list[str]], towards: str) -> Finding:
    Entry = namedtuple("Entry", "family address")
    Stat = namedtuple("Stat", "isup")

    def entry(address: str) -> object:
        return Entry(socket.AF_INET6 if ":" in address else socket.AF_INET, address)

    known = {
        name.removesuffix("-down"): [entry(address) for address in entries]
        for name, entries in up.items()
    }
    states = {name.removesuffix("-down"): Stat(not name.endswith("-down")) for name in up}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: known)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    monkeypatch.setattr(checks, "source_towards", lambda host: towards)
    return one(checks.addresses())


LOOP = {"lo": ["127.0.0.1", "::1"]}


@pytest.mark.parametrize(
    ("up", "towards", "level", "told"),
    [
        ({**LOOP, "eth0": ["10.1.0.7"], "ib0": ["10.2.0.7"]}, "10.2.0.7", "ok", "10.2.0.7"),
        ({**LOOP, "eth0": ["10.1.0.7", "fe80::1%eth0"]}, "", "ok", "10.1.0.7"),
        ({**LOOP, "eth0": ["10.1.0.7"]}, "127.0.0.1", "ok", "10.1.0.7"),
        ({**LOOP, "eth0-down": ["10.1.0.7"], "v6": ["fd00::2"]}, "", "ok", "fd00::2"),
        ({**LOOP, "eth0": ["fe80::1%eth0"]}, "", "warn", ""),
        (LOOP, "127.0.0.1", "warn", ""),
    ],
)
def test_others_are_told_an_address_that_they_can_reach(
    monkeypatch: pytest.MonkeyPatch, up: dict[str, list[str]], towards: str, level: str, told: str
) -> None:
    finding = interfaces(monkeypatch, up, towards)
    assert (finding.level, finding.facts["advertised"]) == (level, told)


@pytest.mark.parametrize(
    ("addresses", "level"),
    [(["127.0.1.1"], "warn"), (["10.1.0.7"], "ok"), ([], "ok"), (["10.1.0.7", "::1"], "warn")],
)
def test_a_name_that_leads_to_loopback_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], level: str
) -> None:
    entries = [(0, 0, 0, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **more: entries)
    assert one(checks.hostname()).level == level


def test_a_name_server_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import threading

    hold = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **more: [hold.wait(60)][:0])
    monkeypatch.setattr(checks, "ANSWER_S", 0.01)
    finding = one(checks.hostname())
    hold.set()
    assert finding.level == "skip"


def test_a_port_of_an_address_that_is_not_ours_cannot_be_had() -> None:
    assert one(checks.port("127.0.0.1")).level == "ok"
    finding = one(checks.port("192.0.2.77"))
    assert finding.level == "fail"
    assert "no free port on 192.0.2.77" in finding.said


@pytest.mark.parametrize(("free", "level"), [(2**25, "warn"), (2**30, "ok")])
def test_small_shared_memory_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free))
    assert one(checks.shared_memory()).level == level


@pytest.mark.parametrize(
    ("soft", "level", "do"),
    [
        (64, "fail", "ulimit -n 4096"),
        (512, "warn", "ulimit -n 4096"),
        (1024, "ok", ""),
        (resource.RLIM_INFINITY, "ok", ""),
    ],
)
def test_few_open_files_are_told_with_what_can_be_had(
    monkeypatch: pytest.MonkeyPatch, soft: int, level: str, do: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, 4096))
    finding = one(checks.open_files())
    assert (finding.level, finding.do) == (level, do)


Answer = tuple[int, str]


def asked(answers: dict[str, Answer | Exception]) -> Callable[..., Any]:
    def run(command: list[str], **more: Any) -> object:
        answer = answers[command[0]]
        if isinstance(answer, Exception):
            raise answer
        return subprocess.CompletedProcess(command, *answer)

    return run


NO_DAEMON: Answer = (1, "")


@pytest.mark.parametrize(
    ("answers", "level"),
    [
        ({}, "skip"),
        ({"chronyc": (0, "Leap status     : Normal\n")}, "ok"),
        ({"chronyc": (0, "Leap status     : Not synchronised\n")}, "warn"),
        ({"chronyc": NO_DAEMON, "timedatectl": (0, "NTPSynchronized=yes\n")}, "ok"),
        ({"timedatectl": (0, "NTPSynchronized=no\n")}, "warn"),
        ({"timedatectl": NO_DAEMON}, "skip"),
        ({"timedatectl": subprocess.TimeoutExpired("timedatectl", 1.0)}, "skip"),
    ],
)
def test_the_clock_is_as_its_daemon_says(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, Answer | Exception], level: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: tool if tool in answers else None)
    monkeypatch.setattr(subprocess, "run", asked(answers))
    assert one(checks.clock()).level == level


@pytest.mark.parametrize(("free", "level"), [(2**20, "fail"), (2**29, "warn"), (2**31, "ok")])
def test_a_full_disk_is_told_where_runs_will_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, level: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free))
    finding = one(checks.disk(tmp_path / "runs" / "deep"))
    assert (finding.level, finding.facts["folder"]) == (level, str(tmp_path))


def test_a_folder_that_cannot_be_written_to_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert one(checks.disk(tmp_path)).level == "fail"


@pytest.mark.parametrize(("peers", "level"), [(0.5, "fail"), (1.5, "warn"), (7.5, "ok")])
def test_memory_is_told_in_peers(monkeypatch: pytest.MonkeyPatch, peers: float, level: str) -> None:
    from gossip.launch.local.feasible import PEER_BYTES

    Memory = namedtuple("Memory", "available")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(int(peers * PEER_BYTES)))
    finding = one(checks.memory())
    assert (finding.level, finding.facts["peers"]) == (level, int(peers))


def test_tools_that_are_missing_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: None)
    assert [each.topic for each in checks.tools()] == [
        "ssh",
        "slurm",
        "ray",
        "condor",
        "kubernetes",
    ]
    assert all(each.level == "skip" and each.do for each in checks.tools())


def command(folder: Path, name: str, says: str = "") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def test_htcondor_is_told_with_its_version_and_without_dags_it_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    alone = command(tmp_path, "condor_submit")
    assert (checks.condor().level, checks.condor().said) == (
        "warn",
        f"{alone}, and no condor_submit_dag beside it",
    )
    dag = command(tmp_path, "condor_submit_dag")
    assert (checks.condor().level, checks.condor().said) == ("ok", str(dag))
    command(tmp_path, "condor_version", "$CondorVersion: 25.0.1 2025-09-22 BuildID: 1 $")
    assert checks.condor().said == f"{dag}, HTCondor 25.0.1"
    assert checks.condor().facts == {"version": "25.0.1"}


@pytest.mark.parametrize(
    ("threads", "default", "wanted", "level", "says"),
    [
        (1, 7000.0, None, "ok", "7,000 steps/s with 1 thread"),
        (
            8,
            44.0,
            None,
            "ok",
            "44 steps/s with 8 threads, 7,000 with one: gossip run gives each peer one",
        ),
        (8, 44.0, "8", "warn", "44 steps/s with 8 threads, 7,000 with one"),
        (8, 9000.0, "8", "ok", "OMP_NUM_THREADS=8 is kept"),
    ],
)
def test_threads_are_a_warning_where_the_user_keeps_too_many(
    threads: int, default: float, wanted: str | None, level: str, says: str
) -> None:
    measured = {
        "torch": "2.13.0",
        "cuda": [],
        "threads": threads,
        "cores": 8,
        "default": default,
        "one": 7000.0,
    }
    torch, finding = check_speed.judge(measured, wanted)
    assert (torch.level, finding.level) == ("ok", level)
    assert says in finding.said


@pytest.mark.parametrize("address", ["10.0.0.7", "10.0.0.7:", ":80", "10.0.0.7:0", "fd00::2:80"])
def test_what_is_no_address_is_the_users_error(address: str) -> None:
    with pytest.raises(ConfigError, match=r"HOST:PORT|in brackets"):
        check_reach.reach(address)
