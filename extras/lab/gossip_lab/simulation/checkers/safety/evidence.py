"""S6, S12, S13, L3: what a peer may conclude from what it has heard, and what it must.

Nobody is accused, skipped or declared dead without grounds; whose connection closes is skipped at
once; what a former life said counts for nothing; and nobody asks the dead.
"""

from __future__ import annotations

from gossip.core import (
    Ack,
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
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.checkers.transitions import TableChecker, TableTransition
from gossip_lab.simulation.checkers.watching import after_event, on_effect

from .membership import is_alive, is_invented

# of quiet: every connection stands again, and those on its ends know each other
LINKED_AFTER_S = 1.0


class NoUnfoundedDeath(TableChecker):
    """S6: a death takes a failed probe of one's own or two accusers, and no answer since; or the
    word of the dead itself."""

    invariant = "S6"

    def judge(self, transition: TableTransition, event: Event | None) -> None:
        subject, standing, peer = transition.subject, transition.standing, self.peer
        if (
            transition.field != "status"
            or (transition.before, transition.status) != ("suspect", "dead")
            or subject == peer
        ):
            return  # of one that was never met others' word is taken
        if is_invented(self.circumstances, self.swarm, peer, subject) or _own_word(event, subject):
            return
        heard = self.hearing.of(peer, subject)
        linked = self.membership.members[subject].linked
        own = not linked or self.hearing.own_evidence(self.swarm, peer, subject)
        accusers = [accuser for accuser in heard.accusers.get(standing, ()) if accuser != subject]
        others = len([accuser for accuser in accusers if accuser != peer])
        self.demand(
            own or heard.answered_since != standing,
            f"declares peer {subject} dead, which has answered it since it was accused",
        )
        if not own and len(accusers) < 2:
            raise self.violated(
                f"declares peer {subject} dead at the word of {others} and without a failed probe "
                "of its own"
            )


class NoUnfoundedAccusation(TableChecker):
    """S6: nobody accuses one that had no time to connect, nor one whom its probe must have reached:
    over a link between them that was undisturbed, or by way of the helpers that it asks."""

    invariant = "S6"

    def judge(self, transition: TableTransition, event: Event | None) -> None:
        subject, peer, settings = transition.subject, self.peer, self.membership.settings
        accused = (transition.field, transition.status) == ("status", "suspect")
        if not accused or subject == peer or not _ends_a_probe(event):
            return
        member = self.membership.members[subject]
        known_s, grace_s = self.clock_s - member.known_since, settings.connect_grace_s
        self.demand(
            known_s >= grace_s or (member.was_linked and member.spoken),
            f"accuses peer {subject}.{transition.incarnation}, of which it learnt {known_s:.3f} s "
            f"ago, of not answering: it has {grace_s} s for its first connections",
        )
        if self.circumstances.defaming or not is_alive(self.swarm, subject, transition.incarnation):
            return
        asked_s = self.hearing.of(peer, subject).asked_s
        since_s = asked_s - LINKED_AFTER_S
        if self.reach.direct(self.swarm, peer, subject, since_s):
            raise self.violated(
                f"accuses peer {subject}, which it asked at {asked_s:.3f} s over an undisturbed "
                "link"
            )
        bridges = self.reach.reachable_through(self.swarm, peer, subject, since_s)
        useless = len(self.swarm.hosts) - 2 - len(bridges)
        if bridges and useless < settings.indirect_probes:
            raise self.violated(
                f"accuses peer {subject}, which it could have asked at {asked_s:.3f} s by way of "
                f"{bridges}"
            )


class AnAnswerEndsTheSkip(Checker):
    """S6: who has answered since it was accused is not skipped for that accusation, whether it has
    been refuted yet or not."""

    invariant = "S6"
    needs = ""

    @after_event
    def judge(self, event: Received, ack: Ack) -> None:
        subject = ack.target
        member = self.membership.members.get(subject)
        if member is None or subject == self.peer:
            return
        if (answered_since := self.hearing.of(self.peer, subject).answered_since) < 0:
            return
        # at which it has not answered yet
        accused_again = member.status == "suspect" and member.standing > answered_since
        self.demand(
            member.skip != "suspect"
            or accused_again
            or self.hearing.own_evidence(self.swarm, self.peer, subject),
            f"skips peer {subject} as a suspect, which has answered it since it was accused",
        )


class ClosedIsSkipped(Checker):
    """L3: whose connection closes is skipped at once: a crash does not cost what a hang costs."""

    invariant = "L3"
    needs = ""

    @after_event
    def judge(self, event: LinkDown) -> None:
        if not self.membership.me.gone:
            self.demand(
                self.membership.skip_reason(event.peer) != "",
                f"its connection to peer {event.peer} went down, and it still relies on it",
            )


class FormerLivesAreNotAnswered(Checker):
    """S13: what a process said counts for nothing once a later life of it has spoken."""

    invariant = "S13"
    needs = ""

    @on_effect
    def judge(
        self, send: Send, answer: Ack | Nack | NotServing | StateOffer | StateAttestation
    ) -> None:
        """Of what is said because somebody asked, and for no other reason."""
        event = self.swarm.handling
        if type(event) is not Received or send.peer != event.sender:
            return
        sender = self.membership.members.get(event.sender)
        life = sender.incarnation if sender is not None and sender.spoken else 0
        self.demand(
            event.incarnation >= life,
            f"answers a {type(event.message).__name__} of peer {event.sender}.{event.incarnation}, "
            f"having heard {event.sender}.{life}",
        )


class TheAccusedHear(Checker):
    """S6: who is accused, or taken for gone, hears so with the answer to whatever it asks: nobody
    else can refute that."""

    invariant = "S6"
    needs = ""

    @on_effect
    def judge(self, send: Send, ack: Ack) -> None:
        event = self.swarm.handling
        if type(event) is not Received or send.peer != event.sender:
            return
        member = self.membership.members.get(send.peer)
        if member is not None and member.linked and member.status != "alive":
            told = any(
                rumor.peer == member.peer and rumor.status == member.status for rumor in ack.rumors
            )
            self.demand(
                told,
                f"answers peer {member.peer}, which it takes for {member.status}, and does not "
                "say so",
            )


class NobodyAsksTheDead(Checker):
    """S12: nobody asks one that it knows to be dead for the state,
    nor waits for that of one that it skips."""

    invariant = "S12"

    @on_effect
    def judge_request(self, send: Send, ask: StateRequest) -> None:
        reason = self.membership.skip_reason(send.peer)
        self.demand(
            not self.membership.is_gone(send.peer),
            f"asks peer {send.peer} for its state, which is {reason} as far as it knows",
        )

    @after_event
    def judge_wait(self, event: LinkDown | TimerFired) -> None:
        for donor in sorted(self.core.recovery.waits_for):
            reason = self.core.membership.skip_reason(donor)
            self.demand(
                not reason, f"waits for the state of peer {donor}, which it skips: {reason}"
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
