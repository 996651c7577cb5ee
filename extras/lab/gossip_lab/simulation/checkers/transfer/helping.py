"""L4, L7: what those who take over a state can count on of those who have it,
however near the end is.

A question or an answer may be lost; the round that is asked about may never come; and who has
finished leaves, but not from one that is at it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gossip.core import (
    REMIND_S,
    Effect,
    Event,
    Halt,
    Inspection,
    PeerId,
    Received,
    Report,
    Send,
    StateAttestation,
    StateOffer,
    StateRequest,
    Stop,
    TimerFired,
)
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.world import AnySwarm

LATE_S = 0.25
"""By which a peer that is well may do what it is to do at a time."""


class RemindsTheSilent(Checker):
    """L4: whoever was asked to vouch, and neither answers nor is out of reach, is asked again every
    second, for as long as its word is waited for: a question or an answer may be lost, and those
    who have finished do not wait for a third."""

    invariant = "L4"
    effects = (StateRequest,)
    afters = (TimerFired,)

    def make_records(self) -> None:
        self._nonce: dict[PeerId, int] = {}
        # when whom was asked last, or is seen to be within reach again
        self._since = self.per_life(dict[PeerId, float])

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        super().on_start(swarm, peer)
        self._nonce[peer] = -1

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if (
            isinstance(effect, Send)
            and isinstance(effect.message, StateRequest)
            and effect.message.what == "attestation"
        ):
            if effect.message.nonce != self._nonce[peer]:
                self._nonce[peer], self._since[peer] = effect.message.nonce, {}
            self._since[peer][effect.peer] = _clock_s(swarm, peer)

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        core = swarm.inspections.get(peer)
        if (
            not self._since[peer]
            or core is None
            or core.phase != "recovering"
            or core.recovery.stage != "polling"
        ):
            return
        poll, now_s = core.recovery.poll, _clock_s(swarm, peer)
        if (
            core.recovery.nonce != self._nonce[peer]
            or poll.paused
            or poll.hurried
            or core.overdue_s(now_s) > 0.0
        ):
            return
        silent = poll.unanswered(core.donors())
        since = self._since[peer] = {other: self._since[peer].get(other, now_s) for other in silent}
        for other, since_s in since.items():
            text = (
                f"has asked peer {other} to vouch for a state, waits for its word, and has not "
                "asked it again for"
            )
            self.judged += now_s > since_s + 0.5 * REMIND_S
            if now_s > since_s + REMIND_S + LATE_S:
                raise self.violated(swarm, peer, f"{text} {now_s - since_s:.2f} s")


class SaysThatNoRoundComes(Checker):
    """L7: who has had its last round, or leaves, tells everybody who asks for its state before a
    round to come that there will be none: nobody waits for that in vain."""

    invariant = "L7"
    events = (StateRequest,)
    effects = (StateAttestation, StateOffer)
    afters = (StateRequest,)

    def make_records(self) -> None:
        self._told = self.per_life(set[tuple[PeerId, int]])  # whom, under which nonce

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Send) and isinstance(effect.message, StateAttestation | StateOffer):
            self._told[peer].add((effect.peer, effect.message.nonce))

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        core = swarm.inspections.get(peer)
        if core is None or not isinstance(event, Received):
            return
        if core.phase != "draining" and (core.phase != "running" or core.confirms is None):
            return
        ask = event.message
        if isinstance(ask, StateRequest) and ask.round_id > core.rounds.round_id:
            text = (
                f"is asked by peer {event.sender} for its state before round {ask.round_id}, and "
                "does not say that"
            )
            told = (event.sender, ask.nonce) in self._told[peer]
            self.demand(
                told, swarm, peer, f"{text} no round comes after {core.rounds.round_id} here"
            )


class StaysForTakers(Checker):
    """L4: who has finished leaves nobody who is about to take its state: each question gives that
    one the time of a drain anew, though no more than who is expected back has in all."""

    invariant = "L4"
    events = (StateRequest, Stop)
    effects = (Halt, Report)

    def make_records(self) -> None:
        # by whom, and when last, by the own clock
        self._asked = self.per_life(dict[PeerId, float])
        self._urged: dict[PeerId, int] = {}

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        super().on_start(swarm, peer)
        self._urged[peer] = 0

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, Stop):
            self._urged[peer] += 1
        elif isinstance(event, Received) and isinstance(event.message, StateRequest):
            self._asked[peer][event.sender] = _clock_s(swarm, peer)
            core = swarm.inspections.get(peer)
            self.judged += core is not None and core.phase == "draining"

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Report) and effect.event == "recovering":
            # what it has asked for before, it has, or has given up
            for asked in self._asked.values():
                asked.pop(peer, None)
        core = swarm.inspections.get(peer)
        if (
            not isinstance(effect, Halt)
            or effect.exit_code
            or core is None
            or core.stage != "completed"
        ):
            return
        if self._urged[peer] > 1:
            return
        now_s, rounds = _clock_s(swarm, peer), core.settings.rounds
        least_s = core.stopped_at + rounds.drain_timeout_s + rounds.linger_s
        for other, asked_s in self._takers(swarm, peer, core):
            until_s = min(asked_s + rounds.drain_timeout_s, least_s)
            if now_s < until_s:
                text = (
                    f"leaves peer {other}, which has asked for its state {now_s - asked_s:.2f} s "
                    "ago and does not have it"
                )
                raise self.violated(swarm, peer, text)

    def _takers(
        self, swarm: AnySwarm, peer: PeerId, core: Inspection
    ) -> Iterator[tuple[PeerId, float]]:
        """Yield the peers that have requested the state, are within reach and have not received all
        of it, each with the time of its last request by the own clock."""
        for other, asked_s in self._asked[peer].items():
            host = swarm.hosts[other]
            taker = host.inspection if host.running else None
            if taker is None or taker.phase != "recovering" or taker.recovery.stage == "restoring":
                continue
            mine, theirs = core.rolling, taker.rolling
            # A peer that was about to restore another's state may already hold what all hold.
            alike = (
                mine is not None
                and theirs is not None
                and (mine.round_id, mine.chain) == (theirs.round_id, theirs.chain)
            )
            if not alike and not core.membership.skip_reason(other) and other not in core.completed:
                yield other, asked_s


def _clock_s(swarm: AnySwarm, peer: PeerId) -> float:
    return swarm.hosts[peer].machine.clock_s(swarm.now_ns)


__all__ = ["RemindsTheSilent", "SaysThatNoRoundComes", "StaysForTakers"]
