"""Reachability between peers: since when each link and each process has been undisturbed.

It records single links, while ``Disturbances`` records the network as a whole. If a link breaks,
its two peers may still reach each other through other peers.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf

from gossip.core import ClockJumped, LinkDown, LinkUp, Message, PeerId, TimerFired, TrainerProgress
from gossip_lab.simulation.world import AnySwarm, Link

from .event_observer import EventObserver, on_event

CHECK_INTERVAL_S = 0.1  # shorter than the disturbances of machines
DELAY_MAX_S = 0.005  # maximum one-way delay of an undisturbed link
HARM = frozenset(
    {
        "no_link",
        "lost",
        "cut",
        "reset",
        "lost_by_reset",
        "corrupted",
        "delayed",
        "spiked",
        "reordered",
    }
)
"""Effects on a message after which a probe may fail."""


class Reachability(EventObserver):
    """Records reachability. It must come before the checkers in the list of observers."""

    needs = ""

    def __init__(self) -> None:
        self._bad: dict[Link, float] = defaultdict(lambda: -inf)  # until then
        self._unwell_until: dict[PeerId, float] = {}
        self._next_check_at = -inf

    def end_pause(self) -> None:
        self._unwell_until[self.peer] = self.now

    def on_mishap(
        self, swarm: AnySwarm, peer: PeerId, to: PeerId, what: str, message: Message | None
    ) -> None:
        # If links have queues, all messages may be delayed by payloads.
        if what in HARM and not (what == "delayed" and swarm.network.default.queue_s):
            link = peer, to
            # A spike also delays all messages behind it. They have no effect of their own.
            self._bad[link] = max(self._bad[link], swarm.now + swarm.network.model(link).spike_s)

    @on_event
    def record_link(self, event: LinkDown | LinkUp) -> None:
        if isinstance(event, LinkUp):
            self._bad[self.peer, event.peer] = self.now
        elif event.reason == "timeout":
            self._bad[self.peer, event.peer] = inf

    @on_event
    def record(self, event: TimerFired | TrainerProgress | ClockJumped) -> None:
        if self.now >= self._next_check_at:
            self._next_check_at = self.now + CHECK_INTERVAL_S
            self._record_machines(self.swarm)

    def is_undisturbed(self, swarm: AnySwarm, a: PeerId, b: PeerId, since_s: float) -> bool:
        """Whether all messages between ``a`` and ``b`` have arrived promptly since ``since_s``, and
        both peers were able to handle them."""
        self._record_machines(swarm)
        return (
            self._is_peer_healthy(swarm, a, since_s)
            and self._is_peer_healthy(swarm, b, since_s)
            and self._is_link_sound(swarm, a, b, since_s)
        )

    def reachable_through(
        self, swarm: AnySwarm, a: PeerId, b: PeerId, since_s: float
    ) -> list[PeerId]:
        """Return the other peers that had undisturbed links to both ``a`` and ``b`` since
        ``since_s``."""
        return [
            peer
            for peer in swarm.hosts
            if peer not in (a, b)
            and self.is_undisturbed(swarm, a, peer, since_s)
            and self.is_undisturbed(swarm, peer, b, since_s)
        ]

    def _is_link_sound(self, swarm: AnySwarm, a: PeerId, b: PeerId, since_s: float) -> bool:
        near = swarm.network.default.delay_s[1] <= DELAY_MAX_S
        return near and max(self._bad[a, b], self._bad[b, a]) < since_s

    def _is_peer_healthy(self, swarm: AnySwarm, peer: PeerId, since_s: float) -> bool:
        host = swarm.hosts[peer]
        since = max(host.started_at, self._unwell_until.get(peer, -inf))
        return host.state == "up" and since < since_s

    def _record_machines(self, swarm: AnySwarm) -> None:
        for peer, machine in swarm.machines.items():
            if machine.late_ns or machine.handling_ns:
                self._unwell_until[peer] = swarm.now
