"""Probes: direct pings, then indirect probes through helpers, then a verdict. The local peer also
serves as a helper for the probes of other peers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gossip.core.events import Effect, Send, SetTimer, Token
from gossip.core.frozen import record
from gossip.core.messages import Ack, Nack, PeerId, Ping, PingRequest, Progress, Rumor
from gossip.core.settings import (
    LATE_PROBES_MAX,
    LOADED_VERDICT_S,
    NACK_SHARE,
    PROBE_TIMEOUT_MAX_S,
    RELAYS_MAX,
    REPLY_S,
    TRIP_GAINS,
    MembershipSettings,
)
from gossip.core.timers import Timers

from .awareness import Awareness
from .table import NEVER, Member, MemberTable

NONCE_BITS = 47  # so many that no peer can guess a nonce; a nonce stays below ROUND_MAX


@record
class ProbeStep:
    """Timer for the next step of a probe."""

    nonce: int
    stage: int  # pings sent so far; at ``probe_tries`` send requests to helpers, at one more decide
    at: float


@record
class RelayExpired:
    """Timer of a relayed probe, after which a missing reply of the target is reported by a Nack."""

    nonce: int
    at: float


@dataclass(slots=True)
class Probe:
    peer: PeerId
    nonce: int
    began: float
    ends: float
    token: Token
    pinged_at: list[float] = field(default_factory=list)  # time of each ping; one nonce per ping
    helpers: tuple[PeerId, ...] = ()
    nacks: dict[PeerId, None] = field(default_factory=dict)


@record
class Relay:
    asker: PeerId
    asked_nonce: int
    peer: PeerId
    began: float
    token: Token


@record
class ProbeAnswered:
    """``peer`` has replied to a ping that was sent at ``asked_at`` or later. ``direct``: the reply
    came directly from the peer, not through a helper."""

    peer: PeerId
    asked_at: float
    progress: Progress
    direct: bool


@record
class ProbeTimedOut:
    """Neither ``peer`` nor a helper has confirmed in time that ``peer`` is alive. ``unheard``:
    number of helpers that sent no reply at all, which may indicate a local fault."""

    peer: PeerId
    unheard: int
    began: float


@dataclass(eq=False)
class Prober:
    """All probes of one peer. ``talk`` returns the rumors to piggyback on a message to a given
    peer.

    The timeout of a probe is computed from the round trip times of its link (RFC 6298). It is never
    shorter than the timeout in the settings.
    """

    settings: MembershipSettings
    timers: Timers[Any]
    rng: random.Random
    view: MemberTable
    talk: Callable[[PeerId], tuple[Rumor, ...]]

    def __post_init__(self) -> None:
        self.awareness = Awareness(self.settings.awareness_max)
        self.probes: dict[int, Probe] = {}
        # nonce of the probe in progress, by target
        self._nonces: dict[PeerId, int] = {}
        # time of the last request to helpers, by target
        self._helpers_asked_at: dict[PeerId, float] = {}
        self._late: dict[int, Probe] = {}
        # mean and mean deviation of the round trip time of each link, in seconds
        self._round_trips: dict[PeerId, tuple[float, float]] = {}
        self.relays: dict[int, Relay] = {}
        self._circle: list[PeerId] = []  # targets, in the order of the probes
        self._place = 0

    # --- choice of the next target ----------------------------------------------------------------

    def add_member(self, peer: PeerId) -> None:
        """Insert a new member at a random place of the circle, so that the time of its first probe
        is unpredictable."""
        self._circle.insert(self.rng.randint(0, len(self._circle)), peer)

    def next_target(self) -> Member | None:
        """Return the next target of a shuffled circle. Each member is returned once within 2n - 1
        calls."""
        for _ in range(len(self._circle) + 1):
            if self._place >= len(self._circle):
                self._place = 0
                self.rng.shuffle(self._circle)
            if not self._circle:
                return None
            peer = self._circle[self._place]
            self._place += 1
            member = self.view.members[peer]
            if not member.gone and not self.is_probing(peer):
                return member
        return None

    # --- local probes -----------------------------------------------------------------------------

    def is_probing(self, peer: PeerId) -> bool:
        return peer in self._nonces

    def _end(self, probe: Probe) -> None:
        del self.probes[probe.nonce], self._nonces[probe.peer]

    def probe(self, member: Member, now: float) -> list[Effect]:
        """Start a probe unless one is in progress. Without a link, skip the direct pings."""
        if self.is_probing(member.peer):
            return []
        nonce = self._nonce()
        probe = self.probes[nonce] = Probe(
            member.peer, nonce, now, now + self._patience_s(member.peer), token=0
        )
        self._nonces[member.peer] = nonce
        if not member.linked:
            return self._ask_in_turn(probe, now)
        at = now + self._timeout_s(member.peer) / self.settings.probe_tries
        return [self._ping(probe, now), self._set_step(probe, 1, at)]

    def hasten(self, member: Member, now: float) -> list[Effect]:
        """Start a probe of a member with a closed link. A probe in progress continues with the
        helpers, because direct pings no longer arrive."""
        nonce = self._nonces.get(member.peer)
        if nonce is None:
            return self.probe(member, now)
        probe = self.probes[nonce]
        return (
            []
            if probe.helpers
            else [*self.timers.cancel(probe.token), *self._ask_in_turn(probe, now)]
        )

    def restart(self, member: Member, now: float) -> list[Effect]:
        """Restart a probe if all its pings were sent before the first message of its target. The
        replies may be lost, because the target had no open link to the local peer yet."""
        nonce = self._nonces.get(member.peer)
        tried_at = self.probes[nonce].pinged_at if nonce is not None else []
        if len(tried_at) < self.settings.probe_tries or tried_at[-1] >= member.spoken_since:
            return []
        return self.drop(member.peer) + self.probe(member, now)

    def ping_once(self, peer: PeerId) -> list[Effect]:
        """Send a ping without a probe. If ``peer`` is dead, the ping contains the rumor of its
        death."""
        return [Send(peer, Ping(self._nonce(), peer, self.talk(peer)))]

    def on_step(self, step: ProbeStep, now: float) -> tuple[list[Effect], ProbeTimedOut | None]:
        probe = self.probes.get(step.nonce)
        if probe is None:
            return [], None
        if step.stage > self.settings.probe_tries:
            if now < (at := self._verdict_at(probe, now)):
                return [self._set_step(probe, step.stage, at)], None
            self._end(probe)
            self._late[probe.nonce] = probe
            if len(self._late) > LATE_PROBES_MAX:
                del self._late[next(iter(self._late))]
            unheard = sum(self._is_missed(h, probe) for h in probe.helpers) if probe.helpers else 1
            return [], ProbeTimedOut(probe.peer, unheard, probe.began)
        if step.stage == self.settings.probe_tries:
            return self._ask_helpers(probe, now), None
        at = now + self._timeout_s(probe.peer) / self.settings.probe_tries
        return [self._ping(probe, now), self._set_step(probe, step.stage + 1, at)], None

    def _set_step(self, probe: Probe, stage: int, at: float) -> SetTimer:
        timer = self.timers.set(at, ProbeStep(probe.nonce, stage, at))
        probe.token = timer.token
        return timer

    def _ping(self, probe: Probe, now: float) -> Send:
        probe.pinged_at.append(now)
        nonce = probe.nonce + len(probe.pinged_at) - 1
        return Send(probe.peer, Ping(nonce, probe.peer, self.talk(probe.peer)))

    def is_loaded(self, now: float) -> bool:
        """Whether large payloads are in transfer. The replies of all peers may be queued behind
        these payloads, because links share cables."""
        return now <= self.view.loaded_until

    def _verdict_at(self, probe: Probe, now: float) -> float:
        waits = self.is_loaded(now) or self.view.is_behind_state(probe.peer, now)
        # the target may have had no open link for the reply to the first ping
        return max([probe.began, *probe.pinged_at]) + LOADED_VERDICT_S if waits else probe.ends

    def _is_missed(self, helper: PeerId, probe: Probe) -> bool:
        """Whether the missing Nack of a helper indicates a local fault. It does not if other peers
        also accuse the helper, for example after a crash of many peers."""
        if helper in probe.nacks:
            return False
        member = self.view.members[helper]
        suspicion = member.suspicion
        return not member.gone and (
            suspicion is None or tuple(suspicion.accusers) == (self.view.local,)
        )

    def _timeout_s(self, peer: PeerId) -> float:
        """Return the time from the start of a probe of ``peer`` to the requests to helpers, in
        seconds."""
        return self.awareness.scale(self._usual_s(peer))

    def _usual_s(self, peer: PeerId) -> float:
        least_s, trips = self.settings.probe_timeout_s, self._round_trips
        if peer not in trips and self.view.members[peer].linked:
            return max(least_s, REPLY_S)
        # an unreachable peer is assumed to be as slow as the slowest known link
        known = [trips[peer]] if peer in trips else trips.values()
        usual_s = [mean_s + max(least_s, 4 * deviation_s) for mean_s, deviation_s in known]
        return max(least_s, min(PROBE_TIMEOUT_MAX_S, max(usual_s, default=0.0)))

    def _trip_s(self, peer: PeerId) -> float:
        """Return the mean round trip time of the link to ``peer``, in seconds. If it is unknown,
        return the mean round trip time of the slowest link."""
        trips = self._round_trips
        known = [trips[peer]] if peer in trips else trips.values()
        return min(PROBE_TIMEOUT_MAX_S, max([mean_s for mean_s, _ in known], default=0.0))

    def _patience_s(self, peer: PeerId) -> float:
        """Return the time from the first ping to the verdict, in seconds."""
        interval_s = self.awareness.scale(self.settings.probe_interval_s)
        return max(interval_s, 1.5 * self._timeout_s(peer))

    def _observe_round_trip(self, probe: Probe, ack: Ack, now: float) -> None:
        peer, pinged_at = probe.peer, probe.pinged_at[ack.nonce - probe.nonce :]
        if not pinged_at:
            return  # no ping with this nonce was sent
        took_s = now - pinged_at[0]
        if peer in self._round_trips:  # limit the effect of a single reply
            took_s = min(took_s, 2 * self._usual_s(peer))
        mean_s, deviation_s = self._round_trips.get(peer, (took_s, took_s / 2))
        in_mean, in_deviation = TRIP_GAINS
        deviation_s += in_deviation * (abs(took_s - mean_s) - deviation_s)
        self._round_trips[peer] = mean_s + in_mean * (took_s - mean_s), deviation_s

    def _ask_in_turn(self, probe: Probe, now: float) -> list[Effect]:
        """Send requests to helpers about an unreachable peer, at most once in a probe interval. The
        replies contain rumors, and these can close further links. Without the limit, an unstable
        link, or a partition with one Byzantine peer, would cause a storm of messages."""
        at = self._helpers_asked_at.get(probe.peer, NEVER) + self.settings.probe_interval_s
        if at <= now:
            return self._ask_helpers(probe, now)
        probe.began, probe.ends = at, at + self._patience_s(probe.peer)
        return [self._set_step(probe, self.settings.probe_tries, at)]

    def _ask_helpers(self, probe: Probe, now: float) -> list[Effect]:
        self._helpers_asked_at[probe.peer] = now
        able = self.view.sample(
            self.rng,
            self.settings.indirect_probes,
            lambda m: m.peer != probe.peer and not m.gone and m.linked,
        )
        probe.helpers = tuple(m.peer for m in able)
        if not self.view.members[probe.peer].linked:
            # A reply through a helper takes the round trips of the helper and of the peer.
            interval_s = self.awareness.scale(self.settings.probe_interval_s)
            helper_s = min([self._trip_s(helper) for helper in probe.helpers], default=0.0)
            answer_s = interval_s + helper_s + self._trip_s(probe.peer)
            probe.ends = max(probe.ends, now + answer_s)
        timer = self._set_step(probe, self.settings.probe_tries + 1, max(probe.ends, now))
        return [
            *(Send(h, PingRequest(probe.nonce, probe.peer, self.talk(h))) for h in probe.helpers),
            timer,
        ]

    def on_ack(
        self, sender: PeerId, ack: Ack, now: float
    ) -> tuple[list[Effect], ProbeAnswered | None]:
        """End the probe or the relay to which this ack is the reply. An ack without a request, or
        about another peer, is ignored."""
        relay = self.relays.get(ack.nonce)
        if relay is not None and sender == relay.peer == ack.target:
            del self.relays[ack.nonce]
            forward = Send(
                relay.asker,
                Ack(relay.asked_nonce, relay.peer, ack.progress, self.talk(relay.asker)),
            )
            return [forward, *self.timers.cancel(relay.token)], ProbeAnswered(
                relay.peer, relay.began, ack.progress, True
            )
        # The nonce shows to which of the repeated pings the ack is the reply. The measurement of a
        # round trip requires this (RFC 6298, 3).
        nonce = ack.nonce - ack.nonce % self.settings.probe_tries
        late = self._late.get(nonce)
        if late is not None and sender == late.peer == ack.target:
            del self._late[nonce]
            self._observe_round_trip(late, ack, now)
        probe = self.probes.get(nonce)
        if (
            probe is None
            or ack.target != probe.peer
            or (sender != probe.peer and sender not in probe.helpers)
        ):
            return [], None
        self._end(probe)
        if sender == probe.peer:
            self._observe_round_trip(probe, ack, now)
        return [*self.timers.cancel(probe.token)], ProbeAnswered(
            probe.peer, probe.began, ack.progress, sender == probe.peer
        )

    def on_nack(self, sender: PeerId, nack: Nack) -> tuple[list[Effect], ProbeTimedOut | None]:
        """Record a Nack. If there is no link to the target, the Nack of the last helper ends the
        probe: no helper reaches the target, and the target cannot reply directly."""
        probe = self.probes.get(nack.nonce)
        if probe is None or sender not in probe.helpers:
            return [], None
        probe.nacks[sender] = None
        if len(probe.nacks) < len(probe.helpers) or self.view.members[probe.peer].linked:
            return [], None
        self._end(probe)
        return [*self.timers.cancel(probe.token)], ProbeTimedOut(probe.peer, 0, probe.began)

    def drop(self, peer: PeerId | None = None) -> list[Effect]:
        """End probes without a verdict: the probe of one peer, or all probes."""
        if peer is None:
            return [cancelled for each in tuple(self._nonces) for cancelled in self.drop(each)]
        nonce = self._nonces.get(peer)
        if nonce is None:
            return []
        probe = self.probes[nonce]
        self._end(probe)
        return [*self.timers.cancel(probe.token)]

    # --- probes for others ------------------------------------------------------------------------

    def on_request(self, asker: PeerId, request: PingRequest, now: float) -> list[Effect]:
        """Relay a probe to ``request.target``, which is not the local peer."""
        target = self.view.members.get(request.target)
        if target is None or not target.linked or len(self.relays) >= RELAYS_MAX:
            return [Send(asker, Nack(request.nonce, request.target))]
        nonce = self._nonce()
        trip_s = self._trip_s(request.target) if request.target in self._round_trips else 0.0
        at = now + trip_s + NACK_SHARE * (self._timeout_s(request.target) - trip_s)
        timer = self.timers.set(at, RelayExpired(nonce, at))
        self.relays[nonce] = Relay(asker, request.nonce, request.target, now, timer.token)
        return [Send(request.target, Ping(nonce, request.target, self.talk(request.target))), timer]

    def on_relay_expired(self, expired: RelayExpired) -> list[Effect]:
        relay = self.relays.pop(expired.nonce, None)
        return [] if relay is None else [Send(relay.asker, Nack(relay.asked_nonce, relay.peer))]

    def _nonce(self) -> int:
        nonce = self.rng.getrandbits(NONCE_BITS)
        return nonce - nonce % self.settings.probe_tries
