"""Evidence that each peer has received that another peer is alive or not, derived from events and
effects.

If the outcome of a probe cannot be derived, the probe is recorded as failed, because a probe
without a connection has no visible outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gossip.core import (
    Ack,
    Gossip,
    LinkDown,
    LinkUp,
    Message,
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

from .event_observer import EventObserver, on_effect, on_event

STANDINGS_KEPT = 8


@dataclass(slots=True)
class PeerContact:
    """Evidence of one peer about another.

    Attributes:
        probed_s: Start of the last probe of the other peer, in virtual seconds.
        answered_since: Standing of the suspected peer when it last acknowledged a probe that began
            during the suspicion; -1 if there is none, or after a failed probe.
        accusers: Standing of the other peer -> peers that accused it with this standing; only for
            the latest standings.
    """

    probed_s: float = 0.0
    answered_since: int = -1
    accusers: dict[int, dict[PeerId, None]] = field(default_factory=dict)
    failed: bool = False
    nonce: int = -1  # nonce of the probe in progress; -1: none
    ends: float = 0.0  # end of this probe, by the prober's clock
    nacks: dict[PeerId, None] = field(default_factory=dict)


class ProbeEvidence(EventObserver):
    """Records evidence. It must come before the checkers in the list of observers."""

    needs = ""

    def __init__(self) -> None:
        self._contacts: dict[PeerId, dict[PeerId, PeerContact]] = {}

    def begin_incarnation(self) -> None:
        self._contacts[self.peer] = {}

    def of(self, peer: PeerId, subject: PeerId) -> PeerContact:
        contact = self._contacts[peer]
        if subject not in contact:
            contact[subject] = PeerContact()
        return contact[subject]

    def has_failed_probe(self, swarm: AnySwarm, peer: PeerId, subject: PeerId) -> bool:
        """Whether a probe by ``peer`` has failed since ``subject`` last acknowledged one of its
        probes."""
        contact, host = self.of(peer, subject), swarm.hosts[peer]
        under_way = contact.nonce >= 0 and host.machine.clock_s(swarm.now_ns) < contact.ends
        return contact.failed or (contact.nonce >= 0 and not under_way)

    @on_event
    def record_link(self, event: LinkDown | LinkUp) -> None:
        # a probe in progress may have failed because of the link
        self._record_failure(self.of(self.peer, event.peer))

    @on_event
    def record_ack(self, event: Received, ack: Ack) -> None:
        probe = self._probe(ack.nonce)
        if probe is None or ack.target != probe.peer:
            return
        if event.sender != ack.target and event.sender not in probe.helpers:
            return
        contact = self.of(self.peer, ack.target)
        contact.failed, contact.nonce = False, -1
        member = self.membership.members[ack.target]
        if member.suspicion is not None and probe.began >= member.suspicion.since:
            contact.answered_since = member.standing

    @on_event
    def record_nack(self, event: Received, nack: Nack) -> None:
        probe = self._probe(nack.nonce)
        if probe is not None and event.sender in probe.helpers:
            contact = self.of(self.peer, probe.peer)
            contact.nacks[event.sender] = None
            if len(contact.nacks) == len(probe.helpers):
                self._record_failure(contact)

    @on_event
    def record_accusers(
        self, event: Received, message: Ping | PingRequest | Ack | Gossip | PushPull
    ) -> None:
        for rumor in rumors_of(message):
            if rumor.status not in ("alive", "left") and rumor.peer != self.peer:
                accusers = self.of(self.peer, rumor.peer).accusers
                if rumor.incarnation not in accusers and len(accusers) >= STANDINGS_KEPT:
                    del accusers[next(iter(accusers))]
                accusers.setdefault(rumor.incarnation, {})[rumor.origin] = None

    @on_effect
    def record_probe(self, send: Send, message: Ping | PingRequest) -> None:
        probe = self._probe(message.nonce)
        if probe is None:
            return  # an indirect probe for another peer, or a message to a dead peer
        contact = self.of(self.peer, probe.peer)
        if contact.nonce != probe.nonce:
            # the previous probe was not acknowledged
            contact.failed = contact.failed or contact.nonce >= 0
            contact.nonce = probe.nonce
            contact.nacks = {}
            contact.probed_s = self.now
        contact.ends = probe.ends

    def _probe(self, nonce: int) -> Probe | None:
        """Return the present peer's probe in progress with this nonce, or None."""
        return self.membership.probes.get(nonce) if self.membership is not None else None

    def _record_failure(self, contact: PeerContact) -> None:
        contact.failed, contact.answered_since = True, -1


def rumors_of(message: Message | None) -> tuple[Rumor, ...]:
    """Return the claims about peers in a message."""
    match message:
        case Ping() | PingRequest() | Ack() | Gossip():
            return message.rumors
        case PushPull():
            return message.members
        case _:
            return ()
