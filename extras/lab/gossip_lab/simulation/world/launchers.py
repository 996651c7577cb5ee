"""Reports of the launchers to the peers: which peers have ended permanently, and which newcomers
are expected."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gossip.core import PeerEnded, PeerExpected, PeerId

from .observer import Observer

if TYPE_CHECKING:
    from .driver import AnySwarm

SEEN_AFTER_S = 0.3
"""Time from the end of a process until the other peers have read the report, in seconds."""
ON_ITS_WAY_S = 2.5
"""Time from the announcement of a newcomer until it has an address, in seconds: its process has to
start and to import torch."""


class Launchers(Observer):
    """Reports events to all peers, including peers that start later."""

    def __init__(self) -> None:
        self._said: dict[PeerId, PeerEnded | PeerExpected] = {}

    def report(self, swarm: AnySwarm, event: PeerEnded | PeerExpected, at_s: float) -> None:
        """Report an event at ``at_s``, in seconds of virtual time."""
        swarm.at(at_s, partial(self._report, swarm, event))

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._said.pop(peer, None)
        for event in self._said.values():
            swarm.at(swarm.now, partial(self._inject_event, swarm, peer, event))

    def _report(self, swarm: AnySwarm, event: PeerEnded | PeerExpected) -> None:
        self._said[event.peer] = event
        for peer in swarm.hosts:
            self._inject_event(swarm, peer, event)

    def _inject_event(self, swarm: AnySwarm, peer: PeerId, event: PeerEnded | PeerExpected) -> None:
        if swarm.hosts[peer].running and peer != event.peer:
            swarm.inject(peer, event)
