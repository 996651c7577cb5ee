"""S6, S12, S13, L3: what a peer may conclude from what it has heard, and what it must.

Nobody is accused, skipped or declared dead without grounds; whose connection closes is skipped at
once; what a former life said counts for nothing; and nobody asks the dead.
"""

from __future__ import annotations

from gossip.core import (
    Ack,
    Effect,
    Event,
    Gossip,
    LinkDown,
    Nack,
    NotServing,
    PeerId,
    Ping,
    PingRequest,
    PushPull,
    Received,
    Rumor,
    Send,
    StateAttestation,
    StateOffer,
    StateRequest,
    TimerFired,
)
from gossip_lab.simulation.checkers.base import Checker, RunConditions
from gossip_lab.simulation.checkers.hearing import Hearing
from gossip_lab.simulation.checkers.reach import Reach
from gossip_lab.simulation.checkers.transitions import TableChecker, TableTransition
from gossip_lab.simulation.world import AnySwarm

from .membership import is_invented

# of quiet: every connection stands again, and those on its ends know each other
LINKED_AFTER_S = 1.0


class NoUnfoundedDeath(TableChecker):
    """S6: a death takes a failed probe of one's own or two accusers, and no answer since; or the
    word of the dead itself."""

    invariant = "S6"

    def __init__(self, hearing: Hearing, circumstances: RunConditions | None = None) -> None:
        super().__init__(circumstances)
        self.hearing = hearing

    def judge(
        self, swarm: AnySwarm, peer: PeerId, transition: TableTransition, event: Event | None
    ) -> None:
        subject, standing = transition.subject, transition.standing
        if (
            transition.field != "status"
            or (transition.before, transition.status) != ("suspect", "dead")
            or subject == peer
        ):
            return  # of one that was never met others' word is taken
        if is_invented(self.circumstances, swarm, peer, subject) or _own_word(event, subject):
            return
        heard = self.hearing.of(peer, subject)
        membership = swarm.hosts[peer].membership
        linked = membership is not None and membership.members[subject].linked
        own = not linked or self.hearing.own_evidence(swarm, peer, subject)
        accusers = [accuser for accuser in heard.accusers.get(standing, ()) if accuser != subject]
        others = len([accuser for accuser in accusers if accuser != peer])
        self.judged += 1
        if heard.answered_since == standing and not own:
            raise self.violated(
                swarm,
                peer,
                f"declares peer {subject} dead, which has answered it since it was accused",
            )
        if not own and len(accusers) < 2:
            text = (
                f"declares peer {subject} dead at the word of {others} and without a failed probe "
                "of its own"
            )
            raise self.violated(swarm, peer, text)


class NoUnfoundedAccusation(TableChecker):
    """S6: nobody accuses one that had no time to connect, nor one whom its probe must have reached:
    over a link between them that was undisturbed, or by way of the helpers that it asks."""

    invariant = "S6"

    def __init__(
        self, hearing: Hearing, reach: Reach, circumstances: RunConditions | None = None
    ) -> None:
        super().__init__(circumstances)
        self.hearing, self.reach = hearing, reach

    def judge(
        self, swarm: AnySwarm, peer: PeerId, transition: TableTransition, event: Event | None
    ) -> None:
        subject = transition.subject
        if (
            transition.field != "status"
            or transition.status != "suspect"
            or subject == peer
            or not _ends_a_probe(event)
        ):
            return
        membership = swarm.hosts[peer].membership
        if membership is None:
            return
        self.judged += 1
        member, host = membership.members[subject], swarm.hosts[peer]
        known_s = host.machine.clock_s(swarm.now_ns) - member.known_since
        grace_s = membership.settings.connect_grace_s
        if known_s < grace_s and not (member.was_linked and member.spoken):
            text = (
                f"accuses peer {subject}.{transition.incarnation}, of which it learnt "
                f"{known_s:.3f} s ago"
            )
            raise self.violated(
                swarm,
                peer,
                f"{text}, of not answering: it has {grace_s} s for its first connections",
            )
        if self.circumstances.defaming or not _is_alive_member(
            swarm, subject, transition.incarnation
        ):
            return
        asked_s = self.hearing.of(peer, subject).asked_s
        if self.reach.direct(swarm, peer, subject, asked_s - LINKED_AFTER_S):
            raise self.violated(
                swarm,
                peer,
                f"accuses peer {subject}, which it asked at {asked_s:.3f} s over an undisturbed "
                "link",
            )
        bridges = self.reach.reachable_through(swarm, peer, subject, asked_s - LINKED_AFTER_S)
        useless = len(swarm.hosts) - 2 - len(bridges)
        if bridges and useless < membership.settings.indirect_probes:
            text = (
                f"accuses peer {subject}, which it could have asked at {asked_s:.3f} s by way of "
                f"{bridges}"
            )
            raise self.violated(swarm, peer, text)


class AnAnswerEndsTheSkip(Checker):
    """S6: who has answered since it was accused is not skipped for that accusation, whether it has
    been refuted yet or not."""

    invariant = "S6"
    events = (Ack,)
    afters = (Ack,)

    def __init__(self, hearing: Hearing, circumstances: RunConditions | None = None) -> None:
        super().__init__(circumstances)
        self.hearing = hearing

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        membership = swarm.hosts[peer].membership
        if membership is None or type(event) is not Received or type(event.message) is not Ack:
            return
        subject = event.message.target
        member = membership.members.get(subject)
        if (
            member is None
            or subject == peer
            or (answered_since := self.hearing.of(peer, subject).answered_since) < 0
        ):
            return
        self.judged += 1
        # at which it has not answered yet
        accused_again = member.status == "suspect" and member.standing > answered_since
        if (
            member.skip == "suspect"
            and not accused_again
            and not self.hearing.own_evidence(swarm, peer, subject)
        ):
            raise self.violated(
                swarm,
                peer,
                f"skips peer {subject} as a suspect, which has answered it since it was accused",
            )


class ClosedIsSkipped(Checker):
    """L3: whose connection closes is skipped at once: a crash does not cost what a hang costs."""

    invariant = "L3"
    events = (LinkDown,)
    afters = (LinkDown,)

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        membership = swarm.hosts[peer].membership
        if type(event) is LinkDown and membership is not None and not membership.me.gone:
            skipped = membership.skip_reason(event.peer) != ""
            self.demand(
                skipped,
                swarm,
                peer,
                f"its connection to peer {event.peer} went down, and it still relies on it",
            )


class FormerLivesAreNotAnswered(Checker):
    """S13: what a process said counts for nothing once a later life of it has spoken."""

    invariant = "S13"
    # what is said because somebody asked, and for no other reason
    effects = (Ack, Nack, NotServing, StateOffer, StateAttestation)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        event = swarm.handling
        if type(effect) is not Send or type(event) is not Received or effect.peer != event.sender:
            return
        membership = swarm.hosts[peer].membership
        if membership is None or type(effect.message) not in self.effects:
            return
        self.judged += 1
        sender = membership.members.get(event.sender)
        if sender is not None and sender.spoken and event.incarnation < sender.incarnation:
            what = (
                f"answers a {type(event.message).__name__} of peer "
                f"{event.sender}.{event.incarnation}"
            )
            raise self.violated(
                swarm, peer, f"{what}, having heard {event.sender}.{sender.incarnation}"
            )


class TheAccusedHear(Checker):
    """S6: who is accused, or taken for gone, hears so with the answer to whatever it asks: nobody
    else can refute that."""

    invariant = "S6"
    effects = (Ack,)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        event = swarm.handling
        if type(effect) is not Send or type(event) is not Received or effect.peer != event.sender:
            return
        membership = swarm.hosts[peer].membership
        member = None if membership is None else membership.members.get(effect.peer)
        if (
            type(effect.message) is Ack
            and member is not None
            and member.linked
            and member.status != "alive"
        ):
            told = any(
                rumor.peer == member.peer and rumor.status == member.status
                for rumor in effect.message.rumors
            )
            text = (
                f"answers peer {member.peer}, which it takes for {member.status}, and does not "
                "say so"
            )
            self.demand(told, swarm, peer, text)


class NobodyAsksTheDead(Checker):
    """S12: nobody asks one that it knows to be dead for the state,
    nor waits for that of one that it skips."""

    invariant = "S12"
    effects = (StateRequest,)
    afters = (LinkDown, TimerFired)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        membership = swarm.hosts[peer].membership
        if type(effect) is Send and type(effect.message) is StateRequest and membership is not None:
            text = (
                f"asks peer {effect.peer} for its state, which is "
                f"{membership.skip_reason(effect.peer)} as far as it knows"
            )
            self.demand(not membership.is_gone(effect.peer), swarm, peer, text)

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if type(event) is not LinkDown and type(event) is not TimerFired:
            return
        core = swarm.inspections.get(peer)
        if core is None:
            return
        for donor in sorted(core.recovery.waits_for):
            self.judged += 1
            if reason := core.membership.skip_reason(donor):
                raise self.violated(
                    swarm, peer, f"waits for the state of peer {donor}, which it skips: {reason}"
                )


def _ends_a_probe(event: Event | None) -> bool:
    """Whether it may be the verdict of a probe: not what others say,
    nor a connection that was refused."""
    return isinstance(event, TimerFired) or (
        type(event) is Received and isinstance(event.message, Nack)
    )


def _own_word(event: Event | None, subject: PeerId) -> bool:
    """Whether the event brings the last word of ``subject`` itself."""
    message = event.message if type(event) is Received else None
    rumors: tuple[Rumor, ...] = ()
    match message:
        case Ping() | PingRequest() | Ack() | Gossip():
            rumors = message.rumors
        case PushPull():
            rumors = message.members
        case _:
            pass
    return any(rumor.peer == subject == rumor.origin and rumor.status == "dead" for rumor in rumors)


def _is_alive_member(swarm: AnySwarm, peer: PeerId, incarnation: int) -> bool:
    host = swarm.hosts[peer]
    membership = host.membership
    return (
        host.running
        and host.incarnation == incarnation
        and membership is not None
        and membership.me.status == "alive"
    )


__all__ = [
    "AnAnswerEndsTheSkip",
    "ClosedIsSkipped",
    "FormerLivesAreNotAnswered",
    "NoUnfoundedAccusation",
    "NoUnfoundedDeath",
    "NobodyAsksTheDead",
    "TheAccusedHear",
]
