"""Carries out the faults of a world and the availability of its peers in the simulator."""

from __future__ import annotations

from functools import partial
from math import inf, prod
from typing import Any

from gossip.core import Peer, PeerId, events
from gossip.faults import Blow, Hang, Restart
from gossip_lab.simulation import Observer, Swarm, Watcher

from .parts import Parts


class Disruptions(Observer):
    """Observer that injects faults at a round or a time, and lets peers arrive and leave."""

    def __init__(self, parts: Parts) -> None:
        mishaps, self._availability, self._n = parts.mishaps, parts.availability, parts.peers
        self._slow = mishaps.slow
        self._pending = list(mishaps.blows)
        self._kept_away: set[PeerId] = set()  # peers that a fault has stopped

    def begin(self, swarm: Swarm[Peer]) -> None:
        """Schedule the faults that have a time, and the first arrival or departure of each peer.
        Call this before the first event of the swarm."""
        swarm.hooks.append(self)
        for fault in self._pending:
            if fault.at_s is not None:
                swarm.at(fault.at_s, partial(self._strike, swarm, fault))
        for peer in range(self._n):
            self._await_change(swarm, peer, 0.0)

    def slowness(self, peer: PeerId, now_s: float) -> float:
        """Return the factor by which the peer's computations are slower at ``now_s``."""
        return prod([each.factor for each in self._slow if each.peer == peer and each.is_on(now_s)])

    def watchers(self, moment: str, kind: type) -> tuple[Watcher, ...]:
        starts = moment == "on_effect" and kind is events.StartRound
        return (self._on_start_round,) if starts else ()

    def _on_start_round(self, swarm: Any, peer: PeerId, effect: events.StartRound) -> None:
        for fault in list(self._pending):
            due = fault.round is not None and fault.round <= effect.round_id
            if due and fault.peer == peer:
                self._pending.remove(fault)
                self._strike(swarm, fault)

    def _strike(self, swarm: Swarm[Peer], fault: Blow) -> None:
        peer = fault.peer
        assert peer != "server", "read_mishaps refuses it"
        if peer not in swarm.up:
            return
        if isinstance(fault, Hang):  # A hang begins after the start of the round.
            swarm.at(swarm.now, partial(self._pause, swarm, peer, fault.for_s))
        else:
            swarm.crash(peer)
            self._kept_away.add(peer)
            if isinstance(fault, Restart):
                swarm.at(swarm.now + fault.after_s, partial(self._end_absence, swarm, peer))

    def _end_absence(self, swarm: Swarm[Peer], peer: PeerId) -> None:
        self._kept_away.remove(peer)
        if self._availability.present(peer, swarm.now):
            self._start(swarm, peer)

    def _start(self, swarm: Swarm[Peer], peer: PeerId) -> None:
        """Start an available peer, unless a fault keeps it away."""
        if peer in self._kept_away:
            return
        if peer not in swarm.hosts:
            swarm.join(peer)
        elif peer not in swarm.up:
            swarm.restart(peer)

    def _await_change(self, swarm: Swarm[Peer], peer: PeerId, now_s: float) -> None:
        at_s = self._availability.next_change(peer, now_s)
        if at_s < inf:  # ``at_s`` is passed on, because the swarm's clock rounds it to nanoseconds.
            swarm.at(at_s, partial(self._change, swarm, peer, at_s))

    def _change(self, swarm: Swarm[Peer], peer: PeerId, now_s: float) -> None:
        """Start or crash the peer, as its availability requires, and schedule its next change."""
        if self._availability.present(peer, now_s):
            self._start(swarm, peer)
        elif peer in swarm.up:
            swarm.crash(peer)
        self._await_change(swarm, peer, now_s)

    def _pause(self, swarm: Swarm[Peer], peer: PeerId, for_s: float) -> None:
        if swarm.hosts[peer].state == "up":
            swarm.pause_for(peer, for_s)
