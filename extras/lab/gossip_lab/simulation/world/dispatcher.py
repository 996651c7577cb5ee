"""Lets the cores of a swarm handle events, and carries out the effects that they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from gossip.core import Commit, Effect, Event, PeerId, Received, Send, TimerFired, Token, events
from gossip.vectors import compared

from .host import SimProcess, SwarmEnvironment
from .observer import MANY
from .slow_nodes import SlowNodes
from .timeline import SimulationStuck
from .trace import Trace

# Maximum number of events in a run. With more, a core probably causes events forever.
HANDLED_MAX = 50_000_000
CRASHED: str = "crashed"

CarryOut: TypeAlias = dict[type, Callable[[SimProcess[Any], Any], object]]
"""Type of an effect -> function that carries it out for a process."""


def _as_received(host: SimProcess[Any], event: Received) -> tuple[type, Received]:
    """Return the type of the message, by which hooks select the event, and the event with the data
    that a real node adds to it."""
    kind = type(event.message)
    if kind is Commit and host.admit is not None:
        event = compared(event, host.admit)
    return kind, event


class Dispatcher:
    """Passes events to cores, and carries out their effects.

    Args:
        trace: Records all events; None if they are not recorded.
        carry_out: Functions for effects on links, on the trainer and on the process.

    Attributes:
        handled: Number of events that cores have handled. If it exceeds ``handled_max``,
            ``SimulationStuck`` is raised.
        event, peer, effects: The present event, the peer that handles it, and the effects that its
            core has returned.
        slow_nodes: Nodes that need time for each event.
    """

    def __init__(
        self,
        swarm: SwarmEnvironment,
        trace: Trace | None,
        carry_out: CarryOut,
    ) -> None:
        self.swarm = swarm
        self.handled, self.handled_max = 0, HANDLED_MAX
        self.event: Event | None = None
        self.peer: PeerId = -1
        self.effects: Sequence[Effect] = ()
        self.slow_nodes = SlowNodes(swarm, self.handle)
        self._record = (lambda *_: None) if trace is None else trace.delivered
        self._carry_out: CarryOut = {
            events.AfterSends: lambda host, _: host.settling.appendleft(events.SendsDone()),
            events.SetTimer: lambda host, it: self.set_timer(host, it.token, it.at),
            events.CancelTimer: lambda host, it: host.timers.pop(it.token, None),
            events.Report: lambda host, it: host.reports.append((swarm.now, it)),
            events.Committed: lambda host, it: host.commits.append((swarm.now, it)),
            **carry_out,
        }

    def deliver(self, host: SimProcess[Any], event: Event, said: bytes | None = None) -> None:
        """Deliver an event to a core. If the process is paused, it is delivered when the process
        resumes. ``said`` has the bytes of a message."""
        if host.state == "up":
            if not self.slow_nodes.puts_off(host, event, said):
                self.handle(host, event, said)
        elif host.state == "paused":
            host.waiting.append((event, said))

    def handle(self, host: SimProcess[Any], event: Event, said: bytes | None = None) -> None:
        self._handle_one(host, event, said)
        while host.settling and host.state == "up":
            self._handle_one(host, host.settling.popleft())

    def _handle_one(self, host: SimProcess[Any], event: Event, said: bytes | None = None) -> None:
        if host.state != "up":
            return
        swarm, peer = self.swarm, host.peer
        self.event, self.peer = event, peer
        self.handled += 1
        if self.handled > self.handled_max:
            raise SimulationStuck(
                f"{self.handled_max} events in one run: a core answers itself forever\n"
                f"{swarm.summary()}"
            )
        hooks = swarm.hooks
        self._record(swarm.now_ns, peer, event, said)
        kind: type = type(event)
        if kind is Received:
            kind, event = _as_received(host, event)  # type: ignore[arg-type]
        for see in hooks.event[kind]:
            see(swarm, peer, event)
        if host.state == CRASHED:
            return
        self.effects = host.core.handle(event, host.machine.clock_s(swarm.now_ns))
        if len(self.effects) > MANY:
            for see in hooks.flood:
                see(swarm, peer, event)
        if not self.effects or self._carry_out_all(host, self.effects):
            for see in hooks.after[kind]:
                see(swarm, peer, event)

    def _carry_out_all(self, host: SimProcess[Any], effects: Sequence[Effect]) -> bool:
        """Carry out the effects. Return False if an observer killed the process before the last
        effect."""
        swarm, peer, carry_out = self.swarm, host.peer, self._carry_out
        seeing = swarm.hooks.effect
        for effect in effects:
            asked: type = type(effect)
            kind = asked
            if asked is Send:
                kind = type(effect.message)  # type: ignore[union-attr]
            for see in seeing[kind]:
                see(swarm, peer, effect)
            if host.state != "up":
                assert host.halt is None, f"peer {peer} asks for {effect} after it halted"
                if host.state == CRASHED:
                    return False  # an observer killed the peer, so the other effects are lost
            carry_out[asked](host, effect)
        return True

    def set_timer(self, host: SimProcess[Any], token: Token, at_s: float) -> None:
        due_ns = host.machine.due_ns(at_s)
        if due_ns < self.swarm.now_ns:
            due_ns = self.swarm.now_ns
        host.timers[token] = (due_ns, at_s)
        self.swarm.at_ns(due_ns, self.fire, host, token, due_ns)

    def fire(self, host: SimProcess[Any], token: Token, due_ns: int) -> None:
        pending = host.timers.get(token)
        if pending is None or pending[0] != due_ns:
            return  # the timer was cancelled, or moved by a change of the clock
        if host.state == "paused":
            host.late_timers.append((due_ns, token))
            return
        event = TimerFired(token)
        if not self.slow_nodes.puts_off(host, event):
            del host.timers[token]
            self.handle(host, event)
