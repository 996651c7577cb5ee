"""Reports of the launchers to the peers: which peers have ended permanently, and which newcomers
are expected."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gossip.core import Event, PeerEnded, PeerExpected, PeerId

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
        self._said: dict[PeerId, Event] = {}

    def begin(self, swarm: AnySwarm, newcomers: dict[PeerId, float]) -> None:
        """Schedule the announcements of newcomers. ``newcomers``: newcomer -> time at which it has
        an address."""
        swarm.hooks.append(self)
        for peer, at_s in newcomers.items():
            swarm.at(
                max(0.0, at_s - ON_ITS_WAY_S),
                partial(self._announce_event, swarm, peer, PeerExpected(peer)),
            )

    def has_ended(self, swarm: AnySwarm, peer: PeerId) -> None:
        swarm.at(
            swarm.now + SEEN_AFTER_S, partial(self._announce_event, swarm, peer, PeerEnded(peer))
        )

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._said.pop(peer, None)
        for event in self._said.values():
            swarm.at(swarm.now, partial(self._inject_event, swarm, peer, event))

    def _announce_event(self, swarm: AnySwarm, subject: PeerId, event: Event) -> None:
        self._said[subject] = event
        for peer in swarm.hosts:
            self._inject_event(swarm, peer, event)

    def _inject_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        host = swarm.hosts[peer]
        if host.running and peer != getattr(event, "peer", None):
            swarm.inject(peer, event)
