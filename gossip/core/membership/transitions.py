"""The status of members: met, suspect, refuted, dead, left, alive again. No other code changes
it."""

from __future__ import annotations

from dataclasses import replace
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
    """Closes the link of a peer that has left: its last messages have had the time to come."""

    peer: PeerId
    standing: int
    at: float


class StatusTransitions:
    """Status transitions of all members but the local one."""

    def __init__(
        self,
        settings: MembershipSettings,
        timers: Timers[Any],
        view: MemberTable,
        rumors: RumorQueue,
        prober: Prober,
    ) -> None:
        self.settings, self.timers = settings, timers
        self.view, self.rumors, self.prober = view, rumors, prober

    # --- coming -----------------------------------------------------------------------------------

    def add_member(self, peer: PeerId, standing: int, now: float) -> Member:
        """A first entry in the table: an address at most, until the peer is met."""
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
        # A connection that stands already does not come up again: it may be older than the news of
        # whom it leads to.
        member.linked = member.lane_up
        member.was_linked = member.was_linked or member.linked
        self.view.settle(member)
        return [Connect(member.peer, control, bulk)]

    def try_address(self, member: Member, control: str, bulk: str) -> list[Effect]:
        """Connects to an address where the member may be, while nobody answers at the one that is
        known. What is known of the member stays as it is."""
        if member.lane_up or not control or control == member.lane:
            return []
        member.lane, member.linked = control, False
        return [Connect(member.peer, control, bulk)]

    def meet(self, member: Member) -> None:
        """A message of the member itself has come, or one of a member that knows it."""
        if not member.met:
            self.view.place(member, member.status, met=True)
            self.rumors.add(member.rumor())
            if not member.gone:
                self.view.note(member.peer, "joined")

    def revive(self, member: Member, rumor: Rumor, by: PeerId, now: float) -> list[Effect]:
        """The member is alive with a higher standing: it has refuted an accusation, or was started
        again."""
        effects = self._close(member) + self.prober.drop(member.peer)
        again = member.gone
        # a lower one: the later was invented
        new_life = incarnation_of(rumor.incarnation) != member.incarnation
        member.standing, member.origin = rumor.incarnation, member.peer
        self.view.place(member, "alive", member.met)
        if new_life:
            again = again or member.met
            effects += self._begin_life(member, rumor, now)
        elif not member.control:  # within a life an address does not change, whoever says so
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
        """A direct answer clears the local skip. A suspicion stays until it is refuted."""
        member = self.view.members[answer.peer]
        member.progress = answer.progress
        member.stalled = stalled
        effects: list[Effect] = []
        suspicion = member.suspicion
        if suspicion is not None and answer.asked_at >= suspicion.since:
            suspicion.answered_since, suspicion.own = True, False
        elif suspicion is not None and not suspicion.answered_since:
            # that answer may be older than the accusation
            effects += self.prober.probe(member, now)
        self.view.settle(member)
        return effects

    def on_probe_timeout(self, silence: ProbeTimedOut, now: float) -> list[Effect]:
        member = self.view.members[silence.peer]
        if member.gone or not member.met:
            return []
        both_ways = member.was_linked and member.heard_at >= member.known_since
        if not both_ways and now - member.known_since < self.settings.connect_grace_s:
            return []  # its answer may have had no way to us yet
        # A link that closed and did not come back says more than a lost answer.
        return self.accuse(
            member, self.view.local, now, own=True, hurried=member.was_linked and not member.linked
        )

    def accuse(
        self, member: Member, accuser: PeerId, now: float, own: bool = False, hurried: bool = False
    ) -> list[Effect]:
        """Begins a suspicion, or adds an accuser to it.

        Args:
            own: the local peer itself had no answer.
            hurried: the suspicion lasts the shortest time only.
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
            if suspicion.answered_since:  # it has answered since, so it has all the time again
                suspicion.since, suspicion.answered_since, news = now, False, True
            suspicion.own = True
        if hurried and not suspicion.hurried:
            suspicion.hurried = news = True
        self.view.settle(member, by=accuser)
        if suspicion.expired and suspicion.proven:
            return self.mark_dead(member, self.view.local, now, "no answer")
        effects = self.arm(member, suspicion, now) if news else []
        if news and not own:
            # a second opinion, which also tells the accused
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
        # A single peer accuses it, and we have not asked ourselves: the next good evidence decides.
        suspicion.expired = True
        return self.prober.probe(member, now)

    def postpone(self, now: float) -> list[Effect]:
        """Every suspicion begins again: this peer stood still, and did not hear refutations."""
        effects: list[Effect] = []
        for member in self.view.others():
            if member.suspicion is not None:
                member.suspicion.begin_again(now)
                effects += self.arm(member, member.suspicion, now)
        return effects

    # --- going ------------------------------------------------------------------------------------

    def mark_dead(
        self, member: Member, by: PeerId, now: float, reason: str, status: Status = "dead"
    ) -> list[Effect]:
        """Makes the member ``dead`` or ``left``. One that was gone before this peer met it is
        entered without a report."""
        effects = self._close(member) + self.prober.drop(member.peer)
        met, again = member.met, member.gone and status == "dead"
        member.origin, member.gone_at = by, now
        self.view.place(member, status, met=True)
        self.rumors.add(member.rumor())
        member.skip_told = member.skip_told or not met
        self.view.settle(member, by)
        if met and not again:
            self.view.note(member.peer, "left" if status == "left" else "dead", reason, by)
        if status == "left":
            at = now + self.settings.gossip_to_dead_s
            effects.append(self.timers.set(at, ForgetMember(member.peer, member.standing, at)))
        return effects

    def mark_dead_again(self, member: Member, rumor: Rumor, now: float) -> list[Effect]:
        """The member had refuted its death, or was started again, and is gone once more. This peer
        has missed all of that."""
        new_life = incarnation_of(rumor.incarnation) > member.incarnation
        member.standing = rumor.incarnation
        effects = self._begin_life(member, rumor, now) if new_life else []
        return effects + self.mark_dead(member, rumor.origin, now, "told so", rumor.status)

    def _close(self, member: Member) -> list[Effect]:
        suspicion, member.suspicion = member.suspicion, None
        return [] if suspicion is None else [*self.timers.cancel(suspicion.token)]
