"""S6, S12 and L3: what a peer may conclude from its messages, and what it must conclude.

A peer is accused, skipped or declared dead only with evidence. A peer is skipped as soon as its
connection closes. Dead peers receive no requests.
"""

from __future__ import annotations

from gossip.core import (
    Event,
    LinkDown,
    Nack,
    PeerId,
    Received,
    Send,
    StateRequest,
    TimerFired,
)
from gossip_lab.simulation.checkers.base import Checker, after_event, on_effect
from gossip_lab.simulation.checkers.probe_evidence import rumors_of
from gossip_lab.simulation.checkers.transitions import TableChecker, TableTransition

# Time without disturbances after which all connections are up again, and hellos were exchanged.
LINKED_AFTER_S = 1.0


class NoUnfoundedDeath(TableChecker):
    """S6: a peer declares another peer dead only if its own probe has failed or two peers have
    accused it, and if it has received no ack since. A peer's message about its own death is also
    enough."""

    invariant = "S6"
    fields = ("status",)

    def judge(self, transition: TableTransition) -> None:
        subject = transition.subject
        standing = transition.standing
        peer = self.peer
        if (transition.before, transition.status) != ("suspect", "dead") or subject == peer:
            return  # claims about a peer that was never met are accepted
        if self.is_invented(subject) or _has_own_claim(self.cause, subject):
            return
        contact = self.probe_evidence.of(peer, subject)
        linked = self.membership.members[subject].linked
        own = not linked or self.probe_evidence.has_failed_probe(self.swarm, peer, subject)
        accusers = [accuser for accuser in contact.accusers.get(standing, ()) if accuser != subject]
        others = len([accuser for accuser in accusers if accuser != peer])
        self.demand(
            own or contact.answered_since != standing,
            f"declares peer {subject} dead, which has sent it an ack since the accusation",
        )
        if not own and len(accusers) < 2:
            raise self.violated(
                f"declares peer {subject} dead on claims of {others} and without a failed probe "
                "of its own"
            )


class NoUnfoundedAccusation(TableChecker):
    """S6: no peer is accused before it had time to connect. No peer is accused if the probe must
    have reached it, over an undisturbed link or through the helpers of the probe."""

    invariant = "S6"
    fields = ("status",)

    def judge(self, transition: TableTransition) -> None:
        subject = transition.subject
        peer = self.peer
        settings = self.membership.settings
        accused = transition.status == "suspect" and subject != peer
        if not accused or not _ends_a_probe(self.cause):
            return
        member = self.membership.members[subject]
        known_s = self.clock_s - member.known_since
        grace_s = settings.connect_grace_s
        self.demand(
            known_s >= grace_s or (member.was_linked and member.spoken),
            f"accuses peer {subject}.{transition.incarnation}, known for only {known_s:.3f} s, "
            f"of not replying: it has {grace_s} s for its first connections",
        )
        if self.conditions.allows_false_accusations or not self.is_alive(
            subject, transition.incarnation
        ):
            return
        probed_s = self.probe_evidence.of(peer, subject).probed_s
        since_s = probed_s - LINKED_AFTER_S
        if self.reachability.is_undisturbed(self.swarm, peer, subject, since_s):
            raise self.violated(
                f"accuses peer {subject}, which it probed at {probed_s:.3f} s over an undisturbed "
                "link"
            )
        bridges = self.reachability.reachable_through(self.swarm, peer, subject, since_s)
        useless = len(self.swarm.hosts) - 2 - len(bridges)
        if bridges and useless < settings.indirect_probes:
            raise self.violated(
                f"accuses peer {subject}, which it could have probed at {probed_s:.3f} s through "
                f"{bridges}"
            )


class SkipOnConnectionClose(Checker):
    """L3: a peer is skipped as soon as its connection closes, so that a crash costs less time than
    a hang."""

    invariant = "L3"
    needs = ""

    @after_event
    def judge(self, event: LinkDown) -> None:
        if not self.membership.me.gone:
            self.demand(
                self.membership.skip_reason(event.peer) != "",
                f"its connection to peer {event.peer} closed, but it does not skip that peer",
            )


class NoRequestsToDeadPeers(Checker):
    """S12: no peer requests a state from a peer that it has recorded as dead, or waits for the
    state of a peer that it skips."""

    invariant = "S12"

    @on_effect
    def judge_request(self, send: Send, ask: StateRequest) -> None:
        reason = self.membership.skip_reason(send.peer)
        self.demand(
            not self.membership.is_gone(send.peer),
            f"requests the state of peer {send.peer}, which is {reason} in its view",
        )

    @after_event
    def judge_wait(self, event: LinkDown | TimerFired) -> None:
        for donor in sorted(self.core.recovery.waits_for):
            reason = self.core.membership.skip_reason(donor)
            self.demand(
                not reason, f"waits for the state of peer {donor}, which it skips: {reason}"
            )


def _ends_a_probe(event: Event | None) -> bool:
    """Whether the event may be the end of a failed probe, in contrast to a claim of other peers or
    a closed connection."""
    return isinstance(event, TimerFired) or (
        type(event) is Received and isinstance(event.message, Nack)
    )


def _has_own_claim(event: Event | None, subject: PeerId) -> bool:
    """Whether the event has the claim of ``subject`` itself that it is dead."""
    rumors = rumors_of(event.message if type(event) is Received else None)
    return any(rumor.peer == subject == rumor.origin and rumor.status == "dead" for rumor in rumors)
