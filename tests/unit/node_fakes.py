"""A core that does what the test says, and a trainer that the test plays by hand,
for tests of the node's loop."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gossip.config import RunConfig
from gossip.core import events
from gossip.core.events import Effect, Event, Payload, TimerFired
from gossip.ipc import messages as control
from gossip.ipc.arena import Arena
from gossip.ipc.channel import Channel, ChannelClosed
from gossip.node.loop import Node, NodeSpec, over_zeromq

WAIT_S = 20.0


def config(**values: Any) -> RunConfig:
    return RunConfig(**{"run": "00" * 8, "f": 0, "peers": 1, "aggregator": "mean", **values})


def vector(*numbers: float) -> Payload:
    data = np.array(numbers, dtype=np.float32)
    return Payload(data, data.nbytes)


class FakeCore:
    """Remembers every event, answers with what ``on`` returns;
    ``say`` queues effects from the test's thread.

    A timer of its own, which it tells nobody of, calls it every few milliseconds so that
    it can say them.
    """

    def __init__(self, on: Callable[[Event], list[Effect]] = lambda event: []) -> None:
        self.on = on
        self.heard: list[Event] = []
        self.incarnation = 0
        self._news = threading.Condition()
        self._to_say: list[Effect] = []
        self._beats = 0

    def handle(self, event: Event, now: float) -> list[Effect]:
        beat = isinstance(event, TimerFired) and event.token < 0
        with self._news:
            if not beat:
                self.heard.append(event)
            said, self._to_say = self._to_say, []
            self._news.notify_all()
        if beat or isinstance(event, events.Started):
            self._beats += 1
            said = [*said, events.SetTimer(-self._beats, now + 0.003)]
        return said if beat else said + self.on(event)

    def admit(self, sender: int, message: Any) -> events.Admission:
        return events.NOT_ADMITTED

    def say(self, *effects: Effect) -> None:
        """The effects go out with the next event, all in one turn."""
        with self._news:
            self._to_say += effects

    def wait(self, what: Callable[[], Any]) -> Any:
        """What ``what`` returns, as soon as it is true."""
        with self._news:
            found = None

            def look() -> bool:
                nonlocal found
                found = what()
                return bool(found)

            assert self._news.wait_for(look, WAIT_S), f"it never came; heard: {self.heard[-20:]}"
            return found

    def wait_for(self, kind: type, nth: int = 0) -> Any:
        """The nth event of a kind."""
        return self.wait(
            lambda: [event for event in self.heard if isinstance(event, kind)][nth : nth + 1]
        )[0]

    def count(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.heard)


class NodeRig:
    """A node in a thread, its fake core, and the trainer's end of the channel."""

    def __init__(self, core: FakeCore, elements: int = 4, **options: Any) -> None:
        self.core = core
        spec_fields = {
            key: options.pop(key)
            for key in ("run_dir", "status_fd", "peer", "incarnation")
            if key in options
        }
        transport = options.pop("transport", over_zeromq)
        trainer_end, node_end = Channel.pair()
        self.trainer = Channel(trainer_end)
        values = {"probe_interval_s": 0.01, **options}
        spec = NodeSpec(config(**values), spec_fields.pop("peer", 0), **spec_fields)
        self.node = Node(spec, node_end, transport, make_core=self._make)
        self.arena = Arena.create(elements)
        self.exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.said: list[Any] = []

    def _make(self, *made_of: Any) -> Any:
        self.made_of = made_of
        return self.core

    def _run(self) -> None:
        self.exit_code = self.node.run()

    def __enter__(self) -> NodeRig:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self.core.say(events.Halt("the test is over"))
            self.node.stop("the test is over")
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        self.trainer.close()

    def join(self) -> int:
        self._thread.join(WAIT_S)
        assert self.exit_code is not None
        return self.exit_code

    def prepare(self) -> None:
        elements = self.arena.elements
        message = control.Prepare(elements, b"layout", b"state", 8)
        self.trainer.send(message, fds=(self.arena.fd,))
        self.core.wait_for(events.Prepared)

    def next(self) -> tuple[Any, list[int]]:
        """The next message of the node, with the descriptors of its packet."""
        while not self.said:
            messages, fds = self.trainer.receive(WAIT_S)
            assert messages, "the node said nothing"
            self.said += [(message, fds if i == 0 else []) for i, message in enumerate(messages)]
        return self.said.pop(0)

    def hear(self) -> Any:
        return self.next()[0]

    def is_silent(self, for_s: float = 0.05) -> bool:
        return not self.said and not self.trainer.receive(for_s)[0]

    def poke(self) -> None:
        """Returns when the node has turned around twice since the call."""
        seen = self.core.count(events.TrainerProgress)
        self.core.wait(lambda: self.core.count(events.TrainerProgress) >= seen + 2)


def end_of(channel: Channel) -> bool:
    """Whether the other side closes before long; reads over what it said before."""
    try:
        while channel.receive(WAIT_S)[0]:
            pass
    except ChannelClosed:
        return True
    return False


def socket_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


__all__ = ["FakeCore", "NodeRig", "TimerFired", "config", "end_of", "socket_pair", "vector"]


@contextmanager
def node_rig(prepared: bool = False, **options: Any) -> Iterator[tuple[FakeCore, NodeRig]]:
    """Yield a fake core and the rig of its node, whose trainer is ``prepared`` or not yet."""
    with NodeRig(FakeCore(), **options) as rig:
        if prepared:
            rig.prepare()
        yield rig.core, rig
