from __future__ import annotations

import json
import os
import resource
import shutil
import socket
from collections import namedtuple
from pathlib import Path

import psutil
import pytest
import zmq

from gossip.errors import ConfigError
from gossip.launch.doctor import check_reach, checks, command as doctor, findings
from gossip.launch.doctor.findings import Finding

Usage = namedtuple("Usage", "total used free")


def test_each_line_says_how_it_is_and_what_to_do() -> None:
    finding = Finding("warn", "disk", "full", "make room")
    assert findings.lines(finding) == ["warn  disk: full", "      try: make room"]
    assert findings.lines(Finding("ok", "disk", "empty")) == ["ok    disk: empty"]
    assert (
        findings.tally([finding, Finding("fail", "a", "b", "c"), finding]) == "1 error, 2 warnings"
    )
    assert json.loads(json.dumps(doctor.report([finding])))["findings"][0]["do"] == "make room"


def test_the_machine_that_runs_the_tests_has_the_versions() -> None:
    finding = checks.versions()
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
    finding = checks.versions()
    assert finding.level == "fail"
    assert finding.said.startswith(says)


def test_versions_are_compared_as_numbers() -> None:
    assert checks.numbers("2.13.0+cpu") > checks.numbers("2.6")
    assert checks.numbers("26.4") < checks.numbers("27")


def test_a_key_that_others_can_read_is_an_error(tmp_path: Path) -> None:
    assert checks.keys(tmp_path).level == "ok"
    key = tmp_path / "digits-1" / "swarm.key"
    key.parent.mkdir()
    key.touch(0o600)
    assert checks.keys(tmp_path).level == "ok"
    key.chmod(0o640)
    finding = checks.keys(tmp_path)
    assert (finding.level, finding.do) == ("fail", f"chmod 600 {key}")


def test_a_libzmq_that_cannot_encrypt_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(zmq, "has", lambda what: False)
    assert checks.keys(tmp_path).level == "fail"


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
    return checks.addresses()


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


@pytest.mark.parametrize(("free", "level"), [(2**25, "warn"), (2**30, "ok")])
def test_small_shared_memory_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free))
    assert checks.shared_memory().level == level


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
    finding = checks.open_files()
    assert (finding.level, finding.do) == (level, do)


@pytest.mark.parametrize(("free", "level"), [(2**20, "fail"), (2**29, "warn"), (2**31, "ok")])
def test_a_full_disk_is_told_where_runs_will_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, level: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free))
    finding = checks.disk(tmp_path / "runs" / "deep")
    assert (finding.level, finding.facts["folder"]) == (level, str(tmp_path))


def test_a_folder_that_cannot_be_written_to_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert checks.disk(tmp_path).level == "fail"


@pytest.mark.parametrize(("peers", "level"), [(0.5, "fail"), (1.5, "warn"), (7.5, "ok")])
def test_memory_is_told_in_peers(monkeypatch: pytest.MonkeyPatch, peers: float, level: str) -> None:
    from gossip.launch.local.feasible import PEER_BYTES

    Memory = namedtuple("Memory", "available")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(int(peers * PEER_BYTES)))
    finding = checks.memory()
    assert (finding.level, finding.facts["peers"]) == (level, int(peers))


@pytest.mark.parametrize(("own", "level"), [("", "ok"), ("1", "ok"), ("8", "warn")])
def test_threads_are_a_warning_where_the_user_keeps_many(
    monkeypatch: pytest.MonkeyPatch, own: str, level: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", own)
    assert checks.threads().level == level


def test_a_torch_that_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "libgomp.so.1: cannot open shared object file"
    monkeypatch.setattr(checks, "IMPORT_TORCH", f"raise ImportError({why!r})")
    finding = checks.torch()
    assert finding.level == "fail"
    assert why in finding.said


@pytest.mark.parametrize("address", ["10.0.0.7", "10.0.0.7:", ":80", "10.0.0.7:0", "fd00::2:80"])
def test_what_is_no_address_is_the_users_error(address: str) -> None:
    with pytest.raises(ConfigError, match=r"HOST:PORT|needs brackets"):
        check_reach.reach(address)
