"""SWIM with the Lifeguard extensions: failure detection and dissemination of the members' statuses.

*Skip* is local, instant and reversible. *Dead* is agreed, slow and refutable. A member is declared
dead if a local probe has failed or there are two accusers, and the suspicion timeout has passed
without a reply.
Source: Das, Gupta, Motivala 2002 (SWIM); Dadgar, Phillips, Currey 2018 (Lifeguard). The formulas
and settings are those of memberlist, with more retransmissions in small runs.
"""

from __future__ import annotations

import random
from math import ceil, log2
from typing import Any, Literal, TypeAlias, assert_never

from gossip.core.events import Disconnect, Effect, Send
from gossip.core.frozen import record
from gossip.core.messages import (
    Ack,
    Gossip,
    Nack,
    PeerId,
    Ping,
    PingRequest,
    Progress,
    PushPull,
    Rumor,
)
from gossip.core.settings import (
    ANSWER_INTERVAL_S,
    LAST_WORDS_S,
    STALLED_BEHIND,
    STRAY_EVERY,
    TABLE_MAX,
    MembershipSettings,
)
from gossip.core.timers import Timers

from .dissemination import RumorQueue
from .prober import Prober, ProbeStep, ProbeTimedOut, RelayExpired
from .rumors import RumorHandler
from .table import NEVER, REFUTATIONS, Change, Member, MemberTable, first_standing
from .transitions import ForgetMember, StatusTransitions, SuspicionExpired

__all__ = ["TIMERS", "Change", "Member", "Membership", "MembershipMessage", "MembershipTimer"]


MembershipMessage: TypeAlias = Ping | PingRequest | Ack | Nack | PushPull | Gossip


@record
class ProbeTick:
    at: float


@record
class GossipTick:
    at: float


@record
class TableTick:
    at: float


TIMERS = (ProbeTick, GossipTick, TableTick, SuspicionExpired, ForgetMember, ProbeStep, RelayExpired)
"""Types of timers that ``Membership.on_timer`` handles."""

MembershipTimer: TypeAlias = (
    ProbeTick | GossipTick | TableTick | SuspicionExpired | ForgetMember | ProbeStep | RelayExpired
)


def table_interval_s(n: int, settings: MembershipSettings) -> float:
    """Return the time between two table exchanges of one peer, in seconds. The size of a table is
    proportional to n, so exchanges are rarer in large runs."""
    return settings.push_pull_interval_s * (ceil(log2(n) - 5) + 1 if n > 32 else 1)


class Membership:
    """Membership as one peer sees it. The size of the view is bounded by the number of ``allowed``
    peers.

    Args:
        me: Entry of the local peer, from ``Member.own``. The launcher sets its incarnation, which
            is higher than all former incarnations of the peer.
        timers: Timers of the core. ``on_timer`` handles fired timers of the types in ``TIMERS``.
        allowed: Peers that may be members; None allows all peers.

    Attributes:
        stall_after_s: Time without progress, in seconds, after which a trainer that is behind the
            local trainer counts as stalled. The peer of a stalled trainer is skipped. The time is
            set from measured rounds.
    """

    def __init__(
        self,
        me: Member,
        settings: MembershipSettings,
        timers: Timers[Any],
        rng: random.Random,
        allowed: frozenset[PeerId] | None,
    ) -> None:
        self.me, self.local, self.incarnation = me, me.peer, me.incarnation
        self.settings, self.timers, self.rng, self.allowed = settings, timers, rng, allowed
        self.view = MemberTable(me)
        self.rumors = RumorQueue(settings)
        self.prober = Prober(settings, timers, rng, self.view, self._talk)
        self.awareness = self.prober.awareness
        self.transitions = StatusTransitions(settings, timers, self.view, self.rumors, self.prober)
        self.rumor_handler = RumorHandler(
            settings, allowed, self.view, self.transitions, self.awareness
        )
        self._voices = self.rumor_handler.voices
        self._awake_since = NEVER
        self._step = 0  # last step of the local trainer; ``_stepped_at`` is the time of this step
        self._stepped_at: float | None = None
        self.stall_after_s = 2.0
        self._turns = 0
        # Whether the local peer has started a table exchange on a new link.
        self._exchanged = False
        # Whether a gossip tick is set, because there are rumors to send.
        self.gossip_is_due = False

    # --- queries ----------------------------------------------------------------------------------

    @property
    def members(self) -> dict[PeerId, Member]:
        """All known peers, including the local peer."""
        return self.view.members

    @property
    def standing(self) -> int:
        """Standing of the local peer. Each refutation raises it."""
        return self.me.standing

    def drain(self) -> list[Change]:
        """Return the changes since the last call, in order."""
        return self.view.drain()

    # --- events -----------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        self.me.appear(now)
        self.rumors.add(self.me.rumor())
        first = (
            (self.settings.probe_interval_s, ProbeTick),
            (self.settings.push_pull_interval_s, TableTick),
        )
        # The times of the first ticks are random, because otherwise peers that start together would
        # always probe at the same time.
        ticks = [(now + self.rng.uniform(0.0, interval_s), kind) for interval_s, kind in first]
        return [self.timers.set(at, kind(at)) for at, kind in ticks]

    def learn(
        self, peer: PeerId, control: str, bulk: str, incarnation: int, now: float
    ) -> list[Effect]:
        """Record the address of a peer, which comes from the peer itself (``Hello``) or from a list
        of seeds.

        The local peer connects to a new peer. Until the first message from the new peer, it is
        neither reported as "joined" nor accused.
        """
        if peer == self.local or not self.rumor_handler.allows(peer):
            return []
        standing = first_standing(incarnation)
        member = self.members.get(peer)
        effects: list[Effect] = []
        if member is None:
            member = self.transitions.add_member(peer, standing, now)
            effects += self.transitions.set_address(member, control, bulk)
        elif (
            incarnation > member.incarnation and self.rumor_handler.plausible(standing, member)
        ) or (incarnation < member.incarnation and self._voices.get(peer) == incarnation):
            effects += self.transitions.revive(
                member, Rumor(peer, "alive", standing, control, bulk, peer), self.local, now
            )
        elif incarnation == member.incarnation and (member.control, member.bulk) != (control, bulk):
            # An earlier rumor may have had a false address.
            effects += self.transitions.set_address(member, control, bulk)
        if self._voices.get(peer) == member.incarnation:
            del self._voices[peer]
            self.accept_sender(peer, member.incarnation, now)
        return effects + self.prober.restart(member, now)

    def accept_sender(self, sender: PeerId, incarnation: int, now: float) -> bool:
        """Record that a message from ``sender`` has arrived. Return False if the message must be
        dropped, because its sender is not allowed, or because it comes from a former
        incarnation."""
        member = self.view.members.get(sender)
        if member is self.me or not (
            self.rumor_handler.allows(sender) if self.allowed is None else sender in self.allowed
        ):
            return False
        life = -1 if member is None else member.standing // REFUTATIONS
        # Messages of a former incarnation may still arrive for some time. If they continue to
        # arrive, but no message of the later incarnation has arrived, the rumor of the later
        # incarnation was false.
        is_former = incarnation < life
        if (
            member is not None
            and is_former
            and (member.spoken or now - member.known_since < LAST_WORDS_S)
        ):
            return False
        if member is None or incarnation != life:
            # A new incarnation. Its messages are accepted, but it becomes a member only when its
            # address is known.
            if not self.rumor_handler.plausible(first_standing(incarnation), member):
                return False
            self._voices[sender] = incarnation
            return True
        if member.heard_at == NEVER:
            member.spoken_since = now
        member.heard_at = now
        if self._voices:
            self._voices.pop(sender, None)
        if not member.met:
            self.transitions.meet(member)
        return True

    def is_former(self, sender: PeerId, incarnation: int) -> bool:
        """Whether a later incarnation of ``sender`` is known. Always False for the local peer."""
        member = self.view.members.get(sender)
        return (
            member is not None
            and member is not self.me
            and incarnation < member.standing // REFUTATIONS
        )

    def on_message(
        self, sender: PeerId, incarnation: int, message: MembershipMessage, now: float
    ) -> list[Effect]:
        """Handle a message for which ``accept_sender`` has returned True."""
        effects = (
            self.rumor_handler.correct_incarnation(sender, incarnation, now) if self._voices else []
        )
        match message:
            case Gossip(rumors):
                effects += self.rumor_handler.apply_rumors(rumors, sender, now)
            case Ping(nonce, target, rumors):
                if rumors:
                    effects += self.rumor_handler.apply_rumors(rumors, sender, now)
                if target == self.local:
                    effects += self._answer(sender, nonce, now)
            case PingRequest():
                effects += self._on_ping_request(sender, message, now)
            case Ack():
                effects += self._on_ack(sender, message, now)
            case Nack():
                ended, silence = self.prober.on_nack(sender, message)
                effects += ended + self._conclude(silence, now)
            case PushPull():
                effects += self._on_push_pull(sender, message, now)
            case _:
                assert_never(message)
        return effects

    def _answer(self, sender: PeerId, nonce: int, now: float) -> list[Effect]:
        """Reply to a ping that was sent to probe the local peer."""
        if sender not in self.members:
            return []
        return [Send(sender, Ack(nonce, self.local, self.progress(now), self._talk(sender)))]

    def _on_ping_request(self, sender: PeerId, request: PingRequest, now: float) -> list[Effect]:
        effects = self.rumor_handler.apply_rumors(request.rumors, sender, now)
        if request.target == self.local:
            effects += self._answer(sender, request.nonce, now)
        elif sender in self.members:
            effects += self.prober.on_request(sender, request, now)
        return effects

    def _on_ack(self, sender: PeerId, ack: Ack, now: float) -> list[Effect]:
        # The ack is handled before its rumors, because these may contain the suspicion that the ack
        # clears.
        effects, answer = self.prober.on_ack(sender, ack, now)
        if answer is not None:
            self.awareness.improve()
            effects += self.transitions.on_answer(answer, self._is_stalled(answer.progress), now)
        if ack.rumors:
            effects += self.rumor_handler.apply_rumors(ack.rumors, sender, now)
        return effects

    def _on_push_pull(self, sender: PeerId, push: PushPull, now: float) -> list[Effect]:
        effects = self.rumor_handler.apply_rumors(push.members[:TABLE_MAX], sender, now, table=True)
        member = self.members.get(sender)
        if (
            not push.reply
            and member is not None
            and now - member.table_sent_at >= ANSWER_INTERVAL_S
        ):
            member.table_sent_at = now
            effects.append(Send(sender, PushPull(self._table(), reply=True)))
        return effects

    def on_link(self, peer: PeerId, up: bool, reason: str, now: float) -> list[Effect]:
        """Record that the link to a peer is up or down. If the link is down, the peer is skipped
        and probed at once. If a reconnect was refused, no process listens at the address, so the
        peer is suspected at once."""
        member = self.members.get(peer)
        if member is None or peer == self.local:
            return []
        if up:
            return self._on_link_up(member, now)
        member.lane_up = member.linked = False
        self.view.settle(member)
        if member.gone or not member.was_linked:
            return []
        if "refused" in reason:
            return self.transitions.accuse(member, self.local, now, own=True, hurried=True)
        return self.prober.hasten(member, now)

    def _on_link_up(self, member: Member, now: float) -> list[Effect]:
        member.lane_up = True
        if member.lane != member.control:
            return []  # the link is to the address of a former incarnation
        member.linked = member.was_linked = True
        self.view.settle(member)
        if member.status == "left":
            return []
        if member.status == "dead":
            # The ping contains the rumor of the peer's death, which the peer will refute.
            return self.prober.ping_once(member.peer)
        # Earlier pings were lost, so all pings are sent again.
        effects = self.prober.drop(member.peer) + self.prober.probe(member, now)
        if not self._exchanged:
            self._exchanged = True
            effects.append(Send(member.peer, PushPull(self._table(), reply=False)))
        return effects

    def on_timer(self, what: MembershipTimer, now: float) -> list[Effect]:
        """Handle a fired timer of a type in ``TIMERS``."""
        effects: list[Effect] = []
        late_s = now - max(what.at, self._awake_since)
        if late_s > self.settings.probe_interval_s:
            # This process was paused, and the driver has not reported the pause.
            effects += self.on_clock_jump(late_s, now)
        match what:
            case ProbeTick():
                effects += self._probe_next(now)
            case GossipTick():
                effects += self._gossip(now)
            case TableTick():
                effects += self._exchange_tables(now)
            case ProbeStep():
                stepped, silence = self.prober.on_step(what, now)
                effects += stepped
                effects += self._conclude(silence, now)
            case RelayExpired():
                effects += self.prober.on_relay_expired(what)
            case SuspicionExpired():
                effects += self.transitions.on_expiry(what, now)
            case ForgetMember(peer, standing):
                member = self.members[peer]
                if member.status == "left" and member.standing == standing:
                    member.lane, member.lane_up, member.linked = "", False, False
                    effects.append(Disconnect(peer))
            case _:
                assert_never(what)
        return effects

    def _conclude(self, silence: ProbeTimedOut | None, now: float) -> list[Effect]:
        if silence is None:
            return []
        if self.view.members[silence.peer].sending_at > silence.began:
            # Large payloads from the peer are arriving, and its reply is queued behind them.
            return []
        self.awareness.worsen(silence.unheard)
        return self.transitions.on_probe_timeout(silence, now)

    def record_arriving_payload(self, peer: PeerId, now: float) -> None:
        """Record that a part of a large payload from a peer has arrived."""
        self.view.note_load(now)
        if (member := self.view.members.get(peer)) is not None:
            member.sending_at = now

    def on_clock_jump(self, late_s: float, now: float) -> list[Effect]:
        """Handle a pause of this process. No peer may be accused because of silence during the
        pause. Other peers may have declared this peer dead in the meantime."""
        self._awake_since = now
        self.awareness.worsen()
        return (
            self.prober.drop()
            + self.transitions.postpone(now)
            + self._send_table(self._random_linked())
        )

    def on_pause(self) -> list[Effect]:
        """Drop all probes after a pause of this process. Messages that arrived during the pause are
        handled in order, so a Nack may be handled before a reply that also arrived. Such a Nack
        must not end a probe."""
        return self.prober.drop()

    # --- leaving ----------------------------------------------------------------------------------

    def leave(self, now: float) -> list[Effect]:
        """Announce to all peers that this peer leaves. This peer still replies to pings, but sends
        no probes."""
        return self._go("left", now)

    def announce_own_death(self, reason: str, now: float) -> list[Effect]:
        """Announce to all peers that this peer is dead. They accept this claim at once, because the
        local peer is its origin.

        ``reason`` is not sent, because a rumor has no field for a reason.
        """
        return self._go("dead", now)

    def _go(self, status: Literal["left", "dead"], now: float) -> list[Effect]:
        if self.me.gone:
            return []
        self.me.go(now)
        self.view.place(self.me, status, met=True)
        farewell = self.me.rumor()
        self.rumors.add(farewell)
        return [*self.prober.drop(), *self.rumor_handler.broadcast(farewell)]

    # --- input from the rest of the core ----------------------------------------------------------

    def set_progress(self, step: int, age_s: float, now: float) -> None:
        """Set the step of the local trainer. The trainer reached this step ``age_s`` seconds ago.
        Every ack carries the step and its age."""
        self._step, self._stepped_at = step, now - age_s

    def progress(self, now: float) -> Progress:
        """Return the progress of the local trainer. Before the first report of the trainer, the age
        is 0."""
        since = now if self._stepped_at is None else self._stepped_at
        return Progress(self._step, max(0, round((now - since) * 1000)))

    def expect_steps(self, every_s: float) -> None:
        """Set the time without a step after which a trainer counts as stalled, in seconds."""
        self.stall_after_s = every_s

    def _is_stalled(self, theirs: Progress) -> bool:
        """Whether the trainer of another peer is stalled: it has made no progress for long, and the
        local trainer is ahead. If all trainers wait, none of them is stalled."""
        return (
            theirs.age_ms > 1000.0 * self.stall_after_s
            and self._step >= theirs.step + STALLED_BEHIND
        )

    def schedule_gossip(self, now: float) -> list[Effect]:
        """Set the next gossip tick, if none is set. The peer calls this after every event. While
        rumors are queued, a tick fires every ``gossip_interval_s``."""
        if self.gossip_is_due or not self.rumors.waiting or self.me.gone:
            return []
        self.gossip_is_due = True
        at = now + self.settings.gossip_interval_s
        return [self.timers.set(at, GossipTick(at))]

    # --- periodic work ----------------------------------------------------------------------------

    def _probe_next(self, now: float) -> list[Effect]:
        if self.me.gone:
            return []
        at = now + self.awareness.scale(self.settings.probe_interval_s)
        effects: list[Effect] = [self.timers.set(at, ProbeTick(at))]
        target = self.prober.next_target()
        if target is not None:
            effects += self.prober.probe(target, now)
        self._turns += 1
        if self._turns % STRAY_EVERY == 0:
            # Pings to dead peers let the two sides of a partition detect each other again.
            dead = [m.peer for m in self.view.others() if m.status == "dead" and m.linked]
            if dead:
                effects += self.prober.ping_once(self.rng.choice(dead))
        return effects

    def _gossip(self, now: float) -> list[Effect]:
        self.gossip_is_due = False
        effects: list[Effect] = []
        patience_s = self.settings.gossip_to_dead_s

        def receives(m: Member) -> bool:
            return m.linked and (
                not m.gone or (m.status == "dead" and now - m.gone_at < patience_s)
            )

        for member in self.view.sample(self.rng, self.settings.gossip_fanout, receives):
            if rumors := self._talk(member.peer):
                effects.append(Send(member.peer, Gossip(rumors)))
        return effects

    def _exchange_tables(self, now: float) -> list[Effect]:
        if self.me.gone:
            return []
        at = now + table_interval_s(len(self.view), self.settings)
        return [self.timers.set(at, TableTick(at)), *self._send_table(self._random_linked())]

    def _random_linked(self) -> PeerId | None:
        strays = [
            m.peer for m in self.view.others() if m.linked and (m.status == "dead" or not m.met)
        ]
        known = [m.peer for m in self.view.others() if m.linked and m.met and not m.gone]
        stray = self.rng.random() * STRAY_EVERY < 1.0
        choice = (strays or known) if stray else (known or strays)
        return self.rng.choice(choice) if choice else None

    def _send_table(self, peer: PeerId | None) -> list[Effect]:
        return [] if peer is None else [Send(peer, PushPull(self._table(), reply=False))]

    def _table(self) -> tuple[Rumor, ...]:
        known = [m.rumor() for m in self.members.values() if m.met]
        return tuple(known if len(known) <= TABLE_MAX else self.rng.sample(known, TABLE_MAX))

    def _talk(self, peer: PeerId) -> tuple[Rumor, ...]:
        """Return the rumors for a message to ``peer``. If ``peer`` itself is suspected or dead, the
        rumor about this comes first, so that ``peer`` can refute it at once."""
        member = self.view.members.get(peer)
        if member is None or not member.linked:
            return ()  # the message would be lost, so no rumor is counted as sent
        buddy = (member.rumor(),) if member.status != "alive" else ()
        if not self.rumors.waiting:
            return buddy
        return buddy + self.rumors.pick(
            len(self.view), self.settings.rumors_per_message - len(buddy), to=peer
        )
