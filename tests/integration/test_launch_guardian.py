from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import zygote

from gossip.launch import guardian
from gossip.launch.guardian import carries, members, stat
from gossip.launch.local.peer_process import Guardian
from gossip.launch.ssh import agent
from gossip.run.telemetry import read_lines

FAKE = Path(__file__).with_name("launch_fake_peer.py")
LAUNCHER = """
import asyncio, sys
from gossip.config import RunConfig
from gossip.launch.report.screens import PlainScreen
from gossip.launch.local.program import Program
from gossip.launch.local.supervisor import Supervisor
config = RunConfig.load(sys.argv[1])
program = Program(sys.argv[2], (sys.argv[3],))
asyncio.run(Supervisor(config, program, PlainScreen()).run())
"""


def start_launcher(
    tmp_path: Path, mode: str, warm: bool = False
) -> tuple[subprocess.Popen[bytes], Path]:
    from gossip.config import resolve

    folder = tmp_path / "run"
    folder.mkdir()
    resolved = resolve(
        {"peers": 3, "run_dir": str(folder), "name": "t", "warm": warm, "drills": True}
    )
    config = resolved.with_values("drawn", run="00000000000000aa", f=0).config
    config.dump(folder / "config.json")
    command = [sys.executable, "-c", LAUNCHER, str(folder / "config.json"), str(FAKE), mode]
    return zygote.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ), folder


def rows(folder: Path) -> list[dict[str, object]]:
    path = folder / "events.jsonl"
    return list(read_lines(path))


def wait_for_metrics(folder: Path, peers: int) -> None:
    """Until each peer has said the last thing that it says before it settles down."""
    until = time.monotonic() + 30
    while len({row["peer"] for row in rows(folder) if row.get("event") == "metrics"}) < peers:
        assert time.monotonic() < until, "the peers did not get ready"
        time.sleep(0.02)


def token_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(
        word.split(b"=", 1)[1].decode() for word in words if word.startswith(b"GOSSIP_LAUNCHER=")
    )


def carriers(token: str) -> list[int]:
    """Every process that was started by this launcher, at whatever remove."""
    found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [
        pid
        for pid in found
        if (known := stat(pid)) is not None and known.state not in "ZX" and carries(pid, token)
    ]


@pytest.mark.parametrize(
    ("mode", "warm"),
    [(mode, False) for mode in ("polite", "stubborn", "stopped", "workers", "orphans")]
    + [("orphans", True)],
)
def test_no_process_survives_a_killed_launcher(tmp_path: Path, mode: str, warm: bool) -> None:
    launcher, folder = start_launcher(tmp_path, mode, warm)
    wait_for_metrics(folder, 3)
    token = token_of(
        next(int(str(row["pid"])) for row in rows(folder) if row["event"] == "spawned")
    )
    assert len(carriers(token)) >= 6
    assert (folder / "drill.sock").is_socket()
    launcher.kill()
    launcher.wait()
    killed = time.monotonic()
    while carriers(token) or (folder / "drill.sock").exists():
        assert time.monotonic() - killed < guardian.MERCY_S + 10, f"left behind: {carriers(token)}"
        time.sleep(0.02)


def test_a_pid_that_somebody_else_has_by_now_is_not_ours() -> None:
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    try:
        found = stat(bystander.pid)
        assert members(bystander.pid, found.started, "token") == [bystander.pid]
        assert members(bystander.pid, found.started - 1, "token") == []
        guardian.end({bystander.pid: found.started - 1}, "token", mercy_s=0.0)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_group_whose_leader_is_gone_is_known_by_its_word() -> None:
    code = (
        "import os, sys, time\nif os.fork() == 0:\n    print(os.getpid(), flush=True)\n    "
        "time.sleep(60)\n"
    )
    leader = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, guardian.TOKEN_VARIABLE: "word"},
        start_new_session=True,
    )
    child = int(leader.stdout.readline())
    found = stat(leader.pid)
    leader.wait()
    assert members(leader.pid, found.started, "another word") == []
    assert members(leader.pid, found.started, "word") == [child]
    guardian.end({leader.pid: found.started}, "word", mercy_s=0.0)
    until = time.monotonic() + 10
    while members(leader.pid, found.started, "word"):
        assert time.monotonic() < until
        time.sleep(0.01)
    leader.stdout.close()


def test_who_leaves_by_itself_is_not_killed_and_not_waited_for_after() -> None:
    code = "import sys; sys.stdin.read(); sys.exit(7)"
    peer = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True
    )
    assert peer.stdin is not None
    found = stat(peer.pid)
    ending = threading.Thread(
        target=guardian.end, args=({peer.pid: found.started}, "nobody's word", 60.0)
    )
    ending.start()
    peer.stdin.close()
    assert peer.wait(30) == 7
    ending.join(30)
    assert not ending.is_alive()


def test_what_may_take_its_time_after_a_launcher_has_died_leaves_room_in_two_seconds() -> None:
    """The rest is for the processor: a wait is the same on a slow machine, what has to be
    calculated is not."""
    assert guardian.MERCY_S <= 1.0
    assert agent.STOP_S + agent.LEAVE_S <= 1.0


def test_a_guardian_that_is_told_that_all_is_done_kills_nobody() -> None:
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    try:
        found = stat(bystander.pid)
        text = f"token word\nwatch {bystander.pid} {found.started}\ndone\n"
        command = [sys.executable, "-I", "-S", guardian.__file__]
        subprocess.run(command, input=text, text=True, check=True, timeout=30)
        assert bystander.poll() is None
    finally:
        bystander.send_signal(signal.SIGKILL)
        bystander.wait()


def test_a_guardian_that_somebody_has_stopped_does_not_keep_its_launcher() -> None:
    ours = Guardian("word")
    os.kill(ours.pid, signal.SIGSTOP)
    closing = threading.Thread(target=ours.close, daemon=True)
    closing.start()
    closing.join(30.0)
    kept = closing.is_alive()
    if kept:
        os.kill(ours.pid, signal.SIGKILL)
    assert not kept


def test_the_wait_for_a_processor_is_told_from_the_time_asleep() -> None:
    processor = min(os.sched_getaffinity(0))
    pinned = f"import os, time; os.sched_setaffinity(0, [{processor}])"
    busy = [subprocess.Popen([sys.executable, "-c", f"{pinned}\nwhile True: pass"]) for _ in "abc"]
    idle = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        until = time.monotonic() + 60
        while guardian.starved_s(busy[0].pid) < 1.0:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert guardian.starved_s(idle.pid) < 1.0
        used = psutil.Process(busy[0].pid).cpu_times()
        assert guardian.starved_s(busy[0].pid) > 1.3 * used.user, "two others have the processor"
    finally:
        for process in (*busy, idle):
            process.kill()
            process.wait()
    assert guardian.starved_s(idle.pid) == 0.0, "it is gone"
