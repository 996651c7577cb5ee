"""A node that plays from a script at the other end of a real socket pair,
and the session that talks to it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from gossip.config import RunConfig
from gossip.core import events, is_further
from gossip.ipc import messages as control
from gossip.ipc.arena import Arena, allocate, map_bytes
from gossip.ipc.channel import Channel, ChannelClosed
from gossip.training.layout import PRESENT, Layout
from gossip.training.local_steps import LocalSteps
from gossip.training.node_start import PeerPlace, connect
from gossip.training.session import Session
from gossip.training.state import (
    _aligned,
    load_document,
    plan_state,
    read_packed_state,
    split_state,
)
from gossip.training.steps import PlainSteps
from gossip.training.watch import TerminationHandler

PATIENCE_S = 20.0


def allocate_bytes(data: bytes) -> int:
    """A descriptor of shareable memory that holds a copy of ``data``. The caller closes it."""
    fd = allocate(len(data))
    map_bytes(fd, len(data))[:] = data
    return fd


class FakeNode:
    """One life of a node: runs ``script(node)`` in a thread;
    what it asserts is raised again by ``result``."""

    def __init__(
        self, incarnation: int, end: socket.socket, script: Callable[[FakeNode], None]
    ) -> None:
        self.incarnation = incarnation
        self.channel = Channel(end)
        self.arena: Arena | None = None
        self.heard: list[Any] = []
        self.fds: list[int] = []
        self.logs: list[str] = []
        self.plans: list[control.ScriptPlan] = []
        self.error: BaseException | None = None
        self._waiting: list[Any] = []
        self._script = script
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._script(self)
        except BaseException as error:  # noqa: BLE001 - raised again by result()
            self.error = error
        finally:
            self.channel.close()
            for fd in self.fds:
                os.close(fd)

    # The handle that the trainer has.

    def ended(self, within_s: float) -> bool:
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def kill(self) -> None:
        return

    def last_words(self) -> str:
        return f"scripted end of incarnation {self.incarnation}"

    def result(self) -> None:
        assert self.ended(PATIENCE_S), "the script has not ended"
        if self.error is not None:
            raise self.error

    # What a script does.

    def send(self, *messages: Any, fds: Sequence[int] = ()) -> None:
        self.channel.send(*messages, fds=tuple(fds))
        for fd in fds:
            os.close(fd)

    def next(self) -> Any:
        while not self._waiting:
            messages, fds = self.channel.receive(PATIENCE_S)
            assert messages, "nothing came from the trainer"
            self.fds += fds
            for message in messages:
                self.heard.append(message)
                if isinstance(message, control.Log):
                    self.logs.append(message.metrics)
                elif isinstance(message, control.ScriptPlan):
                    self.plans.append(message)
                else:
                    self._waiting.append(message)
        return self._waiting.pop(0)

    def expect(self, kind: type) -> Any:
        message = self.next()
        assert isinstance(message, kind), f"expected {kind.__name__}, the trainer said {message}"
        return message

    def prepared(self) -> control.Prepare:
        said = self.expect(control.Prepare)
        self.arena = Arena.attach(self.fds.pop(0), said.elements)
        return said

    def go(
        self,
        round_id: int,
        slot: int = 0,
        ranges: Any = None,
        epoch: int = 0,
        want_parameters: bool = False,
        collectives: int = 0,
    ) -> None:
        data = ranges is not None, epoch, tuple(ranges or ())
        order = control.StartRoundCommand(
            round_id, slot, *data, want_parameters, 1, 1, collectives=collectives
        )
        self.send(order)

    def offered(self, *about: Any, **more: Any) -> control.Contribute:
        """Let the trainer compute a round (``go``), and return its update."""
        self.go(*about, **more)
        said = self.expect(control.Contribute)
        assert isinstance(said, control.Contribute)
        return said

    def first_update(self) -> control.Contribute:
        self.prepared()
        return self.offered(0)

    def sharded(self) -> events.DataConfigured:
        """Begin with a trainer that shards its data."""
        self.prepared()
        self.go(0)
        said = self.expect(events.DataConfigured)
        assert isinstance(said, events.DataConfigured)
        return said

    def end(self, *about: Any, **more: Any) -> None:
        """Let the trainer compute a round, and end the run when it leaves."""
        self.go(*about, **more)
        self.halt()

    def put(self, slot: int, vector: np.ndarray) -> None:
        """``vector``: of all parameters, which then all have a gradient,
        or as long as an update is."""
        assert self.arena is not None
        self.arena.results[slot][: len(vector)] = vector
        self.arena.results[slot][len(vector) :] = PRESENT

    def apply(self, round_id: int, slot: int, vector: np.ndarray) -> None:
        self.put(slot, vector)
        self.send(control.ApplyCommand(round_id, slot, 0.0))

    def applied(self, round_id: int, slot: int, vector: np.ndarray) -> None:
        """Have a result applied."""
        self.apply(round_id, slot, vector)
        self.expect(control.AppliedReply)

    def lost(self, round_id: int) -> None:
        """Have a round applied that changes nothing."""
        self.send(control.ApplyCommand(round_id, -1, 0.0))
        self.expect(control.AppliedReply)

    def restored(self, round_id: int, state: bytes, **more: Any) -> None:
        """Have a state loaded."""
        self.restore(round_id, state, **more)
        self.expect(events.Restored)

    def restore(self, round_id: int, state: bytes, **more: Any) -> None:
        order = control.RestoreCommand(round_id, len(state), **more)
        self.send(order, fds=[allocate_bytes(state)])

    def halt(self) -> control.Close:
        said = self.expect(control.Close)
        self.send(events.Halt(said.reason, 0))
        return said


def echo(node: FakeNode) -> None:
    """A swarm of one: every update comes back as it was."""
    node.prepared()
    round_id = collectives = 0
    node.go(round_id, 0)
    while True:
        match message := node.next():
            case control.Contribute():
                assert node.arena is not None
                kind, slot = message.kind, -1
                if message.samples:
                    slot = message.round_id % 4
                    node.put(slot, node.arena.updates[message.slot])
                is_step = not is_further(kind)
                before, collectives = collectives, collectives + (not is_step)
                node.send(
                    control.ApplyCommand(
                        message.round_id, slot, 0.0, is_step=is_step, collectives=before, kind=kind
                    )
                )
            case control.AppliedReply():
                round_id = message.round_id + 1
                node.go(round_id, round_id % 4, collectives=collectives)
            case events.LedgerRequest():
                node.send(events.LedgerReply(round_id, b""))
            case control.Close():
                node.send(events.Halt(message.reason, 0))
                return


class FakeNodeSwarm:
    """A session whose node lives ``scripts``, one a life."""

    def __init__(self, *scripts: Callable[[FakeNode], None], **options: Any) -> None:
        self.nodes: list[FakeNode] = []
        self._scripts = list(scripts)
        settings = {
            "peers": 1,
            "run": "00" * 8,
            "f": 0,
            "aggregator": "mean",
            "node": "thread",
            **options,
        }
        reference = settings.pop("reference", None)
        place_options = {key: settings.pop(key) for key in ("run_dir_path",) if key in settings}
        peer = settings.pop("peer", 0)
        self.place = PeerPlace(
            RunConfig(**settings), peer, run_dir=place_options.get("run_dir_path")
        )
        self.termination = TerminationHandler()
        connection = connect(self.start, 0)
        self.session = Session(self.place, self.start, connection, self.termination, reference)

    def prepare(self, seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """Prepare a ``small_model``."""
        return self.session.prepare(*small_model(seed))

    def start(self, incarnation: int, end: socket.socket) -> FakeNode:
        node = FakeNode(incarnation, end, self._scripts.pop(0))
        self.nodes.append(node)
        return node

    def __enter__(self) -> FakeNodeSwarm:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()
        for node in self.nodes:
            node.result()


def local_steps(
    layout: Layout, step: Callable[[], object], total: int, outer: str, fragments: int = 1
) -> LocalSteps:
    """Local steps of a peer whose rounds have no deadline. ``step``: of its own optimizer."""
    config = RunConfig(local_steps=total * fragments, outer=outer, fragments=fragments)
    exchange = SimpleNamespace(late_s=lambda since: 0.0, deadline_s=0.0, is_decided=lambda: False)
    trained = SimpleNamespace(layout=layout, inner_step=step, optimizer=None)
    model = SimpleNamespace(extra=SimpleNamespace(latest=dict))
    run: Any = SimpleNamespace(config=config, exchange=exchange, hooks=PlainSteps(), model=model)
    return LocalSteps(trained, run)  # type: ignore[arg-type]


@contextmanager
def prepared_swarm(
    *scripts: Callable[[FakeNode], None], **options: Any
) -> Iterator[tuple[FakeNodeSwarm, torch.nn.Module, torch.optim.Optimizer]]:
    """Yield a swarm, and the ``small_model`` that its session has prepared."""
    with FakeNodeSwarm(*scripts, **options) as swarm:
        yield swarm, *swarm.prepare()


def small_model(seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def backward(model: torch.nn.Module, seed: int) -> None:
    """Fresh gradients from a batch that ``seed`` names."""
    generator = torch.Generator().manual_seed(seed)
    model.zero_grad()
    model(torch.randn(4, 5, generator=generator)).square().sum().backward()


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    backward(model, seed)
    optimizer.step()


def flat_parameters(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def unpack_state(data: bytes, model: torch.nn.Module, optimizer: Any) -> dict[str, Any]:
    """Load a packed state."""
    return load_document(read_packed_state(data), model, optimizer)


def pack_state(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    extra: dict[str, Any],
    trained: Sequence[torch.Tensor] | None = None,
    **more: Any,
) -> bytes:
    """The state as ``plan_state`` packs it."""
    plan = plan_state(model, optimizer, extra, trained, **more)
    memory = bytearray(plan.nbytes)
    plan.write(memoryview(memory))
    return bytes(memory)


def part_sizes(data: bytes) -> tuple[int, ...]:
    """Return how many bytes each part of a packed state has."""
    base, state, *others = [_aligned(len(file)) for file in split_state(data)]
    return (base + state, *others)


def apply_alone(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, result: np.ndarray
) -> None:
    """Step without gossip, with a round's result as the gradients."""
    pieces = torch.from_numpy(result.copy()).split([p.numel() for p in model.parameters()])
    for parameter, piece in zip(model.parameters(), pieces, strict=True):
        parameter.grad = piece.view_as(parameter)
    optimizer.step()


def same_bits(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


__all__ = [
    "ChannelClosed",
    "FakeNode",
    "FakeNodeSwarm",
    "backward",
    "echo",
    "flat_parameters",
    "local_steps",
    "pack_state",
    "part_sizes",
    "same_bits",
    "small_model",
    "step",
]
