"""Evidence that each peer has received for and against another's life, derived from its events and
effects.

If the outcome of a probe cannot be derived, it counts as failed: a probe that can be sent to no
peer leaves no trace except that no connection is up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gossip.core import (
    Ack,
    Effect,
    Event,
    Gossip,
    LinkDown,
    LinkUp,
    Nack,
    PeerId,
    Ping,
    PingRequest,
    Probe,
    PushPull,
    Received,
    Rumor,
    Send,
)
from gossip_lab.simulation.world import AnySwarm

from .base import PassiveObserver

STANDINGS_KEPT = 8


@dataclass(slots=True)
class PeerContact:
    """Evidence of one peer about another.

    Attributes:
        asked_s: Start of its last probe of the other peer, in seconds of the world.
        answered_since: Standing of the other peer as a suspect when it last answered a probe that
            began during this suspicion; -1 after a failed probe.
        accusers: Standing -> peers whose accusations have arrived, for the last few standings with
            which the other peer was accused.
    """

    asked_s: float = 0.0
    answered_since: int = -1
    accusers: dict[int, dict[PeerId, None]] = field(default_factory=dict)
    failed: bool = False
    nonce: int = -1  # of the probe under way
    ends: float = 0.0  # by the clock of the one who probes
    nacks: dict[PeerId, None] = field(default_factory=dict)


class Hearing(PassiveObserver):
    """Must come before the checkers that ask it."""

    events = (Ping, PingRequest, Ack, Nack, PushPull, Gossip, LinkDown, LinkUp)
    effects = (Ping, PingRequest)

    def __init__(self) -> None:
        self._heard: dict[PeerId, dict[PeerId, PeerContact]] = {}

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._heard[peer] = {}

    def of(self, peer: PeerId, subject: PeerId) -> PeerContact:
        heard = self._heard[peer]
        if subject not in heard:
            heard[subject] = PeerContact()
        return heard[subject]

    def own_evidence(self, swarm: AnySwarm, peer: PeerId, subject: PeerId) -> bool:
        """Whether a probe of ``peer`` has failed since the last one that ``subject`` answered."""
        heard, host = self.of(peer, subject), swarm.hosts[peer]
        under_way = heard.nonce >= 0 and host.machine.clock_s(swarm.now_ns) < heard.ends
        return heard.failed or (heard.nonce >= 0 and not under_way)

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if type(event) is LinkDown or type(event) is LinkUp:
            self._fails(self.of(peer, event.peer))  # or it may have, while the connection was down
        elif type(event) is Received and type(event.message) in self.events:
            message: Any = event.message
            kind = type(message)
            if kind is Ack:
                self._on_ack(swarm, peer, event.sender, message.nonce, message.target)
            elif kind is Nack:
                self._on_nack(swarm, peer, event.sender, message.nonce)
                return
            rumors = message.members if kind is PushPull else message.rumors
            if rumors:
                self._listen(peer, rumors)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if type(effect) is not Send or type(effect.message) not in self.effects:
            return
        probe = probe_of(swarm, peer, effect.message.nonce)  # type: ignore[union-attr]
        if probe is None:
            return  # for somebody else, or a word to the dead
        heard = self.of(peer, probe.peer)
        if heard.nonce != probe.nonce:
            heard.failed = heard.failed or heard.nonce >= 0  # the one before has found no answer
            heard.nonce, heard.nacks, heard.asked_s = probe.nonce, {}, swarm.now
        heard.ends = probe.ends

    def _fails(self, heard: PeerContact) -> None:
        heard.failed, heard.answered_since = True, -1

    def _on_ack(
        self, swarm: AnySwarm, peer: PeerId, sender: PeerId, nonce: int, target: PeerId
    ) -> None:
        probe = probe_of(swarm, peer, nonce)
        if (
            probe is None
            or target != probe.peer
            or (sender != target and sender not in probe.helpers)
        ):
            return
        heard = self.of(peer, target)
        heard.failed, heard.nonce = False, -1
        membership = swarm.hosts[peer].membership
        member = membership.members[target] if membership is not None else None
        if (
            member is not None
            and member.suspicion is not None
            and probe.began >= member.suspicion.since
        ):
            heard.answered_since = member.standing

    def _on_nack(self, swarm: AnySwarm, peer: PeerId, sender: PeerId, nonce: int) -> None:
        probe = probe_of(swarm, peer, nonce)
        if probe is not None and sender in probe.helpers:
            heard = self.of(peer, probe.peer)
            heard.nacks[sender] = None
            if len(heard.nacks) == len(probe.helpers):
                self._fails(heard)

    def _listen(self, peer: PeerId, rumors: tuple[Rumor, ...]) -> None:
        for rumor in rumors:
            if rumor.status != "alive" and rumor.status != "left" and rumor.peer != peer:
                accusers = self.of(peer, rumor.peer).accusers
                if rumor.incarnation not in accusers and len(accusers) >= STANDINGS_KEPT:
                    del accusers[next(iter(accusers))]
                accusers.setdefault(rumor.incarnation, {})[rumor.origin] = None


def probe_of(swarm: AnySwarm, peer: PeerId, nonce: int) -> Probe | None:
    """The probe of ``peer`` itself that is under way with this nonce."""
    membership = swarm.hosts[peer].membership
    return membership.probes.get(nonce) if membership is not None else None
