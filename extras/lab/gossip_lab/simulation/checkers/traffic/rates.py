"""S15: how often a peer speaks up by itself: of each kind of message about twice what the protocol
needs at most, and when all has settled hardly anything beside its probes."""

from __future__ import annotations

from collections import deque
from math import ceil

from gossip.core import (
    RETURN_HELLO_EVERY,
    RETURN_INTERVAL_S,
    STRAY_EVERY,
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
from gossip_lab.simulation.checkers.base import Checker, PerLife
from gossip_lab.simulation.checkers.watching import on_effect
from gossip_lab.simulation.world import AnySwarm

TIMES = 2.0
"""Tolerated multiple of the protocol's need, which is an estimate."""

SETTLES_S = 1.0
"""Seconds after all has settled in which the last news still spreads: all peers agree by then, and
not all of them have the news that they do."""

FAR_S = 0.005
"""One way: so far apart are hosts that are not in one building."""

PAUSE_S = 0.2
"""Seconds without a message after which a peer has fallen silent."""

LISTENERS = 3
"""Nobody is told news about itself: with fewer there may be nobody to tell them to."""

RUMORS_KINDS = (Ping, PingRequest, Gossip)
"""Messages that a peer which defames others may cause in any number, by accusing faster than it is
answered."""


def needed_a_second(membership: MembershipInspection, n: int) -> dict[type, float]:
    """Return how many messages of each kind one of ``n`` peers sends unprompted in the busiest
    second. In this second each other peer comes, goes or is accused once.

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
        # one with the first linked peer, and one after a standstill
        PushPull: 1.0 / settings.push_pull_interval_s + 2.0,
        # when it comes back; a new link, a new member
        Hello: 1.0 / (RETURN_HELLO_EVERY * RETURN_INTERVAL_S) + 2.0,
        CommitRequest: 1.0 / RETURN_INTERVAL_S,
        # requests go to all peers: for the state that they hold, or will hold before a round
        StateRequest: 1.5 * turns * others,
    }


def needed_in_the_calm(membership: MembershipInspection, n: int) -> dict[type, float]:
    """Return how many messages of each kind a peer sends unprompted in a second while all peers see
    each other. A peer that was away receives deaths in others' tables, and gossips each death as
    often as news requires."""
    settings = membership.settings
    turns = 1.0 / settings.probe_interval_s
    nothing = dict.fromkeys((Hello, CommitRequest, StateRequest), 0.0)
    # for a peer that is just leaving
    probe = dict.fromkeys((PingRequest, Nack), float(settings.indirect_probes))
    told = {
        Gossip: float(retransmit_limit(n, settings)),
        PushPull: 1.0 / settings.push_pull_interval_s,
    }
    return {**nothing, **probe, **told, Ping: turns * (1 + 1 / STRAY_EVERY)}


class SpeaksInMeasure(Checker):
    """S15: in no second does a peer say more than twice what the protocol needs, of each kind of
    message that is no answer."""

    invariant = "S15"
    needs = ""

    def make_records(self) -> None:
        self._said = self.per_life(dict[tuple[type, PeerId], deque[float]])
        self._most: dict[PeerId, dict[type, int]] = self.per_life()
        self._quiet_from = float("inf")
        self._n = 0  # peers that there were when the bounds were made

    def begin_life(self) -> None:
        super().begin_life()
        if len(self.swarm.hosts) != self._n:  # a newcomer is one more for each to talk to
            self._n = len(self.swarm.hosts)
            self._begin_anew()

    def settled(self) -> None:
        self._quiet_from = self.now + SETTLES_S
        self._begin_anew()

    def _begin_anew(self) -> None:
        for said in self._said.values():
            said.clear()
        self._most.clear()

    @on_effect
    def excuse(self, restore: Restore) -> None:
        if self.circumstances.equivocating:
            # each result that a server tells differently costs another state
            self._said[self.peer].pop((StateRequest, -1), None)

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
        said = self._said[self.peer].setdefault(key, deque(maxlen=most))
        if len(said) == most and now - said[0] < 1.0:
            when = "when all has settled" if calm else "in a second"
            raise self.violated(
                f"says more than {most} times a {kind.__name__} {when}; {most // TIMES:g} are "
                "needed"
            )
        said.append(now)

    def _is_accused(self) -> bool:
        """Whether somebody defames others, or starves and answers so late that all ask about it."""
        starves = any(machine.slowness > 1.0 for machine in self.swarm.machines.values())
        return starves or bool(self.circumstances.lies and self.circumstances.defaming)

    def _is_called_for(self, send: Send) -> bool:
        """Whether something else than the clock decides how often it is said."""
        kind, message, cause = type(send.message), send.message, self.swarm.handling
        if isinstance(message, PushPull):
            return message.reply
        if isinstance(message, StateRequest):
            # A piece: see FetchesInMeasure. Who equivocates holds what it has lied about, and
            # nobody else does: after each of its turns it needs the others' state.
            return bool(message.piece) or self.peer in self.circumstances.equivocating
        if kind in (Hello, Ping) and type(cause) is LinkUp and cause.peer == send.peer:
            # a link comes up as often as the network resets it
            return _is_sent_once(self.swarm, kind, send.peer)
        if type(cause) is not Received:
            return False
        asked = cause.message
        if kind is Ping and type(asked) is PingRequest and asked.target == send.peer:
            return _is_sent_once(self.swarm, kind, send.peer)  # for one who has asked for it
        # a denial, to one that accuses it
        return kind is Gossip and cause.sender == send.peer

    def _bounds(self, calm: bool) -> dict[type, int]:
        swarm = self.swarm
        # Where payloads fill queues, answers go on being late, and others are asked about who is
        # late. Where nodes need time to copy them, or hosts are far apart, who was told of a
        # result asks for it.
        links = swarm.network.default
        is_far = links.delay_s[1] > FAR_S
        calm = calm and not (links.queue_s or swarm.copies_per_s or is_far)
        needed = (needed_in_the_calm if calm else needed_a_second)(
            self.membership, len(swarm.hosts)
        )
        return {kind: ceil(TIMES * times) + 1 for kind, times in needed.items()}


class FallsSilent(Checker):
    """S15: who has had no news for as long as it takes to tell them stops talking; while it has
    somebody to tell them to. A message that is for rumours alone has one."""

    invariant = "S15"
    needs = ""

    # how many it has had, since when it tells the last, when it did
    _news = PerLife[tuple[int, float, float]](lambda: (-1, 0.0, 0.0))

    @on_effect
    def judge(self, send: Send, gossip: Gossip) -> None:
        if type(self.swarm.handling) is not TimerFired:
            return
        membership, now = self.membership, self.now
        if not gossip.rumors:
            raise self.violated(f"tells peer {send.peer} no rumour at all")
        news, settings = membership.news, membership.settings
        known, since, told_at = self._news
        listeners = sum(member.linked and not member.gone for member in membership.others())
        if news != known or now - told_at > PAUSE_S or listeners < LISTENERS:
            since = now
        self._news = news, since, now
        needed_s = retransmit_limit(len(self.swarm.hosts), settings) * settings.gossip_interval_s
        self.demand(
            now - since <= TIMES * needed_s,
            f"goes on saying {gossip} {now - since:.2f} s after its last news, which take "
            f"{needed_s:.2f} s to tell",
        )


def _is_sent_once(swarm: AnySwarm, kind: type, to: PeerId) -> bool:
    return (
        sum(
            type(asked) is Send and type(asked.message) is kind and asked.peer == to
            for asked in swarm.asked
        )
        == 1
    )
