"""L4, L7: a peer that restores a state receives the replies that it needs, even near the end of the
run.

A request or a reply may be lost, and a requested round may never begin. A peer that has finished
leaves, but not while another peer restores its state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gossip.core import (
    REPLY_S,
    Halt,
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
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    after_event,
    on_effect,
    on_event,
    on_report,
)

LATE_S = 0.25
"""Maximum delay with which a healthy peer may do due work, in seconds."""


class RepeatedAttestationRequests(Checker):
    """L4: a peer that needs attestations repeats its request every second to each reachable peer
    that has not replied. Repeating is necessary, because a request or a reply may be lost; and it
    must not be late, because finished peers do not wait long before they exit."""

    invariant = "L4"
    _nonce = PerIncarnation[int](lambda: -1)
    # Peer -> time of the last request to it, or time since when it is reachable again.
    _since = PerIncarnation(dict[PeerId, float])

    @on_effect
    def record_request(self, send: Send, ask: StateRequest) -> None:
        if ask.what == "attestation":
            if ask.nonce != self._nonce:
                self._nonce, self._since = ask.nonce, {}
            self._since[send.peer] = self.clock_s

    @after_event
    def judge(self, event: TimerFired) -> None:
        core, now_s = self.core, self.clock_s
        recovery, poll = core.recovery, core.recovery.poll
        if core.phase != "recovering" or recovery.stage != "polling":
            return
        if not self._since or recovery.nonce != self._nonce:
            return
        if poll.paused or poll.hurried or core.overdue_s(now_s) > 0.0:
            return
        silent = poll.unanswered(core.donors())
        since = self._since = {other: self._since.get(other, now_s) for other in silent}
        for other, since_s in since.items():
            self.judged += now_s > since_s + 0.5 * REPLY_S
            if now_s > since_s + REPLY_S + LATE_S:
                raise self.violated(
                    f"has asked peer {other} for an attestation, still waits for it, but has not "
                    f"asked again for {now_s - since_s:.2f} s"
                )


class FinalRoundReplies(Checker):
    """L7: a peer that leaves, or has completed its last round, replies to each request for its
    state before a future round: this round will not take place. So no peer waits for a state that
    will never exist."""

    invariant = "L7"
    _answered = PerIncarnation(set[tuple[PeerId, int]])  # (receiver, nonce) of each reply

    @on_effect
    def record_answer(self, send: Send, answer: StateAttestation | StateOffer) -> None:
        self._answered.add((send.peer, answer.nonce))

    @after_event
    def judge(self, event: Received, ask: StateRequest) -> None:
        core, here = self.core, self.core.rounds.round_id
        had_last = core.phase == "running" and core.confirms is not None
        if ask.round_id > here and (core.phase == "draining" or had_last):
            self.demand(
                (event.sender, ask.nonce) in self._answered,
                f"has a request of peer {event.sender} for its state before round {ask.round_id}, "
                f"but does not reply that no round follows {here}",
            )


class DonorsStayReachable(Checker):
    """L4: a finished peer does not leave while another peer needs its state. Each request prolongs
    the wait by a drain timeout, up to the maximum wait for returning peers."""

    invariant = "L4"
    _urged = PerIncarnation(int)

    def make_records(self) -> None:
        # Local peer -> requesting peer -> time of its last request, by the local clock.
        self._asked: dict[PeerId, dict[PeerId, float]] = self.per_incarnation(defaultdict(dict))

    @on_event
    def record_stop(self, event: Stop) -> None:
        self._urged += 1

    @on_event
    def record_request(self, event: Received, ask: StateRequest) -> None:
        self._asked[self.peer][event.sender] = self.clock_s
        self.judged += self.core.phase == "draining"

    @on_report("recovering")
    def forget(self, report: Report) -> None:
        # A peer that begins a new recovery no longer needs replies to its earlier requests.
        for asked in self._asked.values():
            asked.pop(self.peer, None)

    @on_effect
    def judge(self, halt: Halt) -> None:
        core = self.core
        if halt.exit_code or core.stage != "completed" or self._urged > 1:
            return
        now_s, rounds = self.clock_s, core.settings.rounds
        least_s = core.stopped_at + rounds.drain_timeout_s + rounds.linger_s
        for other, probed_s in self._receivers():
            if now_s < min(probed_s + rounds.drain_timeout_s, least_s):
                raise self.violated(
                    f"leaves peer {other}, which has requested its state {now_s - probed_s:.2f} s "
                    "ago and does not have it"
                )

    def _receivers(self) -> Iterator[tuple[PeerId, float]]:
        """Yield (peer, time of its last request by the local clock) for each reachable peer that
        has requested the state and has not received all of it."""
        core = self.core
        for other, probed_s in self._asked[self.peer].items():
            host = self.swarm.hosts[other]
            taker = host.inspection if host.running else None
            if taker is None or taker.phase != "recovering" or taker.recovery.stage == "restoring":
                continue
            mine, theirs = core.rolling, taker.rolling
            # A recovering peer may already have the same state.
            alike = (
                mine is not None
                and theirs is not None
                and (mine.round_id, mine.chain) == (theirs.round_id, theirs.chain)
            )
            if not alike and not core.membership.skip_reason(other) and other not in core.completed:
                yield other, probed_s
