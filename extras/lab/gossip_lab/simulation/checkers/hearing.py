"""Evidence that each peer has received for and against another's life, derived from its events and
effects.

If the outcome of a probe cannot be derived, it counts as failed: a probe that can be sent to no
peer leaves no trace except that no connection is up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gossip.core import (
    Ack,
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

from .watching import Watching, on_effect, on_event

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


class Hearing(Watching):
    """Must come before the checkers that ask it."""

    needs = ""

    def __init__(self) -> None:
        self._heard: dict[PeerId, dict[PeerId, PeerContact]] = {}

    def begin_life(self) -> None:
        self._heard[self.peer] = {}

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

    @on_event
    def record_link(self, event: LinkDown | LinkUp) -> None:
        self._fails(self.of(self.peer, event.peer))  # or it may have, while the link was down

    @on_event
    def record_ack(self, event: Received, ack: Ack) -> None:
        probe = self._probe(ack.nonce)
        if probe is None or ack.target != probe.peer:
            return
        if event.sender != ack.target and event.sender not in probe.helpers:
            return
        heard = self.of(self.peer, ack.target)
        heard.failed, heard.nonce = False, -1
        member = self.membership.members[ack.target]
        if member.suspicion is not None and probe.began >= member.suspicion.since:
            heard.answered_since = member.standing

    @on_event
    def record_nack(self, event: Received, nack: Nack) -> None:
        probe = self._probe(nack.nonce)
        if probe is not None and event.sender in probe.helpers:
            heard = self.of(self.peer, probe.peer)
            heard.nacks[event.sender] = None
            if len(heard.nacks) == len(probe.helpers):
                self._fails(heard)

    @on_event
    def record_rumors(self, event: Received, message: Ping | PingRequest | Ack | Gossip) -> None:
        self._record_accusers(message.rumors)

    @on_event
    def record_table(self, event: Received, table: PushPull) -> None:
        self._record_accusers(table.members)

    @on_effect
    def record_probe(self, send: Send, message: Ping | PingRequest) -> None:
        probe = self._probe(message.nonce)
        if probe is None:
            return  # for somebody else, or a word to the dead
        heard = self.of(self.peer, probe.peer)
        if heard.nonce != probe.nonce:
            heard.failed = heard.failed or heard.nonce >= 0  # the one before has found no answer
            heard.nonce, heard.nacks, heard.asked_s = probe.nonce, {}, self.now
        heard.ends = probe.ends

    def _probe(self, nonce: int) -> Probe | None:
        """Return the peer's own probe that is under way with this nonce."""
        return self.membership.probes.get(nonce) if self.membership is not None else None

    def _fails(self, heard: PeerContact) -> None:
        heard.failed, heard.answered_since = True, -1

    def _record_accusers(self, rumors: tuple[Rumor, ...]) -> None:
        for rumor in rumors:
            if rumor.status not in ("alive", "left") and rumor.peer != self.peer:
                accusers = self.of(self.peer, rumor.peer).accusers
                if rumor.incarnation not in accusers and len(accusers) >= STANDINGS_KEPT:
                    del accusers[next(iter(accusers))]
                accusers.setdefault(rumor.incarnation, {})[rumor.origin] = None
