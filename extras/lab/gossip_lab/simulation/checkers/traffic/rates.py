"""S15: the rates at which a peer sends messages.

A peer sends at most about twice the necessary number of messages of each kind, and sends each rumor
a limited number of times. In a settled swarm it sends hardly anything but probes."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from math import ceil

from gossip.core import (
    RETURN_HELLO_EVERY,
    RETURN_INTERVAL_S,
    STRAY_EVERY,
    Ack,
    CommitRequest,
    Gossip,
    Hello,
    LinkUp,
    Nack,
    PeerId,
    Ping,
    PingRequest,
    PushPull,
    Received,
    Restore,
    Send,
    StateRequest,
    retransmit_limit,
)
from gossip_lab.inspection import MembershipInspection
from gossip_lab.simulation.checkers.base import Checker, IncarnationId, keep_latest, on_effect
from gossip_lab.simulation.world import AnySwarm

TOLERANCE_FACTOR = 2.0
"""Tolerated multiple of the estimated number of necessary messages."""

SETTLES_S = 1.0
"""Time in which the last rumors still spread after the swarm has settled, in seconds. The peers
already agree, but not all have received the last rumors."""

FAR_S = 0.005
"""One-way delay above which hosts are far apart, in seconds, such as hosts in different
buildings."""


REQUESTS = 6.0
"""Number of requests for missing commits in a second. Each reply has all missing commits."""

RUMORS_KINDS = (Ping, PingRequest, Gossip)
"""Messages of which a Byzantine peer may cause any number, by accusing peers faster than they can
refute."""


def needed_per_second(membership: MembershipInspection, n: int) -> dict[type, float]:
    """Return the number of messages of each type that one of ``n`` peers needs to send unprompted
    in the busiest second, in which each other peer joins, leaves or is accused once.

    A probe consists of a few pings and, if no ack arrives, of a few requests to helpers. Hellos are
    counted per receiver, all other messages in total.
    """
    settings, others = membership.settings, n - 1
    turns = 1.0 / settings.probe_interval_s
    probes = turns + others
    return {
        Ping: settings.probe_tries * probes + turns / STRAY_EVERY,
        PingRequest: settings.indirect_probes * probes,
        Gossip: settings.gossip_fanout / settings.gossip_interval_s + others,
        # one more for the first link, and one more after a pause
        PushPull: 1.0 / settings.push_pull_interval_s + 2.0,
        # while it returns; one more for a new link, and for a new member
        Hello: 1.0 / (RETURN_HELLO_EVERY * RETURN_INTERVAL_S) + 2.0,
        CommitRequest: REQUESTS,
        # to all peers, for their present state or their state before a round
        StateRequest: 1.5 * turns * others,
    }


def needed_when_settled(membership: MembershipInspection, n: int) -> dict[type, float]:
    """Return the number of messages of each type that a peer needs to send unprompted in a second
    of the calm phase. A peer that was away learns of deaths from the tables of other peers, and
    gossips each death as often as any rumor."""
    settings = membership.settings
    turns = 1.0 / settings.probe_interval_s
    nothing = dict.fromkeys((Hello, CommitRequest, StateRequest), 0.0)
    # for one probe of a peer that is leaving
    probe = dict.fromkeys((PingRequest, Nack), float(settings.indirect_probes))
    news = {
        Gossip: float(retransmit_limit(n, settings)),
        PushPull: 1.0 / settings.push_pull_interval_s,
    }
    return {**nothing, **probe, **news, Ping: turns * (1 + 1 / STRAY_EVERY)}


class BoundedMessageRates(Checker):
    """S15: within a second, a peer sends at most twice the necessary number of messages of each
    type. Replies are excepted."""

    invariant = "S15"
    needs = ""

    def make_records(self) -> None:
        self._sent_at: dict[PeerId, dict[tuple[type, PeerId], deque[float]]] = self.per_incarnation(
            defaultdict(dict)
        )
        self._most: dict[PeerId, dict[type, int]] = self.per_incarnation({})
        self._quiet_from = float("inf")
        self._n = 0  # number of peers for which the bounds were computed

    def begin_incarnation(self) -> None:
        super().begin_incarnation()
        if len(self.swarm.hosts) != self._n:  # a newcomer raises the bounds
            self._n = len(self.swarm.hosts)
            self._reset_counts()

    def settled(self) -> None:
        self._quiet_from = self.now + SETTLES_S
        self._reset_counts()

    def _reset_counts(self) -> None:
        for sent_at in self._sent_at.values():
            sent_at.clear()
        self._most.clear()

    @on_effect
    def forget_state_requests(self, restore: Restore) -> None:
        if self.conditions.equivocating:
            # If a server sends two versions of a result, this causes one more state transfer.
            self._sent_at[self.peer].pop((StateRequest, -1), None)

    @on_effect
    def judge(
        self,
        send: Send,
        message: Ping
        | PingRequest
        | Gossip
        | PushPull
        | Hello
        | CommitRequest
        | StateRequest
        | Nack,
    ) -> None:
        kind, now = type(message), self.now
        calm = self._quiet_from != float("inf")
        if (calm and now < self._quiet_from) or self._has_cause(send):
            return
        if kind in RUMORS_KINDS and not calm and self._is_accused():
            return
        if kind is CommitRequest and not calm and self.rolling.mode != "active":
            return  # a peer outside of the roster requests the commits of every round
        bounds = self._most.get(self.peer)
        if bounds is None:
            bounds = self._most[self.peer] = self._bounds(calm)
        most = bounds.get(kind)
        if most is None:
            return
        self.judged += 1
        key = kind, send.peer if kind is Hello else -1
        sent_at = self._sent_at[self.peer].setdefault(key, deque(maxlen=most))
        if len(sent_at) == most and now - sent_at[0] < 1.0:
            when = "when all has settled" if calm else "in a second"
            raise self.violated(
                f"sends more than {most} times a {kind.__name__} {when}; "
                f"{most // TOLERANCE_FACTOR:g} are needed"
            )
        sent_at.append(now)

    def _is_accused(self) -> bool:
        """Whether an attacker may accuse peers, or an overloaded peer may reply so late that all
        peers start indirect probes."""
        starves = any(machine.slowness > 1.0 for machine in self.swarm.machines.values())
        return starves or bool(self.conditions.attacks and self.conditions.allows_false_accusations)

    def _has_cause(self, send: Send) -> bool:
        """Whether the message has a cause other than the clock, which determines its rate."""
        kind = type(send.message)
        message = send.message
        cause = self.swarm.dispatcher.event
        if isinstance(message, PushPull):
            return message.reply
        if isinstance(message, StateRequest):
            # ``BoundedPieceRequests`` judges requests for pieces. An equivocating peer stores a
            # false result after each of its attempts, and then needs the state of another peer.
            return bool(message.piece) or self.peer in self.conditions.equivocating
        if kind in (Hello, Ping) and type(cause) is LinkUp and cause.peer == send.peer:
            # The network determines how often a link reconnects.
            return _is_sent_once(self.swarm, kind, send.peer)
        if type(cause) is not Received:
            return False
        asked = cause.message
        if kind is Ping and type(asked) is PingRequest and asked.target == send.peer:
            # an indirect probe for another peer
            return _is_sent_once(self.swarm, kind, send.peer)
        # a refutation to the accusing peer
        return kind is Gossip and cause.sender == send.peer

    def _bounds(self, calm: bool) -> dict[type, int]:
        swarm = self.swarm
        # The bounds of the calm phase do not apply in three cases. If payloads fill queues, replies
        # are late, which causes indirect probes. If nodes need time to copy payloads, or if hosts
        # are far apart, a peer may request a commit that is already in transit.
        links = swarm.network.default
        is_far = links.delay_s[1] > FAR_S
        calm = calm and not (links.queue_s or swarm.copies_per_s or is_far)
        needed = (needed_when_settled if calm else needed_per_second)(
            self.membership, len(swarm.hosts)
        )
        return {kind: ceil(TOLERANCE_FACTOR * times) + 1 for kind, times in needed.items()}


def _is_sent_once(swarm: AnySwarm, kind: type, to: PeerId) -> bool:
    return (
        sum(
            type(asked) is Send and type(asked.message) is kind and asked.peer == to
            for asked in swarm.dispatcher.effects
        )
        == 1
    )


AGAIN = 3
"""Number of times that the dissemination of the same rumor may have to start, for example an
accusation of a peer that was absent."""
KEPT = 4096


News = tuple[IncarnationId, PeerId, str, int, PeerId]


class BoundedRumorTransmissions(Checker):
    """S15: a peer sends the same rumor at most a few times the logarithm of the number of peers.
    Rumors about the receiver or the sender are excepted."""

    invariant = "S15"
    needs = ""

    def make_records(self) -> None:
        self._times_sent: Counter[News] = Counter()

    @on_effect
    def judge(self, send: Send, message: Ping | PingRequest | Ack | Gossip) -> None:
        if not message.rumors:
            return
        most = AGAIN * retransmit_limit(len(self.swarm.hosts), self.membership.settings)
        self.judged += 1
        for rumor in message.rumors:
            if rumor.peer in (send.peer, self.peer):
                continue  # every outdated accusation is refuted
            news = self.incarnation_id, rumor.peer, rumor.status, rumor.incarnation, rumor.origin
            self._times_sent[news] += 1
            if self._times_sent[news] > most:
                raise self.violated(
                    f"sends for the {self._times_sent[news]}th time that peer {rumor.peer} is "
                    f"{rumor.status} with standing {rumor.incarnation}; {most} times are enough"
                )
            keep_latest(self._times_sent, KEPT)
