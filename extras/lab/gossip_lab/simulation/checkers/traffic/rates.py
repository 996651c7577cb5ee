"""S15: the rates at which a peer sends messages.

A peer sends at most about twice the necessary messages of each kind, and each rumor a
limited number of times. In a settled swarm it sends mostly probes."""

from __future__ import annotations

from collections import Counter, deque
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
    MembershipInspection,
    Nack,
    PeerId,
    Ping,
    PingRequest,
    PushPull,
    Received,
    Restore,
    Send,
    StateRequest,
    TimerFired,
    retransmit_limit,
)
from gossip_lab.simulation.checkers.base import Checker, Life, PerLife, keep_latest
from gossip_lab.simulation.checkers.watching import on_effect
from gossip_lab.simulation.world import AnySwarm

TIMES = 2.0
"""Tolerated multiple of the protocol's need, which is an estimate."""

SETTLES_S = 1.0
"""Seconds after the swarm has settled in which the last rumors still spread: all peers agree by
then, but not all have received the rumors."""

FAR_S = 0.005
"""One way: hosts in different buildings are farther apart."""

PAUSE_S = 0.2
"""Seconds without a message after which a peer counts as silent."""

LISTENERS = 3
"""Minimum number of peers: a peer gets no news about itself, so with fewer there may be no
receiver."""

RUMORS_KINDS = (Ping, PingRequest, Gossip)
"""Messages that a Byzantine peer may cause in any number, by accusing others faster than they can
reply."""


def needed_a_second(membership: MembershipInspection, n: int) -> dict[type, float]:
    """Return the number of messages of each kind that one of ``n`` peers sends unprompted in the
    busiest second. In this second each other peer joins, leaves or is accused once.

    A probe is a few pings, and a few requests to helpers if the pings are not answered. Hellos are
    counted for each receiver.
    """
    settings, others = membership.settings, n - 1
    turns = 1.0 / settings.probe_interval_s
    probes = turns + others
    return {
        Ping: settings.probe_tries * probes + turns / STRAY_EVERY,
        PingRequest: settings.indirect_probes * probes,
        Gossip: settings.gossip_fanout / settings.gossip_interval_s + others,
        # one with the first linked peer, and one after a pause
        PushPull: 1.0 / settings.push_pull_interval_s + 2.0,
        # after its return; a new link, a new member
        Hello: 1.0 / (RETURN_HELLO_EVERY * RETURN_INTERVAL_S) + 2.0,
        CommitRequest: 1.0 / RETURN_INTERVAL_S,
        # requests go to all peers: for their present state, or their state before a round
        StateRequest: 1.5 * turns * others,
    }


def needed_in_the_calm(membership: MembershipInspection, n: int) -> dict[type, float]:
    """Return the number of messages of each kind that a peer sends unprompted in a second while all
    peers reach each other. A peer that was away receives deaths in others' tables, and gossips each
    death as often as other rumors."""
    settings = membership.settings
    turns = 1.0 / settings.probe_interval_s
    nothing = dict.fromkeys((Hello, CommitRequest, StateRequest), 0.0)
    # for a peer that is leaving
    probe = dict.fromkeys((PingRequest, Nack), float(settings.indirect_probes))
    news = {
        Gossip: float(retransmit_limit(n, settings)),
        PushPull: 1.0 / settings.push_pull_interval_s,
    }
    return {**nothing, **probe, **news, Ping: turns * (1 + 1 / STRAY_EVERY)}


class SpeaksInMeasure(Checker):
    """S15: in no second does a peer send more than twice the necessary messages of a kind, except
    replies."""

    invariant = "S15"
    needs = ""

    def make_records(self) -> None:
        self._sent_at = self.per_life(dict[tuple[type, PeerId], deque[float]])
        self._most: dict[PeerId, dict[type, int]] = self.per_life()
        self._quiet_from = float("inf")
        self._n = 0  # number of peers when the bounds were made

    def begin_life(self) -> None:
        super().begin_life()
        if len(self.swarm.hosts) != self._n:  # a newcomer is one more receiver for each peer
            self._n = len(self.swarm.hosts)
            self._begin_anew()

    def settled(self) -> None:
        self._quiet_from = self.now + SETTLES_S
        self._begin_anew()

    def _begin_anew(self) -> None:
        for sent_at in self._sent_at.values():
            sent_at.clear()
        self._most.clear()

    @on_effect
    def excuse(self, restore: Restore) -> None:
        if self.circumstances.equivocating:
            # Each result that a server sends in two versions causes one more state transfer.
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
        if (calm and now < self._quiet_from) or self._is_called_for(send):
            return
        if kind in RUMORS_KINDS and not calm and self._is_accused():
            return
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
                f"sends more than {most} times a {kind.__name__} {when}; {most // TIMES:g} are "
                "needed"
            )
        sent_at.append(now)

    def _is_accused(self) -> bool:
        """Whether an attacker accuses others, or an overloaded peer replies so late that all peers
        ask about it."""
        starves = any(machine.slowness > 1.0 for machine in self.swarm.machines.values())
        return starves or bool(self.circumstances.lies and self.circumstances.defaming)

    def _is_called_for(self, send: Send) -> bool:
        """Whether a cause other than the clock determines the rate of the message."""
        kind, message, cause = type(send.message), send.message, self.swarm.handling
        if isinstance(message, PushPull):
            return message.reply
        if isinstance(message, StateRequest):
            # A piece: see FetchesInMeasure. An equivocating peer holds a false result that no other
            # peer has: after each of its turns it needs the others' state.
            return bool(message.piece) or self.peer in self.circumstances.equivocating
        if kind in (Hello, Ping) and type(cause) is LinkUp and cause.peer == send.peer:
            # A link reconnects as often as the network resets it.
            return _is_sent_once(self.swarm, kind, send.peer)
        if type(cause) is not Received:
            return False
        asked = cause.message
        if kind is Ping and type(asked) is PingRequest and asked.target == send.peer:
            # for a peer that has requested the probe
            return _is_sent_once(self.swarm, kind, send.peer)
        # a refutation, to a peer that accuses it
        return kind is Gossip and cause.sender == send.peer

    def _bounds(self, calm: bool) -> dict[type, int]:
        swarm = self.swarm
        # If payloads fill queues, replies are late, and others are asked about late peers. If nodes
        # need time to copy payloads, or hosts are far apart, a peer requests a result that was
        # announced to it.
        links = swarm.network.default
        is_far = links.delay_s[1] > FAR_S
        calm = calm and not (links.queue_s or swarm.copies_per_s or is_far)
        needed = (needed_in_the_calm if calm else needed_a_second)(
            self.membership, len(swarm.hosts)
        )
        return {kind: ceil(TIMES * times) + 1 for kind, times in needed.items()}


class FallsSilent(Checker):
    """S15: a peer stops gossiping when its last rumor is older than the time of its spread, if
    it has receivers. A message for rumors alone contains at least one."""

    invariant = "S15"
    needs = ""

    # number of rumors, first time of the last ones, time of the last message
    _news = PerLife[tuple[int, float, float]](lambda: (-1, 0.0, 0.0))

    @on_effect
    def judge(self, send: Send, gossip: Gossip) -> None:
        if type(self.swarm.handling) is not TimerFired:
            return
        membership, now = self.membership, self.now
        if not gossip.rumors:
            raise self.violated(f"sends peer {send.peer} no rumor at all")
        news, settings = membership.news, membership.settings
        known, since, told_at = self._news
        listeners = sum(member.linked and not member.gone for member in membership.others())
        if news != known or now - told_at > PAUSE_S or listeners < LISTENERS:
            since = now
        self._news = news, since, now
        needed_s = retransmit_limit(len(self.swarm.hosts), settings) * settings.gossip_interval_s
        self.demand(
            now - since <= TIMES * needed_s,
            f"still sends {gossip} {now - since:.2f} s after its last news, which take "
            f"{needed_s:.2f} s to spread",
        )


def _is_sent_once(swarm: AnySwarm, kind: type, to: PeerId) -> bool:
    return (
        sum(
            type(asked) is Send and type(asked.message) is kind and asked.peer == to
            for asked in swarm.asked
        )
        == 1
    )


AGAIN = 3
"""Times that the same rumor may have to start again: for example an accusation of a peer that was
absent."""
KEPT = 4096

REQUESTS = ((12, 1.0), (15, 3.0))
"""Requests for commits: at most this number in this many seconds. The first ones follow each other
closely; later ones leave time for each reply."""

News = tuple[Life, PeerId, str, int, PeerId]


class NewsGrowOld(Checker):
    """S15: a peer sends one rumor a few times the logarithm of the number of peers, and
    then never again. Rumors about the receiver or the sender do not count."""

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
                continue  # An outdated accusation is refuted each time.
            news = self.life, rumor.peer, rumor.status, rumor.incarnation, rumor.origin
            self._times_sent[news] += 1
            if self._times_sent[news] > most:
                raise self.violated(
                    f"sends for the {self._times_sent[news]}th time that peer {rumor.peer} is "
                    f"{rumor.status} with standing {rumor.incarnation}; {most} times are enough"
                )
            keep_latest(self._times_sent, KEPT)


class AsksInMeasure(Checker):
    """S15: a peer that is behind requests the commits that it lacks at most a dozen times in a
    second, and rarely in the next two. Each reply has all of them, and is in transit for as long as
    the network takes."""

    invariant = "S15"
    needs = "rolling"
    _asked = PerLife(lambda: deque[float](maxlen=max(most for most, _ in REQUESTS)))

    @on_effect
    def judge(self, send: Send, ask: CommitRequest) -> None:
        if self.rolling.mode != "active":
            return  # A peer that only follows the rounds requests the next.
        asked = self._asked
        self.judged += 1
        for most, within_s in REQUESTS:
            if len(asked) >= most and (took_s := self.now - asked[-most]) < within_s:
                raise self.violated(
                    f"requests the commits since round {ask.first} {most + 1} times in "
                    f"{took_s:.2f} s"
                )
        asked.append(self.now)
