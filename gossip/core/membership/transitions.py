"""Status transitions of members: met, suspect, refuted, dead, left, alive again. Only this module
changes a status."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gossip.core.events import Connect, Effect
from gossip.core.frozen import record
from gossip.core.messages import PeerId, Rumor, Status
from gossip.core.settings import MembershipSettings
from gossip.core.timers import Timers

from .dissemination import RumorQueue
from .prober import ProbeAnswered, Prober, ProbeTimedOut
from .suspicion import Suspicion
from .table import NEVER, Member, MemberTable, incarnation_of


@record
class SuspicionExpired:
    peer: PeerId
    standing: int
    at: float


@record
class ForgetMember:
    """Timer that closes the link of a peer that has left, after its last messages have arrived."""

    peer: PeerId
    standing: int
    at: float


@dataclass(eq=False)
class StatusTransitions:
    """Status transitions of all members except the local peer."""

    settings: MembershipSettings
    timers: Timers[Any]
    view: MemberTable
    rumors: RumorQueue
    prober: Prober

    # --- joining ----------------------------------------------------------------------------------

    def add_member(self, peer: PeerId, standing: int, now: float) -> Member:
        """Add an entry for a peer that was not met yet. Nothing but its address may be known."""
        member = Member(peer, standing, known_since=now, origin=peer)
        self.view.add(member)
        self.prober.add_member(peer)
        return member

    def set_address(self, member: Member, control: str, bulk: str) -> list[Effect]:
        if not control:
            return []
        member.control, member.bulk = control, bulk
        if control != member.lane:
            member.lane, member.lane_up = control, False
        # A connection may have been opened before the address was known, and causes no further
        # event.
        member.linked = member.lane_up
        member.was_linked = member.was_linked or member.linked
        self.view.settle(member)
        return [Connect(member.peer, control, bulk)]

    def try_address(self, member: Member, control: str, bulk: str) -> list[Effect]:
        """Connect to another possible address of a member, because its known address does not
        respond. The known address stays unchanged."""
        if member.lane_up or not control or control == member.lane:
            return []
        member.lane, member.linked = control, False
        return [Connect(member.peer, control, bulk)]

    def meet(self, member: Member) -> None:
        """Record that a member was met: a first message from the member, or a first rumor from
        another member that has met it, has arrived."""
        if not member.met:
            self.view.place(member, member.status, met=True)
            self.rumors.add(member.rumor())
            if not member.gone:
                self.view.note(member.peer, "joined")

    def revive(self, member: Member, rumor: Rumor, by: PeerId, now: float) -> list[Effect]:
        """Set a member alive at a higher standing, after it has refuted an accusation or was
        restarted."""
        effects = self._close(member) + self.prober.drop(member.peer)
        again = member.gone
        # The new incarnation is lower if the incarnation in the table was false.
        new_life = incarnation_of(rumor.incarnation) != member.incarnation
        member.standing, member.origin = rumor.incarnation, member.peer
        self.view.place(member, "alive", member.met)
        if new_life:
            again = again or member.met
            effects += self._begin_life(member, rumor, now)
        elif not member.control:  # the address does not change within an incarnation
            effects += self.set_address(member, rumor.control, rumor.bulk)
        self.rumors.add(member.rumor())
        if again and member.met:
            self.view.note(member.peer, "alive_again", "restarted" if new_life else "refuted", by)
        self.view.settle(member, by)
        return effects

    def _begin_life(self, member: Member, rumor: Rumor, now: float) -> list[Effect]:
        self.rumors.begins_anew(member.peer)
        member.known_since, member.heard_at = now, NEVER
        member.linked = member.was_linked = member.stalled = False
        member.progress, member.control, member.bulk = None, "", ""
        return self.set_address(member, rumor.control, rumor.bulk)

    # --- evidence ---------------------------------------------------------------------------------

    def on_answer(self, answer: ProbeAnswered, stalled: bool, now: float) -> list[Effect]:
        """Record a reply to a probe. The reply ends the local skip, but a suspicion lasts until the
        member refutes it."""
        member = self.view.members[answer.peer]
        member.progress = answer.progress
        member.stalled = stalled
        effects: list[Effect] = []
        suspicion = member.suspicion
        if suspicion is not None and answer.asked_at >= suspicion.since:
            suspicion.answered_since, suspicion.own = True, False
        elif suspicion is not None and not suspicion.answered_since:
            # the ping was sent before the suspicion began, so a new probe is needed
            effects += self.prober.probe(member, now)
        self.view.settle(member)
        return effects

    def on_probe_timeout(self, silence: ProbeTimedOut, now: float) -> list[Effect]:
        member = self.view.members[silence.peer]
        if member.gone or not member.met:
            return []
        both_ways = member.was_linked and member.heard_at >= member.known_since
        if not both_ways and now - member.known_since < self.settings.connect_grace_s:
            return []  # The peer may not have had a connection for its reply yet.
        # A closed link that is not re-established is stronger evidence than a lost reply.
        return self.accuse(
            member, self.view.local, now, own=True, hurried=member.was_linked and not member.linked
        )

    def accuse(
        self, member: Member, accuser: PeerId, now: float, own: bool = False, hurried: bool = False
    ) -> list[Effect]:
        """Begin a suspicion, or add an accuser to an existing suspicion.

        Args:
            own: Whether a probe by the local peer has failed.
            hurried: Whether the shortest suspicion timeout applies.
        """
        if member.gone or accuser == member.peer:
            return []
        suspicion = member.suspicion
        if suspicion is None:
            suspicion = member.suspicion = Suspicion(now, {accuser: None})
            member.origin = accuser
            self.view.place(member, "suspect", member.met)
            self.rumors.add(member.rumor())
            self.view.note(
                member.peer, "suspect", "no link" if hurried and own else "no answer", accuser
            )
            news = True
        else:
            news = (
                accuser not in suspicion.accusers
                and len(suspicion.accusers) < self.settings.suspicion_mult
            )
            if news:
                suspicion.accusers[accuser] = None
                self.rumors.add(replace(member.rumor(), origin=accuser))
        if own:
            if suspicion.answered_since:  # after a reply the full timeout begins again
                suspicion.since, suspicion.answered_since, news = now, False, True
            suspicion.own = True
        if hurried and not suspicion.hurried:
            suspicion.hurried = news = True
        self.view.settle(member, by=accuser)
        if suspicion.expired and suspicion.proven:
            return self.mark_dead(member, self.view.local, now, "no answer")
        effects = self.arm(member, suspicion, now) if news else []
        if news and not own:
            # A local probe gathers evidence. Its ping also informs the accused peer of the
            # accusation.
            effects += self.prober.probe(member, now)
        return effects

    def arm(self, member: Member, suspicion: Suspicion, now: float) -> list[Effect]:
        at = max(now, suspicion.deadline(len(self.view), self.settings))
        timer = self.timers.set(at, SuspicionExpired(member.peer, member.standing, at))
        effects: list[Effect] = [*self.timers.cancel(suspicion.token), timer]
        suspicion.token = timer.token
        return effects

    def on_expiry(self, expired: SuspicionExpired, now: float) -> list[Effect]:
        member = self.view.members[expired.peer]
        suspicion = member.suspicion
        if suspicion is None or member.standing != expired.standing or suspicion.answered_since:
            return []
        if suspicion.proven:
            return self.mark_dead(member, self.view.local, now, "no answer")
        # There is only one accuser and no local evidence, so wait for further evidence.
        suspicion.expired = True
        return self.prober.probe(member, now)

    def postpone(self, now: float) -> list[Effect]:
        """Restart every suspicion timeout after a pause of this peer, because it may have missed
        refutations."""
        effects: list[Effect] = []
        for member in self.view.others():
            if member.suspicion is not None:
                member.suspicion.begin_again(now)
                effects += self.arm(member, member.suspicion, now)
        return effects

    # --- leaving ----------------------------------------------------------------------------------

    def mark_dead(
        self, member: Member, by: PeerId, now: float, reason: str, status: Status = "dead"
    ) -> list[Effect]:
        """Set the status of a member to ``dead`` or ``left``. The change is not reported if the
        member was gone before the local peer met it."""
        effects = self._close(member) + self.prober.drop(member.peer)
        met, again = member.met, member.gone and status == "dead"
        member.origin, member.gone_at = by, now
        self.view.place(member, status, met=True)
        self.rumors.add(member.rumor())
        member.skip_reported = member.skip_reported or not met
        self.view.settle(member, by)
        if met and not again:
            self.view.note(member.peer, "left" if status == "left" else "dead", reason, by)
        if status == "left":
            at = now + self.settings.gossip_to_dead_s
            effects.append(self.timers.set(at, ForgetMember(member.peer, member.standing, at)))
        return effects

    def mark_dead_again(self, member: Member, rumor: Rumor, now: float) -> list[Effect]:
        """Set a member that is already gone to dead or left at a higher standing. The local peer
        has missed the refutation or the restart of the member in between."""
        new_life = incarnation_of(rumor.incarnation) > member.incarnation
        member.standing = rumor.incarnation
        effects = self._begin_life(member, rumor, now) if new_life else []
        return effects + self.mark_dead(
            member, rumor.origin, now, "reported by other peers", rumor.status
        )

    def _close(self, member: Member) -> list[Effect]:
        suspicion, member.suspicion = member.suspicion, None
        return [] if suspicion is None else [*self.timers.cancel(suspicion.token)]
