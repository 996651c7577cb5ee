"""``gossip ls``, ``logs`` and ``stop`` on launchers that are processes of their own."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zygote
from launch_alone import ALL_THERE

from gossip.config import resolve
from gossip.errors import ConfigError
from gossip.launch import hold
from gossip.launch.guardian import stat
from gossip.launch.local.shutdown import STOP_GRACE_S
from gossip.launch.report import launchers, run_state, stopping
from gossip.run import untrusted as careful
from gossip.run.telemetry import read_json, write_json

LAUNCHER = Path(__file__).with_name("launch_alone.py")
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    resolved = resolve({"peers": 2, "run_dir": str(folder), "name": "one", "warm": False})
    resolved.with_values("drawn", run="00000000000000aa", f=0).config.dump(folder / "config.json")
    return folder


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts a launcher whose peers all behave in some way, and returns when each of them runs."""
    started: list[subprocess.Popen[str]] = []
    program = folder.parents[1] / "gossip"  # by which name others know that it is one
    program.symlink_to(LAUNCHER)

    def launcher(mode: str) -> subprocess.Popen[str]:
        process = zygote.Popen(
            [sys.executable, str(program), str(folder), mode], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        while (line := process.stdout.readline()) != f"{ALL_THERE}\n":
            assert line, "the launcher has ended"
        return process

    yield launcher
    for process in started:
        process.stdout.close()
        process.kill()
        process.wait()


def gossip(
    *words: str, cwd: Path, start: Callable[..., Any] = zygote.run
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gossip.launch.cli", *words]
    done: subprocess.CompletedProcess[str] = start(
        command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    return done


def test_a_run_is_listed_read_and_stopped_from_another_terminal(folder: Path, start: Start) -> None:
    launcher, home = start("polite"), folder.parents[1]
    assert [
        (run["name"], run["state"], run["round"])
        for run in json.loads(gossip("ls", "--json", cwd=home).stdout)
    ] == [("one", "running", 2)]
    assert sorted(gossip("logs", "one", "1", cwd=home).stdout.splitlines()) == [
        "1| hello from 1.0",
        "1| to stderr",
    ]
    followed = subprocess.Popen(
        [sys.executable, "-m", "gossip.launch.cli", "logs", "-f", "one"],
        cwd=home,
        stdout=subprocess.PIPE,
        text=True,
    )
    first = followed.stdout.readline()
    done = gossip("stop", "one", cwd=home, start=subprocess.run)
    assert done.returncode == 0, done.stderr
    assert f"launcher pid {launcher.pid}" in done.stdout
    assert "one has ended after" in done.stdout
    assert "exit code 143: none of its processes is left here" in done.stdout
    assert launcher.wait(20) == 143
    assert launchers.processes_of(folder) == []
    with followed:
        lines = [first, *followed.stdout]
    assert sorted(line.rstrip() for line in lines) == [
        "0| hello from 0.0",
        "0| to stderr",
        "1| hello from 1.0",
        "1| to stderr",
    ]
    assert followed.returncode == 0, "it ends with the run"
    listed = gossip("ls", cwd=home).stdout
    assert "ended" in listed
    assert "143 stopped" in listed
    again = gossip("stop", "one", cwd=home)
    assert (again.returncode, again.stdout) == (0, "one is over already: stopped, exit code 143\n")


def test_following_a_log_ends_cleanly_with_ctrl_c(folder: Path, start: Start) -> None:
    start("polite")
    # Whoever runs these tests in the background has SIGINT ignored, and all that they start.
    heeds = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from "
        "gossip.launch.cli import main; main()"
    )
    command = [sys.executable, "-c", heeds, "logs", "-f", str(folder)]
    followed = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    followed.stdout.readline()
    followed.send_signal(signal.SIGINT)
    _, err = followed.communicate(timeout=20)
    assert (followed.returncode, err) == (130, "")
    stopping.stop(run_state.RunState(folder), now=True, timeout_s=10, say=lambda line: None)


def test_with_now_the_launcher_kills_its_peers_at_once(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = start("stubborn")
    said: list[str] = []
    monkeypatch.setattr(stopping, "NOW_S", 60.0)  # however slow the machine
    stopping.stop(run_state.RunState(folder), now=True, timeout_s=10, say=said.append)
    assert launcher.wait(20) == 143
    assert not any("does not respond" in line for line in said)
    assert float(said[-1].split("after ")[1].split(" s")[0]) < STOP_GRACE_S, said


def test_peers_that_do_not_leave_are_told_and_killed_with_now(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = start("stubborn")
    said: list[str] = []
    monkeypatch.setattr(stopping, "PROGRESS_EVERY_S", 0.1)
    with pytest.raises(stopping.StillRunning) as caught:
        stopping.stop(run_state.RunState(folder), now=False, timeout_s=0.5, say=said.append)
    assert caught.value.pids == (launcher.pid,)
    assert str(caught.value.hint) == "gossip stop --now one"
    assert any("(at most 0 s)" in line or "(at most 1 s)" in line for line in said[1:]), said
    stopping.stop(run_state.RunState(folder), now=True, timeout_s=0.5, say=said.append)
    assert launcher.wait(20) == 143
    assert launchers.processes_of(folder) == []


def test_a_launcher_that_does_not_answer_is_killed_and_its_peers_go_too(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = start("stubborn")
    said: list[str] = []
    monkeypatch.setattr(stopping, "NOW_S", 0.0)  # no launcher is as quick as that
    stopping.stop(run_state.RunState(folder), now=True, timeout_s=10, say=said.append)
    assert any("does not respond" in line for line in said)
    assert launcher.wait(20) in (-signal.SIGKILL, 143)
    assert launchers.processes_of(folder) == []


def test_a_stopped_launcher_is_woken_to_be_asked(folder: Path, start: Start) -> None:
    launcher = start("polite")
    launcher.send_signal(signal.SIGSTOP)
    stopping.stop(run_state.RunState(folder), now=False, timeout_s=20, say=lambda line: None)
    assert launcher.wait(20) == 143


def test_a_run_whose_launcher_was_killed_says_so(folder: Path, start: Start) -> None:
    launcher = start("polite")
    launcher.kill()
    launcher.wait()
    said: list[str] = []
    assert run_state.RunState(folder).state == "killed"
    assert stopping._wait_for_processes(folder) == []
    stopping.stop(run_state.RunState(folder), now=False, timeout_s=10, say=said.append)
    assert said == ["one is over already: its launcher was killed"]


def _change_word(folder: Path, **changes: object) -> None:
    (path,) = (folder / launchers.FOLDER).glob("*.json")
    write_json(path, {**(read_json(path) or {}), **changes})


def test_a_run_of_another_machine_is_not_touched(folder: Path) -> None:
    with launchers.present(folder, [0, 1]):
        _change_word(folder, machine="another", host="nodeb")
        with pytest.raises(
            ConfigError,
            match=rf"one was started on nodeb \(pid {os.getpid()}\): this machine cannot",
        ) as caught:
            stopping.stop(run_state.RunState(folder), now=True, timeout_s=1, say=lambda line: None)
        assert caught.value.hint == f"there: gossip stop {folder}"


@pytest.fixture
def is_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process passes for ``gossip run``."""
    monkeypatch.setattr(launchers, "starts_peers", lambda command: True)


@pytest.mark.usefixtures("is_launcher")
def test_a_pid_that_was_given_out_again_is_not_signalled(folder: Path) -> None:
    """The launcher's number is this process's by now: a signal would end the test."""
    with launchers.present(folder, [0, 1]):
        stale = run_state.RunState(folder)
        _change_word(folder, started=1)
        assert run_state.RunState(folder).state == "killed"
        (one,) = launchers.of(folder)
        with stopping._handle(one) as handle:
            assert handle == -1
        with stopping._handle(stale.launchers[0]) as handle:
            assert handle >= 0


@pytest.mark.usefixtures("is_launcher")
def test_a_run_of_another_user_names_whose(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    with (
        launchers.present(folder, [0, 1]),
        pytest.raises(ConfigError, match=f"one is user .*'s: .*pid {os.getpid()}"),
    ):
        stopping.stop(run_state.RunState(folder), now=True, timeout_s=1, say=lambda line: None)


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What would have been sent, and to nobody."""
    sent: list[int] = []
    monkeypatch.setattr(
        signal, "pidfd_send_signal", lambda handle, number, *rest: sent.append(number)
    )
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    return sent


def _stop(folder: Path) -> None:
    stopping.stop(run_state.RunState(folder), now=True, timeout_s=0.1, say=lambda line: None)


@pytest.mark.parametrize(
    "command", [["cat"], [sys.executable, "-c", "import sys; sys.stdin.read()", "gossip"]]
)
def test_a_record_that_fits_a_process_makes_no_launcher_of_it(
    folder: Path, signals: list[int], command: list[str]
) -> None:
    """A folder that was copied or unpacked is this user's, with whatever its records say."""
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE) as process,
        launchers.present(folder, [0, 1]),
    ):
        there = stat(process.pid)
        assert there is not None
        until = time.monotonic() + 20.0
        while not launchers.command_of(process.pid):  # it has just been started
            assert time.monotonic() < until
        _change_word(folder, pid=process.pid, started=there.started)
        assert run_state.RunState(folder).state == "copy", "whatever the record says"
        with pytest.raises(
            ConfigError,
            match=rf"pid {process.pid} .* does not lead this folder.* command: .*{command[-1]}",
        ):
            _stop(folder)
        (one,) = launchers.of(folder)
        with stopping._handle(one) as handle:
            assert handle == -1
    assert signals == []


def test_who_leads_a_folder_by_another_program_is_spared(folder: Path, signals: list[int]) -> None:
    with (
        launchers.present(folder, [0, 1]),
        pytest.raises(ConfigError, match=r"is another process: ") as caught,
    ):
        _stop(folder)
    assert caught.value.hint == f"if it is a launcher: kill -TERM {os.getpid()}"
    assert signals == []


@pytest.mark.parametrize(
    "copy", [shutil.copytree, functools.partial(shutil.copytree, copy_function=os.link)]
)
def test_a_copy_of_the_folder_of_a_run_is_not_that_run(
    folder: Path,
    start: Start,
    copy: Callable[[Path, Path], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where its files are the same by a second name."""
    launcher, other, sent = start("polite"), folder.with_name("other"), list[int]()
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda handle, number: sent.append(number))
    copy(folder, other)
    with pytest.raises(
        ConfigError,
        match=rf"pid {launcher.pid} as a launcher of one, but it leads {folder}: .* is a copy",
    ) as caught:
        _stop(other)
    assert caught.value.hint == f"gossip stop {folder}"
    assert sent == []
    listed = json.loads(gossip("ls", "--json", cwd=folder.parents[1]).stdout)
    assert {Path(run["folder"]).name: run["state"] for run in listed} == {
        "one": "running",
        "other": "copy",
    }
    assert [
        one["running"] for run in listed if run["state"] == "copy" for one in run["launchers"]
    ] == [False]


def test_a_run_is_stopped_by_any_name_its_folder_has_by_now(folder: Path, start: Start) -> None:
    launcher, moved = start("polite"), folder.with_name("moved")
    folder.rename(moved)
    (folder.parents[1] / "link").symlink_to(moved)
    assert run_state.RunState(folder.parents[1] / "link").state == "running"
    _stop(moved)
    assert launcher.wait(20) == 143


@pytest.mark.usefixtures("is_launcher")
def test_a_run_in_a_copy_is_stopped_and_that_in_the_first_folder_goes_on(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, other, said, signalled = (
        start("polite"),
        folder.with_name("other"),
        list[str](),
        list[int](),
    )
    shutil.copytree(folder, other)
    with launchers.present(other, [2]):
        monkeypatch.setattr(
            stopping, "_ask", lambda run, one, handle, now: signalled.append(one.pid)
        )
        monkeypatch.setattr(stopping, "_wait", lambda *words: True)
        monkeypatch.setattr(stopping, "GUARDIAN_S", 0.0)
        stopping.stop(run_state.RunState(other), now=True, timeout_s=0.1, say=said.append)
    assert signalled == [os.getpid()]
    assert said[0].endswith(
        f"pid {launcher.pid} as a launcher of one, but it leads {folder}: this folder is a copy; "
        "it was not signalled"
    )


def test_who_reads_a_folder_does_not_lead_it(folder: Path) -> None:
    reads = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    assert hold.leads(os.getpid(), folder) is False
    held = hold.mark_leader(folder)
    assert hold.leads(os.getpid(), folder) is True
    assert folder in hold.led_by(os.getpid())
    os.close(held)
    os.close(reads)


def test_a_launcher_that_cannot_say_that_it_is_over_leads_its_folder_to_its_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, fields: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with launchers.present(folder, [0, 1]):
        monkeypatch.setattr(launchers, "write_json", full)
    assert run_state.RunState(folder).state == "running", "nobody knows better"


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("/usr/local/bin/gossip run -n 4 train.py", True),
        ("/venv/bin/python3.12 /venv/bin/gossip demo", True),
        ("python -m gossip.launch.cli run train.py", True),
        ("/opt/python -u -P -W error -X dev -m gossip.launch.ssh.agent host", True),
        ("python -Bm gossip_clusters.kubernetes.peer", True),
        ("python train.py gossip", False),
        ("python -c pass gossip", False),
        ("python -m pytest gossip", False),
        ("python -m gossip.node", False),
        ("vim gossip", False),
        ("tail -f runs/gossip", False),
        ("python", False),
        ("", False),
    ],
)
def test_launchers_are_known_by_their_command(command: str, known: bool) -> None:
    assert launchers.starts_peers(command.split()) is known


def test_a_process_of_another_user_is_no_launcher_whatever_it_is_called(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "starts_peers", lambda command: True)
    with launchers.present(folder, [0, 1]):
        assert launchers.is_launcher(os.getpid(), folder)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 7)
        assert not launchers.is_launcher(os.getpid(), folder)


@pytest.mark.parametrize("which", ["one", "launchers", "record"])
def test_records_in_a_folder_that_others_own_end_nothing(
    folder: Path, signals: list[int], monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """Each of the folders is looked at when it is open,
    so that none can be put in its place in between."""
    with launchers.present(folder, [0, 1]):
        (record,) = (folder / launchers.FOLDER).glob("*.json")
        other = os.stat({"one": folder, "launchers": folder / "launchers", "record": record}[which])

        def owner_of(fd: int) -> int:
            return os.geteuid() + (os.path.samestat(os.fstat(fd), other))

        monkeypatch.setattr(careful, "owner_of", owner_of)
        with pytest.raises(ConfigError, match="names a launcher of one belongs to user"):
            _stop(folder)
    assert signals == []


def test_folders_of_others_end_no_process_also_for_root(
    folder: Path, signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with launchers.present(folder, [0, 1]):
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 7)
        with pytest.raises(ConfigError, match="only that user can stop it"):
            _stop(folder)
    assert signals == []


def test_a_record_behind_a_link_is_none(folder: Path, tmp_path: Path, signals: list[int]) -> None:
    with launchers.present(folder, [0, 1]):
        (path,) = (folder / launchers.FOLDER).glob("*.json")
        path.rename(tmp_path / "elsewhere.json")
        path.symlink_to(tmp_path / "elsewhere.json")
        assert launchers.of(folder) == []
        _stop(folder)
        path.unlink()
        (tmp_path / "elsewhere.json").rename(path)
    assert signals == []
