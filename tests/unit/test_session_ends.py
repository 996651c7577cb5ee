"""How a trainer's process ends: real signals, real exits, a scripted node."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import zygote

HERE = Path(__file__).parent
Script = subprocess.Popen[str]

PREAMBLE = """
import os, sys, threading, time
sys.path.insert(0, {here!r})
from pathlib import Path
import torch
from trainer_fakes import FakeNode, backward, echo, small_model, step
from gossip.config import RunConfig
from gossip.core import events
from gossip.errors import SwarmError
from gossip.ipc import messages as control
from gossip.training.session import Session
from gossip.training.node_start import PeerPlace, connect
from gossip.training.watch import TerminationHandler

def say(*words):
    print(*words, flush=True)

def node(n):
    try:
        SCRIPT(n)
    finally:
        reasons = [m.reason for m in n.heard if isinstance(m, control.Close)]
        contributions = sum(isinstance(m, control.Contribute) for m in n.heard)
        say("closed:", reasons, "contributions:", contributions)

def begin(options={{}}, **place):
    global SCRIPT
    config = RunConfig(peers=1, run="00" * 8, f=0, aggregator="mean", node="thread", **options)
    start = lambda incarnation, end: FakeNode(incarnation, end, node)
    termination = TerminationHandler()
    termination.install()
    return Session(PeerPlace(config, **place), start, connect(start, 0), termination)

SCRIPT = echo
model, optimizer = small_model()
"""


@pytest.fixture
def start() -> Iterator[Callable[..., Script]]:
    """Begins a script, of which nothing must be left when the test ends."""
    begun: list[Script] = []

    def begin(*parts: str, pass_fds: Sequence[int] = ()) -> Script:
        code = PREAMBLE.format(here=str(HERE)) + textwrap.dedent("".join(parts))
        begun.append(
            zygote.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=pass_fds,
                start_new_session=True,
                text=True,
            )
        )
        return begun[-1]

    yield begin
    ended = [script.poll() is not None for script in begun]
    for script in begun:
        script.kill()
        script.communicate()
    assert all(ended), "a script had not ended"


def wait_for(process: Script, word: str) -> None:
    for line in process.stdout:
        if word in line:
            return
    pytest.fail(f"it ended without saying {word!r}: {process.stderr.read()[-2000:]}")


SIGTERMS = {
    "in a step": """
        peer = begin()
        peer.prepare(model, optimizer)
        for seed in range(10**9):
            step(model, optimizer, seed)
            if seed == 3:
                say("now")
    """,
    "in a wait for a round": """
        def SCRIPT(n):
            n.first_update()
            say("now")
            n.expect(control.Close)
            n.send(events.Halt("stopped", 0))

        peer = begin()
        peer.prepare(model, optimizer)
        step(model, optimizer, 0)
    """,
    "of the job, and the same by the launcher": """
        peer = begin()
        peer.prepare(model, optimizer)
        for seed in range(10**9):
            backward(model, seed)
            if seed == 3:
                os.kill(os.getpid(), 15)
                os.kill(os.getpid(), 15)
            optimizer.step()
    """,
}


@pytest.mark.parametrize("when", SIGTERMS)
def test_sigterm_finishes_the_step_leaves_politely_and_exits_143(start, when):
    process = start(SIGTERMS[when])
    if "now" in SIGTERMS[when]:
        wait_for(process, "now")
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert "closed: ['stopped']" in out
    assert "Traceback" not in err


def test_a_later_sigterm_kills_at_once(start):
    process = start("""
        peer = begin()
        say("computing")
        while True:
            time.sleep(0.01)
    """)
    wait_for(process, "computing")
    process.send_signal(signal.SIGTERM)
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    assert process.returncode == -signal.SIGTERM
    process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_ends_the_wait_for_those_who_are_behind(start, number, code):
    process = start("""
        def SCRIPT(n):
            n.prepared()
            n.go(0)
            first = n.expect(control.Close)
            say("waiting")
            assert n.expect(control.Close) == first
            n.send(events.Halt("finished", 0))

        peer = begin()
        peer.prepare(model, optimizer)
        peer.close()
    """)
    wait_for(process, "waiting")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "closed: ['finished', 'finished']" in out


ROUND_NEVER_ENDS = """
        def SCRIPT(n):
            n.first_update()
            n.expect(control.Close)
            n.send(events.Halt("finished", 0))

        peer = begin({"overlap": 1})
        peer.prepare(model, optimizer)
        step(model, optimizer, 0)
        say("in flight")
"""


@pytest.mark.parametrize("by_signal", [True, False])
def test_a_round_in_flight_is_not_waited_for_without_limit(start, by_signal):
    """The others hang, and this peer has left its loop."""
    process = start(
        "" if by_signal else "        import gossip.training.leaving as s; s.CLOSE_S = 1.0\n",
        ROUND_NEVER_ENDS,
        "        peer.close()\n        say('left')\n",
    )
    wait_for(process, "in flight")
    if by_signal:
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "left" in out


def test_a_disk_that_hangs_does_not_keep_a_peer_that_is_asked_to_go(start, tmp_path):
    process = start(f"""
        from gossip.training import checkpointing
        from gossip.core.ledger import pack_ledger, squeeze
        checkpointing.SAVED_S = 1.0
        def hang(fd):
            say("the disk hangs")
            threading.Event().wait()
        def SCRIPT(n):
            offered = n.first_update()
            n.applied(0, 0, n.arena.updates[offered.slot])
            n.go(1, 1)
            n.expect(events.LedgerRequest)
            tables = ([0], [], [], [], [], 0)
            n.send(events.LedgerReply(1, squeeze(pack_ledger(1, bytes(16), tables, whole=True))))
            n.expect(control.Close)
            n.send(events.Halt("stopped", 0))
        os.fsync = hang
        peer = begin()
        peer.prepare(model, optimizer)
        for step in peer.steps(1, save={str(tmp_path / "saved")!r}):
            backward(model, step)
            optimizer.step()
    """)
    wait_for(process, "the disk hangs")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "did not finish a checkpoint in time" in err
    assert "closed:" in out


def test_an_exception_of_the_script_is_written_down_and_told_to_the_node(start, tmp_path):
    process = start(f"""
        peer = begin(run_dir=Path({str(tmp_path)!r}), peer=0)
        peer.prepare(model, optimizer)
        step(model, optimizer, 0)
        def mine():
            raise ValueError("my own bug")
        mine()
    """)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "closed: ['raised'] contributions: 1" in out
    assert err.count("Traceback") == 1
    assert "ValueError: my own bug" in err
    error = json.loads((tmp_path / "peer-0" / "error.json").read_text())
    said = {name: error[name] for name in ("type", "message", "round", "peer", "incarnation")}
    assert said == {
        "type": "ValueError",
        "message": "my own bug",
        "round": 1,
        "peer": 0,
        "incarnation": 0,
    }
    # in front of them are those of the process that was forked
    assert [frame["function"] for frame in error["frames"]][-2:] == ["<module>", "mine"]
    assert sorted(path.name for path in (tmp_path / "peer-0").iterdir()) == [
        "error.json",
        "model.json",
    ]


def test_an_error_of_the_swarm_sets_the_exit_code(start):
    process = start("""
        def SCRIPT(n):
            n.prepared()
            n.send(events.Halt("2 peers are left, a round needs 3", 5))

        peer = begin()
        peer.prepare(model, optimizer)
    """)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 5
    assert err == "SwarmError: 2 peers are left, a round needs 3\n"


def test_a_trainer_whose_launcher_is_gone_leaves_though_its_script_computes(start):
    ours, theirs = socket.socketpair()
    process = start(
        f"""
        peer = begin(status_fd={theirs.fileno()})
        peer.prepare(model, optimizer)
        say("computing")
        time.sleep(1000)
    """,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    wait_for(process, "computing")
    ours.close()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "closed: ['stopped']" in out


def test_a_launcher_that_writes_is_not_taken_for_gone_and_the_end_of_the_script_closes_the_session(
    start,
):
    ours, theirs = socket.socketpair()
    process = start(
        f"""
        peer = begin(status_fd={theirs.fileno()})
        say("begun")
        assert sys.stdin.readline() == "go on\\n"
        assert os.read({theirs.fileno()}, 100) == b"hello"
        say("alive")
        peer.prepare(model, optimizer)
        step(model, optimizer, 0)
    """,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    wait_for(process, "begun")
    ours.send(b"hello")
    out, err = process.communicate("go on\n", timeout=60)
    assert process.returncode == 0, err
    assert "alive" in out
    assert "closed: ['finished'] contributions: 1" in out
    assert err == ""
    ours.close()
