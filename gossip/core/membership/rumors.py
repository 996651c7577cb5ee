"""Handling of received rumors: the local peer accepts a rumor, counts it only as an accusation, or
refutes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gossip.core.events import Effect, Send
from gossip.core.messages import Gossip, PeerId, Rumor
from gossip.core.settings import LAST_WORDS_S, MEMBERS_MAX, TABLE_MAX, MembershipSettings

from .awareness import Awareness
from .table import NEVER, RANKS, REFUTATIONS, Member, MemberTable, first_standing, incarnation_of
from .transitions import StatusTransitions


@dataclass(eq=False)
class RumorHandler:
    """Handler that merges rumors into the member table. The standing of ``me``, the entry of the
    local peer, rises only by a refutation.

    ``voices``: incarnations of peers that have sent a message before their address was known. While
    a peer is linked and has sent messages, a rumor of a later incarnation of the peer is accepted
    only after a message of that incarnation. Otherwise a single Byzantine peer could make all peers
    drop the messages of an honest peer.
    """

    settings: MembershipSettings
    allowed: frozenset[PeerId] | None
    view: MemberTable
    transitions: StatusTransitions
    awareness: Awareness

    def __post_init__(self) -> None:
        self.me = self.view.members[self.view.local]
        self.rumors = self.transitions.rumors
        self.voices: dict[PeerId, int] = {}
        self._broadcast_at = NEVER

    def apply_rumors(
        self, rumors: tuple[Rumor, ...], sender: PeerId, now: float, table: bool = False
    ) -> list[Effect]:
        most = TABLE_MAX if table else 2 * self.settings.rumors_per_message
        effects: list[Effect] = []
        members, local = self.view.members, self.me.peer
        for rumor in rumors[:most]:
            if rumor.peer == local:
                effects += self._about_me(rumor, sender, now)
                continue
            member = members.get(rumor.peer)
            if member is not None and rumor.incarnation <= member.standing:
                # Most rumors are already known. This check comes first, because no other check is
                # fast enough in a large run.
                called = member.lane_up or member.lane == member.control
                if rumor.incarnation < member.standing:
                    known = member.spoken or (member.lane_up and sender != rumor.peer)
                else:
                    known = (
                        rumor.status == "alive" and member.met and called and member.control != ""
                    )
                    known = known and (member.spoken or sender != rumor.peer)
                if known:
                    if self.rumors.waiting:
                        self.rumors.record_sender(sender, rumor)
                    continue
            effects += self._about(rumor, sender, now, table)
            self.rumors.record_sender(sender, rumor)
            if self.voices:
                self._recognize(rumor.peer, now)
        return effects

    def _recognize(self, peer: PeerId, now: float) -> None:
        """If a message of the member's present incarnation arrived before the rumor of this
        incarnation, record this message now."""
        member = self.view.members.get(peer)
        if member is not None and self.voices.get(peer) == member.incarnation:
            del self.voices[peer]
            member.heard_at = member.spoken_since = now

    def _about(self, rumor: Rumor, sender: PeerId, now: float, table: bool) -> list[Effect]:
        if not self.allows(rumor.peer) or not self.allows(rumor.origin):
            return []
        member = self.view.members.get(rumor.peer)
        if not self.plausible(rumor.incarnation, member):
            return []
        if member is not None and incarnation_of(rumor.incarnation) != member.incarnation:
            if not self._is_its_life(rumor, member, sender):
                return self._try_rumored_address(rumor, member, now)
            if rumor.incarnation < member.standing:  # the later incarnation in the table was false
                alive = rumor.status == "alive"
                return self.transitions.revive(member, rumor, sender, now) if alive else []
        effects: list[Effect] = []
        if member is None:
            member = self.transitions.add_member(rumor.peer, rumor.incarnation, now)
            effects += self.transitions.set_address(member, rumor.control, rumor.bulk)
        if rumor.incarnation < member.standing:
            return effects  # outdated
        return effects + self._about_member(member, rumor, sender, now, table)

    def _about_member(
        self, member: Member, rumor: Rumor, sender: PeerId, now: float, table: bool
    ) -> list[Effect]:
        newer = rumor.incarnation > member.standing
        if rumor.status == "alive":
            return self._about_living(member, rumor, newer, sender, now)
        if rumor.origin == rumor.peer or not member.met:
            # The origin of the rumor is the peer itself, or the peer was gone before the local peer
            # met it.
            return self._about_gone(member, rumor, newer, now)
        if newer and member.gone and rumor.status == "dead":
            return self.transitions.mark_dead_again(member, rumor, now)
        if newer or not member.gone:
            return self._about_accused(member, rumor, sender, now, table)
        return []

    def _about_accused(
        self, member: Member, rumor: Rumor, sender: PeerId, now: float, table: bool
    ) -> list[Effect]:
        effects: list[Effect] = []
        if rumor.incarnation > member.standing:
            # the local peer has missed the refutation before this accusation
            alive = replace(rumor, status="alive")
            effects += self.transitions.revive(member, alive, sender, now)
        is_death = rumor.status == "dead" and not table
        effects += self.transitions.accuse(member, rumor.origin, now, hurried=is_death)
        # A death that another peer reports counts only as one more accusation. It takes effect only
        # if there is enough evidence.
        if is_death and member.suspicion is not None and member.suspicion.proven:
            effects += self.transitions.mark_dead(
                member, rumor.origin, now, "reported by other peers"
            )
        return effects

    def _about_living(
        self, member: Member, rumor: Rumor, newer: bool, sender: PeerId, now: float
    ) -> list[Effect]:
        effects: list[Effect] = []
        if newer:
            effects += self.transitions.revive(member, rumor, sender, now)
        elif not member.control:
            effects += self.transitions.set_address(member, rumor.control, rumor.bulk)
        elif member.lane != member.control and not member.lane_up:
            # the attempt to reach another incarnation of the member has failed
            effects += self.transitions.set_address(member, member.control, member.bulk)
        self.transitions.meet(member)
        return effects

    def _about_gone(self, member: Member, rumor: Rumor, newer: bool, now: float) -> list[Effect]:
        # The local peer has not met this peer yet. The rumor shows that the peer is present, and
        # that another peer suspects it.
        if rumor.status == "suspect":
            effects = (
                self.transitions.revive(member, replace(rumor, status="alive"), rumor.origin, now)
                if newer
                else []
            )
            self.transitions.meet(member)
            return effects + self.transitions.accuse(member, rumor.origin, now)
        if newer:
            return self.transitions.mark_dead_again(member, rumor, now)
        if RANKS.index(rumor.status) <= RANKS.index(member.status):
            return []
        return self.transitions.mark_dead(
            member, rumor.origin, now, "announced by the peer", rumor.status
        )

    def _about_me(self, rumor: Rumor, sender: PeerId, now: float) -> list[Effect]:
        """Refute an accusation of the local peer. A refutation is final, because only the accused
        may raise its standing."""
        if incarnation_of(rumor.incarnation) != self.me.incarnation:
            # A rumor about another incarnation of the local peer needs no refutation: linked peers
            # accept a later incarnation only after a message of that incarnation.
            return []
        if self.me.gone or not self.plausible(rumor.incarnation, self.me):
            return []
        alive = rumor.status == "alive"
        if alive and rumor.incarnation <= self.me.standing:
            return []
        if rumor.incarnation < self.me.standing:  # the sender has missed the refutation
            return [Send(sender, Gossip((self.me.rumor(),)))] if sender in self.view.members else []
        self.awareness.worsen()
        self.me.refute(rumor.incarnation)
        denial = self.me.rumor()
        self.rumors.add(denial)
        if now - self._broadcast_at < self.settings.gossip_interval_s:
            return []  # repeated accusations must not cause a flood of broadcasts
        self._broadcast_at = now
        return self.broadcast(denial)

    def broadcast(self, rumor: Rumor) -> list[Effect]:
        """Broadcast a rumor to all linked peers at once, in addition to its dissemination by
        gossip."""
        message = Gossip((rumor,))
        return [Send(m.peer, message) for m in self.view.others() if m.linked and not m.gone]

    def _is_its_life(self, rumor: Rumor, member: Member, sender: PeerId) -> bool:
        """Whether to accept the rumored incarnation of a member, which differs from the known
        incarnation."""
        life = incarnation_of(rumor.incarnation)
        if life < member.incarnation:
            return sender == member.peer and not member.spoken
        heard = member.spoken and member.linked and not member.gone
        return sender == member.peer or not heard or self.voices.get(member.peer) == life

    def _try_rumored_address(self, rumor: Rumor, member: Member, now: float) -> list[Effect]:
        """Connect to the rumored address of an earlier incarnation, if no message of the known
        later incarnation has arrived.

        The rumor of the later incarnation may be false, and the other peer may have received a
        false rumor about the local peer too. In this case neither peer would connect to the right
        address of the other peer. The ``Hello`` of the peer at the rumored address shows its true
        incarnation.
        """
        is_known_long = now - member.known_since >= LAST_WORDS_S
        if rumor.status != "alive" or member.spoken or member.gone or not is_known_long:
            return []
        return self.transitions.try_address(member, rumor.control, rumor.bulk)

    def correct_incarnation(self, sender: PeerId, incarnation: int, now: float) -> list[Effect]:
        """If a message of the true incarnation of a peer has arrived, replace a false later
        incarnation in the table. Later rumors supply the address of the peer."""
        member = self.view.members.get(sender)
        if member is None or member.spoken or incarnation >= member.incarnation:
            return []
        effects = self.transitions.revive(
            member, Rumor(sender, "alive", first_standing(incarnation), "", "", sender), sender, now
        )
        self._recognize(sender, now)
        return effects

    # --- plausibility -----------------------------------------------------------------------------

    def allows(self, peer: PeerId) -> bool:
        if self.allowed is not None:
            return peer in self.allowed
        return peer in self.view.members or len(self.view.members) < MEMBERS_MAX

    def plausible(self, standing: int, member: Member | None) -> bool:
        """Whether a standing is plausible: it is not far above the known standing, and the peer can
        still make enough refutations."""
        known = 0 if member is None else member.standing
        lives = incarnation_of(standing) - incarnation_of(known)
        if lives == 0 and member is not None and member.met:
            return standing - known <= self.settings.incarnation_jump_max
        return (
            lives <= self.settings.incarnation_jump_max
            and standing % REFUTATIONS <= REFUTATIONS // 2
        )
