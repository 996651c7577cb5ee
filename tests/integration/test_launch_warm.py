"""Peers that are forked from a warm process are what the interpreter would have made of the same command."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from test_launch_supervisor import Heard, alive, pids_of, supervisor

from gossip.launch.guardian import stat
from gossip.telemetry import read_lines

SCRIPT = """
import os, sys, threading
print(sys.argv, __name__, __file__, sys.path[0], sys.modules["__main__"].__dict__ is globals(), threading.active_count())
print(os.getpid() == os.getsid(0) == os.getpgrp(), os.environ["GOSSIP_PEER"], os.environ["OMP_NUM_THREADS"], sys.stdin.read())
print(sorted(set(vars()) - {"os", "sys", "threading"}))
if sys.argv[1:] == ["raise"]:
    def deep(): raise ValueError("no good")
    deep()
if sys.argv[1:] == ["exit"]:
    sys.exit(7)
"""


@pytest.mark.parametrize("how", ["end", "raise", "exit", "missing", "syntax"])
async def test_a_script_cannot_tell_how_it_was_started(tmp_path: Path, how: str) -> None:
    script = tmp_path / "train.py"
    if how == "syntax":
        script.write_text("def broken(:\n    pass\n")
    elif how != "missing":
        script.write_text(SCRIPT)
    heard: list[Heard] = []
    codes = []
    for warm in (True, False):
        (tmp_path / str(warm)).mkdir()
        watched, screen = supervisor(tmp_path / str(warm), how, peers=2, warm=warm)
        watched.command[2:] = [str(script), how]
        outcome = await asyncio.wait_for(watched.run(), 60)
        codes.append({life.peer: life.code for life in outcome.lives})
        heard.append(screen)
    assert codes[0] == codes[1]
    for peer, err in ((0, False), (0, True), (1, False), (1, True)):
        warmly, coldly = ([text for who, text, to_err in each.lines if (who, to_err) == (peer, err)] for each in heard)
        assert warmly == coldly
    assert how in ("missing", "syntax") or any("__main__" in text for _, text, _ in heard[0].lines)


async def test_when_the_warm_process_is_killed_nobody_else_notices(tmp_path: Path) -> None:
    """Peers go on, and one that is started again is forked from another."""
    watched, heard = supervisor(tmp_path, "restart@1", warm=True)
    warm: list[int] = []

    def kill() -> None:
        assert watched._warm is not None
        warm.append(watched._warm._process.pid)
        os.kill(warm[0], signal.SIGKILL)

    back = lambda view: view.rows[1].incarnation == 1 and view.rows[1].state in ("training", "done")  # noqa: E731
    heard.when += [(lambda view: 1 in view.restarts or view.rows[1].round == 1, kill), (back, (tmp_path / "run" / "go").touch)]
    outcome = await asyncio.wait_for(watched.run(), 60)
    assert warm
    assert outcome.finished == [0, 1, 2]
    assert not any(map(alive, [*warm, *pids_of(tmp_path / "run")]))


async def test_orphans_of_peers_are_not_left_as_zombies(tmp_path: Path) -> None:
    watched, _ = supervisor(tmp_path, "crash@1", warm=True)
    await asyncio.wait_for(watched.run(), 60)
    spawned = {row["pid"] for row in read_lines(tmp_path / "run" / "events.jsonl") if row["event"] == "spawned"}
    found = [stat(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    assert len(spawned) == 3
    assert not [each for each in found if each is not None and each.group in spawned]
