"""Peers that are forked from a warm process are what the interpreter would have made of
the same command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import zygote
from effort import effort
from test_launch_supervisor import LineScreen, alive, pids_of, supervisor

from gossip.launch.guardian import stat
from gossip.launch.local import Program, warm
from gossip.run.telemetry import read_lines

SCRIPT = """
import os, sys, threading
print(sys.argv, sys.orig_argv, __name__, __file__, sys.path[0], __package__, end=" ")
print(__spec__ and (__spec__.name, __spec__.origin), end=" ")
print(sys.modules["__main__"].__dict__ is globals(), threading.active_count())
print(os.getpid() == os.getsid(0) == os.getpgrp(), os.environ["GOSSIP_PEER"], end=" ")
print(os.environ["OMP_NUM_THREADS"], sys.stdin.read())
print(sorted(set(vars()) - {"os", "sys", "threading"}))
if os.environ["GOSSIP_PEER"] == "1":
    def deep(): raise ValueError("no good")
    deep()
if os.environ["GOSSIP_PEER"] == "2":
    sys.exit(7)
"""
OPTIMIZES = """
import sys, torch
before = set(sys.modules)
torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
print(sorted(set(sys.modules) - before))
"""
NOTHING = "print([])"


@pytest.mark.parametrize(
    ("how", "what"),
    effort(
        [
            *(("runs", "script"), ("runs", "package")),
            *(("missing", "module"), ("syntax", "package")),
        ],
        list(product(("runs", "missing", "syntax"), ("script", "module", "package"))),
    ),
)
async def test_a_script_cannot_tell_how_it_was_started(
    tmp_path: Path, how: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first peer comes to the end of the script, the second raises, the third exits. The warm
    process itself starts as a launcher starts it where a script runs, and is forked otherwise. The
    first optimizer of a peer that it forks has nothing left to import: what torch imports only then
    takes as long again as torch itself, for each peer and each start of it."""
    (tmp_path / "lab" / "train").mkdir(parents=True)
    script = tmp_path / {"script": "train.py", "module": "lab/train.py"}.get(
        what, "lab/train/__main__.py"
    )
    words = [str(script)] if what == "script" else ["-m", "lab.train"]
    if what != "package":
        (tmp_path / "lab" / "train").rmdir()
    monkeypatch.chdir(tmp_path)
    if how == "syntax":
        script.write_text("def broken(:\n    pass\n")
    elif how != "missing":
        script.write_text(SCRIPT)
    heard: list[LineScreen] = []
    codes = []
    for warmly_too in (True, False):
        (tmp_path / str(warmly_too)).mkdir()
        watched, screen = supervisor(tmp_path / str(warmly_too), how, peers=3, warm=warmly_too)
        watched.ongoing.program = Program.of([*words, how])
        real = (how, what) == ("runs", "script")
        if real:
            script.write_text(SCRIPT + (OPTIMIZES if warmly_too else NOTHING))
        with contextlib.nullcontext() if real else zygote.forked_warm_processes():
            outcome = await asyncio.wait_for(watched.run(), 60)
        codes.append({life.peer: life.code for life in outcome.lives})
        heard.append(screen)
    assert codes[0] == codes[1]
    for peer, err in product(range(3), (False, True)):
        warmly, coldly = (
            [text for who, text, to_err in each.lines if (who, to_err) == (peer, err)]
            for each in heard
        )
        assert warmly == coldly
    assert how != "runs" or codes[0] == {0: 0, 1: 1, 2: 7}
    assert how != "runs" or any("__main__" in text for _, text, _ in heard[0].lines)
    assert not real or "[]" in [text for _, text, _ in heard[0].lines]


async def test_when_the_warm_process_is_killed_nobody_else_notices(tmp_path: Path) -> None:
    """Peers go on, and one that is started again is forked from another."""
    watched, heard = supervisor(tmp_path, "restart-when-told@1", warm=True)
    killed: list[int] = []

    def kill() -> None:
        killed.append(watched.processes._warm._process.pid)
        os.kill(killed[0], signal.SIGKILL)
        (tmp_path / "run" / "strike").touch()

    back = lambda view: view.rows[1].incarnation == 1 and view.rows[1].state in ("training", "done")  # noqa: E731
    heard.when += [
        (lambda view: view.rows[1].round == 1, kill),
        (back, (tmp_path / "run" / "go").touch),
    ]
    with zygote.forked_warm_processes():
        outcome = await asyncio.wait_for(watched.run(), 60)
    assert killed
    assert outcome.finished == [0, 1, 2]
    assert not any(map(alive, [*killed, *pids_of(tmp_path / "run")]))


async def test_orphans_of_peers_are_not_left_as_zombies(tmp_path: Path) -> None:
    watched, _ = supervisor(tmp_path, "crash@1", warm=True)
    with zygote.forked_warm_processes():
        await asyncio.wait_for(watched.run(), 60)
    spawned = {
        row["pid"]
        for row in read_lines(tmp_path / "run" / "events.jsonl")
        if row["event"] == "spawned"
    }
    found = [stat(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    assert len(spawned) == 3
    assert not [each for each in found if each is not None and each.group in spawned]


DIES = (
    "import os, sys\nif 'gossip.launch.local.warm' in sys.orig_argv:\n    os.kill(os.getpid(), 9)\n"
)
NO_FORK = """
import os, sys
if "gossip.launch.local.warm" in sys.orig_argv:
    for name in ("torch", "gossip.node", "gossip.training"):
        sys.modules[name] = type(sys)(name)
    sys.modules["gossip.node"].Node = sys.modules["gossip.training"].Session = None
    torch = sys.modules["torch"]
    torch.set_num_threads = torch.zeros = torch.SGD = lambda *values, **options: torch
    torch.optim = torch
    def fork():
        raise BlockingIOError(11, "too many of them")
    os.fork = fork
"""


@pytest.mark.parametrize(
    ("torch", "says"),
    [(DIES, "before it was ready (killed by signal 9)"), (NO_FORK, "too many of them")],
    ids=["dies", "no-fork"],
)
async def test_without_the_process_that_forks_peers_are_started_one_by_one_and_it_is_said_once(
    torch: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(torch)
    # or a machine that takes long to start three peers has it said again
    monkeypatch.setattr(warm, "AGAIN_S", 100.0)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    watched, heard = supervisor(tmp_path, "finish", warm=True)
    outcome = await asyncio.wait_for(watched.run(), 60)
    assert (outcome.exit_code, outcome.finished) == (0, [0, 1, 2])
    (line,) = [text for text in heard.said if "forks peers" in text]
    assert says in line
    assert "tried again in 100 s" in line


async def test_the_process_that_forks_is_given_up_after_some_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DIES)
    monkeypatch.setattr(warm, "AGAIN_S", 0.0)
    said: list[str] = []
    start = warm.WarmStart({**os.environ, "PYTHONPATH": str(tmp_path)}, "a word", said.append)
    try:
        assert [await start.ready(asyncio.Event()) for _ in range(7)] == [False] * 7
    finally:
        start.close()
    assert len(said) == warm.FAILURES_MAX
    assert said[-1].endswith("it is not tried again")


@pytest.mark.parametrize(
    ("imports", "works"),
    [
        ("time.sleep(3600)", False),
        ("until = time.time() + 3\nwhile time.time() < until: pass", True),
    ],
    ids=["sleeps", "works"],
)
async def test_a_process_that_forks_is_not_given_up_while_it_works(
    imports: str, works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given up after 90 s, on machines that import torch for longer."""
    (tmp_path / "sitecustomize.py").write_text(f"import time\n{imports}\n" + NO_FORK)
    monkeypatch.setattr(warm, "READY_S", 1.0)
    monkeypatch.setattr(warm, "LOOK_S", 0.1)
    said: list[str] = []
    start = warm.WarmStart({**os.environ, "PYTHONPATH": str(tmp_path)}, "a word", said.append)
    try:
        assert await start.ready(asyncio.Event()) is works
    finally:
        start.close()
    assert len(said) == (not works)


async def test_nobody_waits_for_an_unready_process_once_all_is_to_end(tmp_path: Path) -> None:
    # as torch on a disk that is slow
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(3600)\n")
    start = warm.WarmStart({**os.environ, "PYTHONPATH": str(tmp_path)}, "a word", pytest.fail)
    stop = asyncio.Event()
    waiting = asyncio.create_task(start.ready(stop))
    try:
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
        stop.set()
        assert await asyncio.wait_for(waiting, 20) is False
    finally:
        closed = asyncio.create_task(asyncio.to_thread(start.close))
        done, _ = await asyncio.wait([closed], timeout=20)
        start._process.kill()
        await closed
    assert done, "it was waited for"


async def test_a_peer_that_no_process_can_be_made_for_is_tried_some_times_and_then_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, heard = supervisor(tmp_path, "finish")
    monkeypatch.setattr("gossip.launch.local.processes.START_AGAIN_S", (0.01, 0.01))
    make = watched.processes._start

    def none_for_1(peer: int, *rest: Any) -> Any:
        if peer == 1:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return make(peer, *rest)

    monkeypatch.setattr(watched.processes, "_start", none_for_1)
    outcome = await asyncio.wait_for(watched.run(), 60)
    assert outcome.finished == [0, 2]
    assert sum("peer 1 cannot be started" in text for text in heard.said) == 2
    assert any(
        "it cannot be started: [Errno 11] Resource temporarily unavailable" in text
        for text in heard.said
    )
