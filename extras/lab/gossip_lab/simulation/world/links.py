"""Connections between simulated processes. An attempt is repeated until the connection is up. A
connection is closed when a process ends, and times out when it is silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gossip.core import PeerId, events

from .host import Lane, SimProcess, SwarmEnvironment
from .machine import to_ns

FIRST_TRY_S, HANDSHAKE_WAYS = 0.001, 4
"""Minimum duration of a handshake in seconds, and number of its one-way messages (TCP, then
ZMTP)."""


AnyProcess = SimProcess[Any]


class Links:
    """Opens and closes the lanes of all processes, and lets them time out."""

    def __init__(self, swarm: SwarmEnvironment) -> None:
        self.swarm = swarm

    def connect(self, host: AnyProcess, to: PeerId, control: str) -> None:
        assert to != host.peer, f"peer {to} connects to itself"
        lane = host.lanes.get(to)
        if lane is not None and lane.control == control:
            return  # the lane is up, or an attempt is pending
        if lane is not None:
            lane.up, lane.attempt = False, lane.attempt + 1
        host.lanes[to] = lane = Lane(control)
        self._try_later(host, to, lane, self._handshake_s(host.peer, to))

    def stand(self, host: AnyProcess, to: AnyProcess) -> None:
        """Connect two processes without an event, as if they had been connected for long."""
        control, _ = self.swarm.address_of(to.peer, to.incarnation)
        host.lanes[to.peer] = Lane(control, up=True, to_incarnation=to.incarnation)

    def disconnect(self, host: AnyProcess, to: PeerId) -> None:
        lane = host.lanes.pop(to, None)
        if lane is not None:
            lane.up, lane.attempt = False, lane.attempt + 1

    def reset(self, host: AnyProcess, to: PeerId, lane: Lane) -> None:
        """Break the connection. Messages in transit are lost. The peer that opened the connection
        receives ``LinkDown`` and connects again."""
        if not lane.up:
            return
        lane.up = False
        lane.breaks = lane.breaks + 1
        lane.attempt = lane.attempt + 1
        self._later(0.0, self._on_reset, host, to, lane)

    def _later(
        self,
        after_s: float,
        act: Callable[..., None],
        host: AnyProcess,
        to: PeerId,
        lane: Lane,
    ) -> None:
        """Call ``act`` after ``after_s``, unless the lane has been closed or another attempt has
        begun by then."""
        attempt = lane.attempt

        def run() -> None:
            if lane.attempt == attempt and host.lanes.get(to) is lane and host.running:
                act(host, to, lane)

        self.swarm.at_ns(self.swarm.now_ns + to_ns(after_s), run)

    def _on_reset(self, host: AnyProcess, to: PeerId, lane: Lane) -> None:
        self.swarm.deliver(host, events.LinkDown(to, "closed"))
        self._try_later(host, to, lane, self._handshake_s(host.peer, to))

    def close_process(self, host: AnyProcess) -> None:
        """Close all connections of a process. The other peers detect this a moment later."""
        for other in self.swarm.hosts.values():
            lane = other.lanes.get(host.peer)
            if lane is not None and lane.up and lane.to_incarnation == host.incarnation:
                closing_s = other.dice.uniform(*self.swarm.network.closing_s)
                self._later(closing_s, self._on_closed, other, host.peer, lane)
        for lane in host.lanes.values():
            lane.up, lane.attempt = False, lane.attempt + 1

    def _try_later(self, host: AnyProcess, to: PeerId, lane: Lane, after_s: float) -> None:
        lane.attempt += 1
        self._later(after_s, self._try, host, to, lane)

    def _handshake_s(self, a: PeerId, b: PeerId) -> float:
        model = self.swarm.network.model
        to_and_fro_s = model((a, b)).delay_s[0] + model((b, a)).delay_s[0]
        return max(FIRST_TRY_S, HANDSHAKE_WAYS / 2 * to_and_fro_s)

    def _try(self, host: AnyProcess, to: PeerId, lane: Lane) -> None:
        other = self.swarm.hosts.get(to)
        if other is not None and not (
            other.running and self.swarm.address_of(to, other.incarnation)[0] == lane.control
        ):
            other = None  # no process listens at this address
        # The kernel of a paused process would accept the connection, but the handshake does not
        # end.
        hangs = self.blocked(host.peer, to) or "paused" in (host.state, other and other.state)
        if other is not None and not hangs:
            lane.up = True
            lane.tries = 0
            lane.to_incarnation = other.incarnation
            lane.arrives_ns = [0, 0]
            self.swarm.deliver(host, events.LinkUp(to))
            return
        lane.tries += not hangs
        self._try_later(host, to, lane, self.swarm.network.reconnect_s)
        if lane.tries == 1 and not hangs:
            self.swarm.deliver(host, events.LinkDown(to, "refused"))

    def blocked(self, a: PeerId, b: PeerId) -> bool:
        return self.swarm.network.is_cut((a, b)) or self.swarm.network.is_cut((b, a))

    def _on_closed(self, host: AnyProcess, to: PeerId, lane: Lane) -> None:
        self._lose(host, to, lane, "closed", self._handshake_s(host.peer, to))

    def _on_silence(self, host: AnyProcess, to: PeerId, lane: Lane) -> None:
        other = self.swarm.hosts[to]
        alive = other.state == "up" and other.incarnation == lane.to_incarnation
        if alive and host.state == "up" and not self.blocked(host.peer, to):
            return  # the link was repaired before the timeout
        self._lose(host, to, lane, "timeout", self.swarm.network.reconnect_s)

    def _lose(
        self, host: AnyProcess, to: PeerId, lane: Lane, reason: str, again_after_s: float
    ) -> None:
        if lane.up:
            lane.up = False
            self.swarm.deliver(host, events.LinkDown(to, reason))
            self._try_later(host, to, lane, again_after_s)

    def heartbeats(self) -> None:
        """Schedule the timeouts of links over which no messages arrive any more."""
        if self.swarm.network.heartbeat_s is None:
            return
        for host in self.swarm.hosts.values():
            for to, lane in host.lanes.items():
                silent = self.blocked(host.peer, to) or "paused" in (
                    host.state,
                    self.swarm.hosts[to].state,
                )
                if lane.up and silent:
                    silence_s = host.dice.uniform(*self.swarm.network.heartbeat_s)
                    self._later(silence_s, self._on_silence, host, to, lane)
