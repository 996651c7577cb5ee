"""Reachability between peers: the times since when each link and each process has been undisturbed.

This is more precise than ``Disturbances``, which treats the network as a whole: when a link breaks,
all peers still reach each other through others.
"""

from __future__ import annotations

from gossip.core import ClockJumped, PeerId, TimerFired, TrainerProgress
from gossip_lab.simulation.world import AnySwarm, Link, LinkModel, Network

from .watching import Watching, on_event

LOOK_EVERY_S = 0.1  # disturbances that no counter records last longer
DELAY_MAX_S = 0.005  # one way; a link with a longer delay counts as disturbed
NEVER = float("-inf")


class Reach(Watching):
    """Records reachability. It must precede the checkers that read it. If the events between two
    samples are unknown, it assumes the worst."""

    needs = ""

    def __init__(self) -> None:
        self._started_at: dict[PeerId, float] = {}
        self._bad_until: dict[Link, float] = {}
        self._unwell_until: dict[PeerId, float] = {}
        self._all_bad_until = self._all_unwell_until = NEVER
        self._cuts: dict[Link, None] = {}
        self._changed = self._paused = 0
        self._asleep: tuple[PeerId, ...] = ()
        self._look_at = NEVER

    def begin_life(self) -> None:
        self._started_at[self.peer] = self.now

    @on_event
    def record(self, event: TimerFired | TrainerProgress | ClockJumped) -> None:
        if self.now >= self._look_at:
            self._look_at = self.now + LOOK_EVERY_S
            self._record_faults(self.swarm)

    def direct(self, swarm: AnySwarm, a: PeerId, b: PeerId, since_s: float) -> bool:
        """Whether every message between two peers has arrived promptly since then, and both were
        able to receive it."""
        self._record_faults(swarm)
        return (
            self._well(swarm, a, since_s)
            and self._well(swarm, b, since_s)
            and self._fine(a, b, since_s)
        )

    def reachable_through(
        self, swarm: AnySwarm, a: PeerId, b: PeerId, since_s: float
    ) -> list[PeerId]:
        """Return the other peers that have exchanged messages with both ``a`` and ``b`` since
        then."""
        self._record_faults(swarm)
        if not (self._well(swarm, a, since_s) and self._well(swarm, b, since_s)):
            return []
        others = [
            peer for peer in swarm.hosts if peer not in (a, b) and self._well(swarm, peer, since_s)
        ]
        return [
            peer for peer in others if self._fine(a, peer, since_s) and self._fine(peer, b, since_s)
        ]

    def _fine(self, a: PeerId, b: PeerId, since_s: float) -> bool:
        worst = max(
            self._bad_until.get((a, b), NEVER),
            self._bad_until.get((b, a), NEVER),
            self._all_bad_until,
        )
        return worst < since_s

    def _well(self, swarm: AnySwarm, peer: PeerId, since_s: float) -> bool:
        if swarm.hosts[peer].state != "up":
            return False
        since = max(
            self._started_at[peer], self._unwell_until.get(peer, NEVER), self._all_unwell_until
        )
        return since < since_s

    def _record_faults(self, swarm: AnySwarm) -> None:
        self._record_bad_links(swarm.now, swarm.network)
        self._record_unwell_processes(swarm)

    def _record_bad_links(self, now: float, network: Network) -> None:
        if network.changed != self._changed or network.cuts:
            before, self._cuts = self._cuts, dict.fromkeys(network.cuts)
            differ = sum(link not in before for link in self._cuts) + sum(
                link not in self._cuts for link in before
            )
            if network.changed - self._changed > differ:
                self._all_bad_until = now  # a link was cut and mended since the last sample
            self._changed = network.changed
            for link in (*before, *self._cuts):
                self._bad_until[link] = now
        if is_bad(network.default):
            self._all_bad_until = now
        for link, model in network.models.items():
            if is_bad(model):
                self._bad_until[link] = now

    def _record_unwell_processes(self, swarm: AnySwarm) -> None:
        now = swarm.now
        asleep = tuple(peer for peer, host in swarm.hosts.items() if host.state == "paused")
        paused = swarm.counts["paused"]
        if asleep or self._asleep or paused != self._paused:
            if paused - self._paused > sum(peer not in self._asleep for peer in asleep):
                self._all_unwell_until = now
            for peer in (*asleep, *self._asleep):
                self._unwell_until[peer] = now
            self._asleep, self._paused = asleep, paused
        for peer, machine in swarm.machines.items():
            if machine.late_ns or machine.handling_ns:
                self._unwell_until[peer] = now


def is_bad(model: LinkModel) -> bool:
    """Whether a message may get lost, or arrive late. A duplicate does no harm."""
    shares = model.loss + model.corrupt + model.reset + model.spike + model.reorder
    return shares > 0 or model.delay_s[1] > DELAY_MAX_S
