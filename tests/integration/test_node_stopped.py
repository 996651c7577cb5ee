"""A node that is stopped and goes on: it reads its mail, hears of its sleep,
and only then looks at timers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import zygote

from gossip.core import events
from gossip.ipc import messages as control
from gossip.ipc.channel import Channel

STOPPED_S = 0.6

NODE = """
import signal, socket, sys, time
from gossip.config import RunConfig
from gossip.core import events
from gossip.node.loop import Node, NodeSpec

class Core:
    incarnation = 0
    token = 0
    def handle(self, event, now):
        name = type(event).__name__
        if name == "Stop":
            return [events.Halt(event.reason)]
        if name in ("Started", "TimerFired"):
            self.token += 1
        told = name in ("DataConfigured", "ClockJumped", "Started")
        if told or getattr(event, "token", 0) % 20 == 1:
            print(name, getattr(event, "late_s", ""), flush=True)
        if name in ("Started", "TimerFired"):
            return [events.SetTimer(self.token, now + 0.01)]
        return []
    def admit(self, *_): return events.NOT_ADMITTED

config = RunConfig(run="00" * 8, peers=1, f=0, aggregator="mean", probe_interval_s=0.2)
trainer = socket.socket(fileno=int(sys.argv[1]))
node = Node(NodeSpec(config, 0), trainer, make_core=lambda *_: Core())
signal.signal(signal.SIGTERM, lambda number, frame: node.stop("SIGTERM"))
sys.exit(node.run())
"""


@contextmanager
def node_of(trainer_end: socket.socket) -> Iterator[subprocess.Popen[str]]:
    """A node that has started."""
    command = [sys.executable, "-c", NODE, str(trainer_end.fileno())]
    process = zygote.Popen(
        command, pass_fds=[trainer_end.fileno()], stdout=subprocess.PIPE, text=True
    )
    trainer_end.close()
    assert process.stdout is not None
    try:
        assert process.stdout.readline().split() == ["Started"]
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_node_that_was_stopped_hears_of_it_after_its_mail_and_before_its_timers() -> None:
    ours, theirs = Channel.pair()
    trainer = Channel(ours)
    with node_of(theirs) as process, closing(trainer):
        assert process.stdout.readline().split() == ["TimerFired"]
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        trainer.send(events.DataConfigured(100, 10))
        time.sleep(STOPPED_S)  # how long it is stopped is the point
        os.kill(process.pid, signal.SIGCONT)
        heard = []
        while "ClockJumped" not in heard[-1:]:
            name, *late = process.stdout.readline().split()
            heard.append(name)
        # Before it was stopped for good it may have printed a timer; after, none may come between.
        assert [name for name in heard if name != "TimerFired"] == ["DataConfigured", "ClockJumped"]
        assert heard[-2] == "DataConfigured"
        assert float(late[0]) > STOPPED_S - 0.4
        trainer.send(control.Close("finished"))
        assert process.wait(20) == 0


def test_a_node_that_is_asked_to_stop_alone_leaves_its_trainer_unfinished() -> None:
    """As it was: exit code 0, so the launcher counted the peer among those who had finished."""
    ours, theirs = Channel.pair()
    trainer = Channel(ours)
    with node_of(theirs) as process, closing(trainer):
        process.send_signal(signal.SIGTERM)
        halted: list[events.Halt] = []
        while not halted:
            messages, _ = trainer.receive(20.0)
            halted += [message for message in messages if isinstance(message, events.Halt)]
        assert halted == [events.Halt("SIGTERM", control.EXIT_SIGTERM)]
        error = control.error_of(halted[0])
        assert isinstance(error, SystemExit)
        assert error.code == control.EXIT_SIGTERM
        assert process.wait(20) == control.EXIT_SIGTERM
