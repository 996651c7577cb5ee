"""Nodes that need time for each event. While a node is busy, events wait in order. A timer event
may be cancelled while it waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gossip.core import Event, TimerFired

from .host import SimProcess, SwarmEnvironment


class SlowNodes:
    """Queues of slow nodes. ``SimProcess.waiting`` has the waiting events, and
    ``Machine.free_at_ns`` is the time at which a node becomes free. ``handle_now`` lets a core
    handle an event."""

    def __init__(
        self,
        swarm: SwarmEnvironment,
        handle_now: Callable[[SimProcess[Any], Event, bytes | None], None],
    ) -> None:
        self.swarm, self.handle_now = swarm, handle_now

    def puts_off(self, host: SimProcess[Any], event: Event, said: bytes | None = None) -> bool:
        """Queue the event and return True if it has to wait. Otherwise return False; the node is
        then busy with this event."""
        machine, now_ns = host.machine, self.swarm.now_ns
        if not machine.handling_ns:
            return False
        if not host.waiting and machine.free_at_ns <= now_ns:
            machine.free_at_ns = now_ns + machine.handling_ns
            return False
        host.waiting.append((event, said))
        machine.waited += 1
        if len(host.waiting) == 1:
            self.swarm.at_ns(machine.free_at_ns, self._go_on, host, machine.free_at_ns)
        return True

    def _go_on(self, host: SimProcess[Any], free_at_ns: int) -> None:
        """Handle the event that has waited longest."""
        machine = host.machine
        if not host.waiting or host.state != "up" or machine.free_at_ns != free_at_ns:
            return  # paused, or no longer slow
        event, said = host.waiting.popleft()
        machine.free_at_ns = self.swarm.now_ns + machine.handling_ns
        if host.waiting:
            self.swarm.at_ns(machine.free_at_ns, self._go_on, host, machine.free_at_ns)
        self.handle(host, event, said)

    def handle(self, host: SimProcess[Any], event: Event, said: bytes | None) -> None:
        """Handle an event that has waited."""
        if type(event) is TimerFired and host.timers.pop(event.token, None) is None:
            return  # the timer was cancelled in between
        self.handle_now(host, event, said)

    def catch_up(self, host: SimProcess[Any]) -> None:
        """Handle all waiting events at once, because the node is no longer slow or paused."""
        while host.waiting and host.state == "up":
            self.handle(host, *host.waiting.popleft())
