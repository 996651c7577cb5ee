"""Rolling rounds: collect updates, reach a quorum, aggregate, commit, or move to the next server.

Every peer is a participant of each round, and the server of a shard when its turn comes. A round
ends for a peer when it has a commit of every shard; then it applies them all. No peer waits for a
skipped one, which is dead, unreachable, finished, or silent since its connection broke
(``skip_reason``).

**A failed server.** Attempt a of a shard is served by ``order[a % len(order)]``. Each peer decides
alone when its attempt has failed: the server is skipped, makes no progress in time (the server
itself keeps that limit, too), or replies that it does not serve. With f > 0, an attempt also fails
if the server's own result is rejected. A server that was paused leaves its attempt. After a failure
the peer sends its update to the next attempt with a server that is not skipped. A peer also follows
claims of other peers that a later attempt has begun. It ignores an unexplained claim if waiting on
claims of that peer has cost too much time before (``later_turns.py``). There is no vote.

**Two results.** A server commits once a quorum has answered. The following holds if the quorum is a
majority. It is 1 with fewer than three peers or ``quorum = "available"``, and smaller with
``on_minority = "continue"`` (``quorum.py``). A peer that has moved on records no commit sent
under an earlier attempt: it forwards the commit to its present server, which re-issues it and does
not aggregate again. A peer that has a commit which others lack brings them to it: they request it
(``CommitRequest``). A peer that returns to a round is bound by its attempts (``AttemptLocks``). So
two results arise only if a server aggregates updates after their senders have moved on, and before
it receives a message of the later attempt. A server that notices its own pause leaves its attempts
(``on_pause``). A later server requests missing updates, which also reaches the earlier server. With
f > 0, a peer that follows an unexplained claim withdraws its update, unless the rule has it
already. The other cases are detected, not prevented: a pause or delay that no peer notices, two
isolated sides, and a Byzantine server that sends different commits. Then the hash chains differ.
The branch that more peers have reported wins, and of equal branches the one with the lower hash
(``LagDetector.record_branch``). If minorities may continue, ``fork_choice.py`` decides. The others
adopt the state of the winning side (docs/limits.md).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from gossip.core.events import (
    AfterSends,
    Aggregated,
    Applied,
    Arriving,
    Contributed,
    Effect,
    Payload,
    Received,
    Report,
    Send,
    StartRound,
)
from gossip.core.ledger import (
    CommitLog,
    DivergenceWatch,
    ReplicatedState,
    provenance,
    reissue,
    since_us,
)
from gossip.core.messages import (
    ROUND_MAX,
    Commit,
    CommitRequest,
    Compiling,
    Hello,
    Message,
    NotServing,
    PartialOverdue,
    PartialStatistics,
    PeerId,
    Push,
    ReceivingPayload,
    Update,
    UpdateRequest,
    is_further,
)
from gossip.core.requests import FollowRounds
from gossip.core.settings import CoreSettings
from gossip.core.timers import Timers
from gossip.core.view import RollingTopology, StageGate, View
from gossip.topologies import Roster

from .arrivals import TRANSFER_FACTOR, Transfer
from .attempt_locks import AttemptLocks
from .cross_shard import CrossShardRound
from .departures import Departures
from .fork_choice import ForkChoice
from .future_buffer import FutureBuffer
from .lag import CatchUpOverdue, LagDetector
from .later_turns import LaterTurns
from .patience import Patience
from .progress import RollingProgress
from .quorum import Quorum
from .result_checks import Objection
from .roster import Attendance, spread
from .server import Server
from .shard import PresentRound, RoundTimer, ShardRound, attempt_report, bytes_of
from .timeouts import Deadline
from .validation import ResultValidator

AFTER_PAUSE_S = 1.0
"""Time after a pause in which a peer does not serve, in seconds. Messages that arrived during the
pause are handled by then."""

BEHIND_MAX, BEHIND_S = 2, 0.5
"""Largest lag at which a newcomer reports that it is ready, in rounds and in seconds of rounds."""

SMALL_BYTES = 2**20
"""Largest size of a result that is sent once more to peers that may lack it, in bytes."""

LOADED_ROUNDS = 3
"""Number of typical rounds after a slow transfer in which timeouts stay long."""

RollingTimer: TypeAlias = RoundTimer | CatchUpOverdue
Mode: TypeAlias = Literal["off", "following", "active"]


class RollingRounds:
    """The rounds of one peer.

    ``mode``: ``off`` until ``start``, ``following`` while it applies commits without being in the
    roster, then ``active``. ``replicated`` is the state that all peers share. If this peer cannot
    follow, it requests the state of another peer (``LostTrack``).
    """

    def __init__(
        self,
        local: PeerId,
        settings: CoreSettings,
        topology: RollingTopology,
        view: View,
        timers: Timers[Any],
    ) -> None:
        self.local, self.settings, self.topology, self.view, self.timers = (
            local,
            settings,
            topology,
            view,
            timers,
        )
        self._stage_gate: StageGate | None = None
        rounds = settings.rounds
        self.replicated = ReplicatedState(settings, local)
        self.deadline = Deadline(rounds.grace_mads, rounds.grace_floor_s, rounds.round_timeout_s)
        fork_choice = ForkChoice(local, settings, self.replicated.lineage)
        self.lag_detector = LagDetector(settings, fork_choice, timers, view, self.deadline)
        self.requests = self.lag_detector.requests
        self.log = CommitLog(rounds.commit_log, rounds.commit_log_bytes)
        self.joining: set[PeerId] = set()  # ready to be in the roster
        self.departures = Departures(rounds.commit_log)
        self.future_buffer = FutureBuffer(settings.f)
        self.attendance = Attendance(
            local, view, self.replicated.lineage, self.departures, self.future_buffer
        )
        self.skip_reason = self.attendance.skip_reason
        self.present = PresentRound()
        self._quorum = Quorum(settings, self.present, self.attendance, self.joining)
        self.quorum = self._quorum.required
        self.patience = Patience(
            self._quorum, timers, self.deadline, self.lag_detector.transfer_tracker
        )
        self.server = Server(timers, self._quorum, self.patience, self.lag_detector.awaits_commit)
        self.later_turns = LaterTurns(settings.f, self.patience)
        self.cross_shard = CrossShardRound(local, settings, self.server, timers, self._advance)
        self.result_validator = ResultValidator(
            self.replicated, self.lag_detector, self.server, view, self._advance
        )
        self.progress = RollingProgress(self.replicated, self._quorum, fork_choice)
        self.mode: Mode = "off"
        self.round_id = 0
        self.shard_bytes: tuple[int, ...] = ()
        self.result_bytes: tuple[int, ...] = ()
        self._shards: list[ShardRound] = []
        self._own: Contributed | None = None
        # microseconds from the start of the round, or of its local steps, to the own update
        self._computed_us = 0
        # the last round that the trainer has applied, or will apply before the next StartRound
        self._applied = -1
        self._main_peer: PeerId = local  # the lowest peer that may serve in this round
        self._started_round = -1  # the last round that the trainer was requested to compute
        self._answered_round = -1  # the last round that this peer has sent an update for
        self._serves_from = float("-inf")  # when this peer serves again after a pause
        self._attempt_locks = AttemptLocks()
        self.divergence = DivergenceWatch(settings.f)
        self.ends_diverged = ""  # reason for which this peer ends, if its replica keeps differing
        # A commit that this server sends to the others now, and has not yet recorded itself.
        self.own_commit: tuple[ShardRound, Commit, Payload | None] | None = None

    # --- where we are -----------------------------------------------------------------------------

    @property
    def chain(self) -> bytes:
        """The hash of the chain of commits, after the last round applied here."""
        return self.replicated.lineage.head

    @property
    def roster(self) -> Roster:
        """Peers of the present round."""
        return self.replicated.roster

    @property
    def locked(self) -> tuple[PeerId, ...]:
        """Peers of the roster that are in quarantine in the present round, ascending."""
        locked = self.present.locked
        return tuple([peer for peer in self.roster.peers if peer in locked]) if locked else ()

    def has_answered(self) -> bool:
        """Whether others may have this peer's answer in the present round."""
        return (
            self.mode == "active" and self._answered_round == self.round_id and len(self.roster) > 1
        )

    def must_stay(self) -> bool:
        """Whether reachable peers, also of another branch, may count on the update of this peer in
        the present round."""
        has_sent = self.mode == "active" and self._answered_round == self.round_id
        return has_sent and any(
            peer != self.local and not self.skip_reason(peer) for peer in self.roster
        )

    def prepare(self, shard_bytes: tuple[int, ...], result_bytes: tuple[int, ...] = ()) -> None:
        """Set the bytes of each shard of an update, and of a result where they differ."""
        self.shard_bytes, self.result_bytes = shard_bytes, result_bytes

    def wait_for_stages(self, gate: StageGate) -> None:
        """Let ``gate`` decide when a round of this stage of a pipeline is over."""
        self._stage_gate = gate

    def begin_branch(self, state: bytes) -> None:
        """Bind the hash chain to the initial weights. After a checkpoint the chain continues."""
        if self.round_id == 0:
            self.replicated.lineage.begin(state)

    def start(self, now: float) -> list[Effect]:
        """Begin round ``round_id``; the trainer holds the state before it."""
        self._applied = self.round_id - 1
        return self._begin(now)

    def resume(self, now: float) -> list[Effect]:
        """Continue where ``stop`` ended; no other state was adopted."""
        own = self._own
        return [*self._begin(now), *(self.on_contributed(own, now) if own is not None else ())]

    def stop(self, now: float) -> list[Effect]:
        """Stop taking part until ``start``; still help peers that are behind."""
        effects = self.record_own_commit(now)
        effects += [
            effect
            for shard in self._shards
            for token in shard.tokens()
            for effect in self.timers.cancel(token)
        ]
        self._attempt_locks.keep(self.round_id, self.chain, self._shards)
        self.mode, self._shards = "off", []
        return effects

    def adopt(self, round_id: int, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        """Adopt another peer's state before ``round_id``.

        Raises: As ``LocalProgress.check``. Then nothing has changed.
        """
        self.replicated.adopt(round_id, chain, snapshot)
        self.log.clear()
        self.lag_detector.restart(round_id == self.round_id, self.roster)
        self.round_id, self._started_round = round_id, -1

    def come_back(self) -> None:
        """Continue from an adopted state of a peer that is in the round which begins next."""
        self.server.come_into(self.round_id)

    def snapshot(self, round_id: int) -> tuple[bytes, tuple[Any, ...]] | None:
        return self.replicated.snapshot(round_id)

    def configure_data(
        self, samples_total: int, batch: int, ahead: int = 0, extended: int = 0
    ) -> list[Effect]:
        effects = self.replicated.configure_data(samples_total, batch, ahead, extended)
        computes = self._started_round == self.round_id and self._own is None
        return [*effects, self._start_round()] if computes else effects

    # --- the trainer ------------------------------------------------------------------------------

    def on_contributed(self, event: Contributed, now: float) -> list[Effect]:
        if event.round_id != self.round_id:
            return []  # That round was committed without this update.
        began = now - event.lasted_us / 1e6 if event.lasted_us else self.lag_detector.began_at
        self._own, self._answered_round = event, self.round_id
        self._computed_us = 0 if event.compiled else since_us(began, now, event.steps)
        self.patience.transfer_tracker.contributed(now - self.lag_detector.began_at)
        effects: list[Effect] = []
        for shard in tuple(self._shards) if self.mode == "active" else ():
            if event.round_id == self.round_id:  # our own update may have ended the round
                # The server may have been skipped while this peer, just paused, could not serve.
                skipped = (
                    self.skip_reason(shard.server_of(shard.attempt))
                    if shard.commit is None and self._may_serve(now)
                    else ""
                )
                effects += (
                    self._advance(shard, f"its server is skipped: {skipped}", now)
                    if skipped
                    else self._send_update(shard, now)
                )
        return effects

    def on_applied(self, event: Applied, now: float) -> list[Effect]:
        self._applied = max(self._applied, event.round_id)
        return self.start_computing() if self.mode == "active" else []

    def start_computing(self) -> list[Effect]:
        """Start the computation of this round if the trainer holds the state before it."""
        return (
            [self._start_round()]
            if self._applied == self.round_id - 1 and self._started_round < self.round_id
            else []
        )

    def on_aggregated(self, event: Aggregated, now: float) -> list[Effect]:
        if self.mode != "active":
            return []
        if (measured := self.server.record_measurements(event)) is not None:
            return self.cross_shard.on_measured(measured, now)
        roster = self.attendance.next_roster(self.roster, self.joining, now)
        validator = self.result_validator
        accusations, audits = validator.accusations(), validator.audit_votes()
        made = self.server.finish(event, roster, accusations, audits)
        if made is None:
            return []
        # Send the commit first, as the others wait for it.
        self.own_commit = (*made, event.payload)
        return [*spread(self.local, self.view, self.roster, made[1], event.payload), AfterSends()]

    def record_own_commit(self, now: float) -> list[Effect]:
        """Record the commit that this server has sent."""
        if self.own_commit is None:
            return []
        (shard, commit, payload), self.own_commit = self.own_commit, None
        return self._record_commit(shard, commit, payload, True, now)

    # --- messages ---------------------------------------------------------------------------------

    def on_message(self, event: Received, now: float) -> list[Effect]:
        sender, message = event.sender, event.message
        assert isinstance(
            message,
            Update
            | UpdateRequest
            | Commit
            | NotServing
            | CommitRequest
            | PartialStatistics
            | PartialOverdue
            | Compiling
            | ReceivingPayload,
        )
        if message.lineage != self.settings.lineage:
            return []
        if isinstance(message, CommitRequest):
            if sender not in self.roster:
                self.view.note_state(sender, now + self.deadline.round_timeout_s())
            return self.log.catch_up(
                sender, message, self.round_id, self.replicated.lineage.before(message.first)
            )
        if event.payload is not None:
            if self.patience.transfer_tracker.came(event, now):
                self.view.forget_load()
            if self.local not in self.roster:
                # This peer only follows the rounds. If its link is slower than they are, payloads
                # always wait on it.
                self.view.note_state(self.local, now + self.deadline.round_timeout_s())
        if isinstance(message, Compiling):
            self.patience.compile_tracker.record_compiling(sender, now)
            return []
        if isinstance(message, ReceivingPayload):
            self.patience.transfer_tracker.record_progress(
                sender, message.received, message.pause_s, now
            )
            if self.patience.transfer_tracker.is_busy(sender, now):
                self._note_load(now)
            return []
        return self._on_round_message(event, message.round_id, now)

    def _on_round_message(self, event: Received, round_id: int, now: float) -> list[Effect]:
        """Handle a message that has the round of its sender. A commit is judged before its sender
        counts as present: the next roster that it names may rightly lack a peer that was silent
        before."""
        if isinstance(event.message, Commit):
            effects = self._dispatch_message(event, now)
            returns = self.future_buffer.record_round(event.sender, round_id)
            return effects + self.on_view_change(now) if returns else effects
        contributes = isinstance(event.message, Update)
        changes = self._record_round(event.sender, round_id, contributes, now)
        effects = self._dispatch_message(event, now)
        return changes + effects if changes else effects

    def _note_load(self, now: float) -> None:
        """Extend timeouts for a few rounds. Large payloads come again in the next round, all at
        once, and delay the first answers before any report about them arrives."""
        usual_s = self.deadline.typical_round_s() or self.deadline.round_timeout_s()
        self.view.note_load(now, LOADED_ROUNDS * usual_s)

    def _record_round(
        self, peer: PeerId, round_id: int, contributes: bool, now: float
    ) -> list[Effect]:
        """Record the round that ``peer`` has reported. A peer that was silent before may serve now,
        and may be the only one that can."""
        returns = self.future_buffer.record_round(peer, round_id, contributes)
        return self.on_view_change(now) if returns else []

    def _dispatch_message(self, event: Received, now: float) -> list[Effect]:
        sender, message = event.sender, event.message
        assert isinstance(
            message,
            Update | UpdateRequest | Commit | NotServing | PartialStatistics | PartialOverdue,
        )
        self.result_validator.saw(event)
        if isinstance(message, NotServing):
            return self._on_not_serving(sender, message, now)
        if message.round_id > self.round_id or not self._shards:
            return self._on_later_round(event, message, now)
        if message.round_id < self.round_id:
            if isinstance(message, Update):
                self.patience.lateness.record_late_update(sender, message, now)
            return self.log.answer_late(
                sender, message, self.round_id, self.replicated.lineage.before(message.round_id)
            )
        if message.shard >= len(self._shards):
            return []
        shard = self._shards[message.shard]
        match message:
            case Update():
                return self._on_update(sender, shard, message, event.payload, now)
            case UpdateRequest():
                return self._on_update_request(event, shard, message, now)
            case Commit():
                return self._on_commit(sender, shard, message, event, now)
            case PartialStatistics() | PartialOverdue():
                heard = self.mode == "active" and not self.lag_detector.record_branch(
                    sender, message.parent, now
                )
                return self.cross_shard.on_message(sender, message, now) if heard else []

    def on_hello(self, sender: PeerId, hello: Hello, now: float) -> list[Effect]:
        """Handle a hello: its sender is ready for the roster, or leaves."""
        changes = self._record_round(sender, hello.round_id, False, now)
        effects = self._on_hello(sender, hello, now)
        return changes + effects if changes else effects

    def _on_hello(self, sender: PeerId, hello: Hello, now: float) -> list[Effect]:
        keeps_up = (
            hello.round_id > 0 and self.round_id - hello.round_id <= self._rounds_behind_max()
        )
        if hello.stage != "ready":
            self.joining.discard(sender)
            self.departures.record_departure(sender, hello)
            # While a state is on its way, older commits would only delay it on a slow link.
            ahead = (
                self.lag_detector.behind(sender, hello.round_id, now)
                if hello.round_id > self.round_id and self.mode != "off"
                else []
            )
            return [*ahead, *self.on_view_change(now)]  # what it serves is handed on
        if (
            (stance := self.lag_detector.fork_choice.on_hello(sender, hello)) == "same"
            and sender not in self.roster
            and keeps_up
        ):
            self.departures.record_return(sender)
            self.joining.add(sender)
            # A round may be closed early to let a newcomer in.
            return self.on_view_change(now)
        if not keeps_up:
            self.joining.discard(sender)
        asks = self._request_again(sender) if keeps_up else []
        return [*asks, *self.lag_detector.on_hello(sender, hello, stance, now)]

    def _request_again(self, peer: PeerId) -> list[Effect]:
        """Request the update of ``peer`` again: it replied before that it was in no round."""
        return [
            effect
            for shard in self._shards
            if peer in shard.served.in_no_round and shard.server_of(shard.attempt) == self.local
            for effect in self.server.request_again(shard, peer)
        ]

    def _rounds_behind_max(self) -> int:
        """Return how many rounds a ready peer may be behind and still counts as one that keeps up.
        A message takes a while to get here, in which short rounds pass."""
        usual_s = self.deadline.typical_round_s()
        return max(
            BEHIND_MAX,
            min(self.settings.rounds.commit_log, int(BEHIND_S / usual_s) if usual_s else 0),
        )

    def on_arriving(self, event: Arriving, now: float) -> list[Effect]:
        """Handle a received part of a payload. Report it to the others from time to time, so that
        they do not skip this peer while it receives."""
        message, transfer_tracker = event.message, self.patience.transfer_tracker
        if (
            self.mode == "off"
            or not isinstance(message, Update | Commit)
            or message.lineage != self.settings.lineage
        ):
            return []
        transfer_tracker.grew(event, now)
        if (
            isinstance(message, Commit)
            and message.round_id == self.round_id
            and message.shard < len(self._shards)
        ):
            shard = self._shards[message.shard]
            if shard.commit_transfer is None or event.received < shard.commit_transfer.received:
                shard.commit_transfer = Transfer.begun(event.nbytes, event.received, now)
            shard.commit_transfer.grew(event.received, now)
        if not transfer_tracker.begin_report(now):
            return []
        received, pause_s = min(transfer_tracker.total, ROUND_MAX), transfer_tracker.pause_s(now)
        transfer_tracker.record_progress(self.local, received, pause_s, now)
        return self._to_roster(ReceivingPayload(self.settings.lineage, received, pause_s))

    def on_compiling(self, now: float) -> list[Effect]:
        """Report to the others that the local trainer compiles. The node polls the trainer again
        soon."""
        if self.mode == "off":
            return []
        self.patience.compile_tracker.record_compiling(self.local, now)
        return self._to_roster(Compiling(self.settings.lineage))

    def _to_roster(self, message: Compiling | ReceivingPayload) -> list[Effect]:
        return [
            Send(peer, message)
            for peer in self.roster
            if peer != self.local and not self.skip_reason(peer)
        ]

    def on_progress(self, peer: PeerId, rounds_applied: int, now: float) -> list[Effect]:
        """Handle the number of rounds that the trainer of ``peer`` has applied. If it is larger
        than the local one, this peer has missed commits."""
        known = rounds_applied > 0 and self.mode != "off"
        changes = self._record_round(peer, rounds_applied, False, now) if known else []
        return changes + self._on_progress(peer, rounds_applied, now)

    def _on_progress(self, peer: PeerId, rounds_applied: int, now: float) -> list[Effect]:
        if rounds_applied <= self.round_id or self.mode == "off":
            return []
        # A peer outside of the roster has no commits to send. Ask it only if no member is here.
        others = [
            other for other in self.roster if other != self.local and not self.skip_reason(other)
        ]
        return (
            self.lag_detector.behind(peer, rounds_applied, now)
            if peer in self.roster or not others
            else []
        )

    def _on_update(
        self, sender: PeerId, shard: ShardRound, update: Update, payload: Payload | None, now: float
    ) -> list[Effect]:
        if sender not in self.roster:
            return []
        if self.lag_detector.record_branch(sender, update.parent, now):
            return [Send(sender, self.lag_detector.not_serving(update))]
        if shard.commit is not None:
            self.patience.lateness.record_late_update(sender, update, now)
            # This server has sent its large commit to all peers. A peer that lost it requests it.
            sent_before = shard.made_here and update.attempt <= shard.commit.attempt
            if sent_before and shard.payload is not None and shard.payload.nbytes > SMALL_BYTES:
                return []
            return [reissue(sender, shard.commit, shard.payload, update.attempt)]
        is_server = self._may_serve(now) and shard.server_of(update.attempt) == self.local
        if not is_server or update.attempt < shard.attempt:
            if sender == self.local:
                return []
            return [
                *self._postpone_serving(shard, sender, update.attempt, now),
                Send(sender, self.lag_detector.not_serving(update)),
            ]
        is_later = update.attempt > shard.attempt
        effects = self._move_to(shard, update.attempt, sender, now)
        if effects is None:
            return []
        if update.attempt > shard.served.attempt:
            effects += self.server.serve(shard, update.attempt, now)
            if is_later:
                effects += self.server.pulse(shard, now) + self._send_update(shard, now)
        return effects + self.server.accept_update(shard, sender, update, payload, now)

    def _on_update_request(
        self, event: Received, shard: ShardRound, request: UpdateRequest, now: float
    ) -> list[Effect]:
        sender, attempt = event.sender, request.attempt
        if shard.commit is not None:
            return [reissue(sender, shard.commit, shard.payload, attempt)]
        if self.lag_detector.record_branch(sender, request.parent, now):
            # This peer may soon adopt the state of that branch. Then it answers the request.
            self.future_buffer.stash(self.round_id, request.round_id, event, request.shard)
            return (
                [Send(sender, self.lag_detector.not_serving(request))]
                if self.future_buffer.is_first_request(sender, request)
                else []
            )
        cannot_move = self.mode != "active" or self.cross_shard.is_combining(shard)
        if cannot_move or shard.server_of(attempt) != sender or attempt < shard.attempt:
            return []
        withdrawal = self._move_to(shard, attempt, sender, now)
        return [] if withdrawal is None else withdrawal + self._send_update(shard, now)

    def _move_to(
        self, shard: ShardRound, attempt: int, claimant: PeerId, now: float
    ) -> list[Effect] | None:
        """Move to an attempt that has begun according to ``claimant``; None: the claim is not
        followed.

        If nothing but that claim makes this peer leave its attempt, the server of that attempt is
        probably alive and would use the update. So this peer has it drop the update, by a
        ``NotServing`` from a participant to a server (``_is_withdrawal``).
        """
        if attempt == shard.attempt:
            return []
        if not self.later_turns.follow_claim(shard, claimant, attempt, now):
            return None
        server = shard.server_of(shard.attempt)
        where = (self.settings.lineage, self.round_id, shard.index, shard.attempt, self.chain)
        shard.attempt = attempt
        if shard.claims.led_here is None or self._own is None or server == self.local:
            return []
        return [Send(server, self.lag_detector.not_serving(UpdateRequest(*where)))]

    def _on_commit(
        self, sender: PeerId, shard: ShardRound, commit: Commit, event: Received, now: float
    ) -> list[Effect]:
        payload = event.payload
        shard.commit_transfer = None  # it has arrived
        if shard.commit is not None:
            if shard.commit.digest == commit.digest or commit.parent != self.chain:
                return []
            return [
                Report(
                    "fork",
                    {
                        **provenance(sender, commit),
                        "held": shard.commit.digest.hex(),
                        "heard": commit.digest.hex(),
                    },
                )
            ]
        if self.lag_detector.record_commit_branch(sender, commit, now):
            return []
        in_turn = commit.made_at <= commit.attempt and commit.server == shard.server_of(
            commit.made_at
        )
        if not in_turn or not self.replicated.is_sound(commit, payload):
            objection = Objection("it is no result of this round", event="bad_commit")
            return self.result_validator.refuse(sender, shard, commit, objection, now)
        against = self.result_validator.judge(event, shard, commit, self._own)
        if against is not None:
            return self.result_validator.refuse(sender, shard, commit, against, now)
        return self._accept_commit(event, shard, commit, now)

    def _accept_commit(
        self, event: Received, shard: ShardRound, commit: Commit, now: float
    ) -> list[Effect]:
        """Record a valid commit, unless this peer has moved past its attempt.

        The server of the present attempt records any commit, even its own of a former incarnation,
        drops an aggregation that is under way, and re-issues the commit under its own attempt.
        """
        payload = event.payload
        effects: list[Effect] = []
        if shard.server_of(shard.attempt) == self.local:
            commit = replace(commit, attempt=max(commit.attempt, shard.attempt))
            effects = spread(self.local, self.view, self.roster, commit, payload)
        elif commit.attempt < shard.attempt:
            # This peer has left that attempt, and records what its present server re-issues.
            forwards = shard.mark_forwarded(commit)
            return [Send(shard.server_of(shard.attempt), commit, payload)] if forwards else []
        elif commit.made_at < shard.attempt:
            effects = self._forward_commit(event.sender, shard, commit, payload)
        return effects + self._record_commit(shard, commit, payload, made=False, now=now)

    def _forward_commit(
        self, sender: PeerId, shard: ShardRound, commit: Commit, payload: Payload | None
    ) -> list[Effect]:
        """Forward a commit of an earlier attempt to the present server. That server has the update
        of this peer. If it does not know the commit, it makes a second result."""
        server = shard.server_of(shard.attempt)
        if sender == server or self.lag_detector.is_ahead(server):
            return []
        return [Send(server, commit, payload)] if shard.mark_forwarded(commit) else []

    def on_former_commit(self, event: Received, now: float) -> list[Effect]:
        """Handle a commit from a former incarnation of its sender. It may be the only reachable
        copy of a result that others have recorded. A server without it would make a second
        result."""
        commit, payload = event.message, event.payload
        assert isinstance(commit, Commit)
        if commit.lineage != self.settings.lineage or commit.shard >= len(self.shard_bytes):
            return []
        if commit.round_id != self.round_id or not self._shards:
            first = self._first_round_to_store()
            self.future_buffer.stash_former_commit(first, commit.round_id, event, commit.shard)
            return []
        shard = self._shards[commit.shard]
        if (
            shard.commit is not None
            or commit.parent != self.chain
            or commit.made_at > commit.attempt
            or commit.server != shard.server_of(commit.made_at)
            or not self.replicated.is_sound(commit, payload)
            # Drop it without ``refuse``, which would count against the present incarnation.
            or self.result_validator.judge(event, shard, commit, self._own) is not None
        ):
            return []
        return self._accept_commit(event, shard, commit, now)

    def _on_not_serving(self, sender: PeerId, notice: NotServing, now: float) -> list[Effect]:
        if notice.round_id > self.round_id:
            return self.lag_detector.not_kept(sender, notice, now) if self.mode != "off" else []
        if (
            self.mode != "active"
            or notice.asked_round != self.round_id
            or notice.shard >= len(self._shards)
        ):
            return []
        elsewhere = notice.round_id == self.round_id and self.lag_detector.record_branch(
            sender, notice.chain, now
        )
        shard = self._shards[notice.shard]
        if notice.attempt == shard.served.attempt and notice.round_id == 0:  # it is in no round
            shard.served.in_no_round.add(sender)
        if self._is_withdrawal(shard, notice):
            shard.withdraw_update(sender, notice.attempt)
        refused = (
            shard.commit is None
            and notice.attempt == shard.attempt
            and shard.server_of(shard.attempt) == sender
        )
        if refused:
            shard.declined_attempt = shard.attempt
        # In the first pass through the order, move on at once. Later, wait for the timeout:
        # otherwise peers would move a shard around as fast as messages travel.
        if refused and shard.attempt < len(shard.order):
            return self._advance(
                shard,
                f"{sender} {'is on another branch' if elsewhere else 'does not serve'}",
                now,
            )
        return []

    def _is_withdrawal(self, shard: ShardRound, notice: NotServing) -> bool:
        """Whether ``notice`` withdraws an update: its sender is in this round and on this branch,
        and this peer serves the attempt. With f = 0 updates stay valid: no claim is false."""
        here = (notice.round_id, notice.chain) == (self.round_id, self.chain)
        to_us = shard.server_of(notice.attempt) == self.local
        return bool(self.settings.f) and here and to_us

    # --- the view changes, time passes ------------------------------------------------------------

    def on_view_change(self, now: float) -> list[Effect]:
        """Move shards on from skipped servers, and stop waiting for skipped participants."""
        effects: list[Effect] = []
        round_id = self.round_id
        for shard in tuple(self._shards):
            if self.mode != "active" or self.round_id != round_id or shard.commit is not None:
                continue
            server = shard.server_of(shard.attempt)
            if server != self.local and (reason := self.skip_reason(server)):
                effects += self._advance(shard, f"{server} is skipped: {reason}", now)
            elif server == self.local and not self._may_serve(now):
                effects += self._advance(shard, f"{server} was paused", now)
            else:
                effects += self.server.request_from_newcomers(shard) if server == self.local else []
                effects += self.server.maybe_close(shard, now)
        return effects

    def on_pause(self, paused_s: float, now: float) -> list[Effect]:
        """Move every shard that this peer serves to the next attempt, and serve none for
        ``AFTER_PAUSE_S``: the others may have moved on during the pause."""
        if len(self.roster) == 1:
            return []
        self._serves_from = now + AFTER_PAUSE_S
        effects: list[Effect] = []
        for shard in tuple(self._shards):
            is_server = shard.server_of(shard.attempt) == self.local
            if self.mode == "active" and is_server and shard.commit is None:
                effects += self._advance(
                    shard, f"{self.local} was paused for {paused_s:.1f} s", now
                )
        return effects

    def on_timer(self, timer: RollingTimer, now: float) -> list[Effect]:
        if timer.round_id != self.round_id:
            return []
        if isinstance(timer, CatchUpOverdue):
            return self.lag_detector.still_behind(timer, now)
        if self.mode != "active" or (shard := self._shards[timer.shard]).commit is not None:
            return []
        return self._on_shard_timer(timer, shard, now)

    def _on_shard_timer(self, timer: RoundTimer, shard: ShardRound, now: float) -> list[Effect]:
        served = shard.served
        match timer.what:
            case "give_up":
                shard.give_up = None
                if timer.attempt != shard.attempt:
                    return []
                if more := self.patience.more_time(shard, now):
                    return more
                shard.timeouts += 1
                return self.result_validator.on_server_timeout(shard, now)
            case "grace":
                served.grace = None
                return (
                    self.server.maybe_close(shard, now) if timer.attempt == served.attempt else []
                )
            case "request":
                return self.server.request_missing(shard, timer.attempt)
            case "pulse":
                return self.server.pulse(shard, now)
            case "measurements_overdue":
                return self.cross_shard.lacks(shard, now)
            case "serve_postponed":
                return self._serve_postponed(shard, now)

    # --- the participant --------------------------------------------------------------------------

    def _begin(self, now: float) -> list[Effect]:
        round_id, roster, chain = self.round_id, self.replicated.roster, self.progress.lineage.head
        self.mode = "active" if self.local in roster.peers else "following"
        if self.mode == "following":
            self.requests.add(FollowRounds())
        able = self.replicated.serving_roster()
        self._main_peer = min(able.peers)
        plan = self.topology(able, round_id, self.settings.seed, shards=len(self.shard_bytes))
        # At most so many transfers with one peer: its updates for the shards that one peer serves,
        # and its results.
        serving = Counter([order[0] for order in plan.servers])
        self.patience.transfer_tracker.begin_round(
            max(self.shard_bytes, default=0),
            TRANSFER_FACTOR * self.deadline.cap_s,
            2 * max(serving.values(), default=0),
        )
        self._shards = [ShardRound(index, order) for index, order in enumerate(plan.servers)]
        self._own = None
        self.lag_detector.start(self._shards, now, self.mode == "following")
        common = (round_id, roster, self.replicated.begin(), chain)
        self.server.begin(*common, self.log, len(self._shards))
        self._attempt_locks.recall(round_id, chain, self._shards)
        self.cross_shard.begin(self._shards)
        effects: list[Effect] = []
        if self.mode == "active":
            for shard in self._shards:
                claims = shard.claims
                claims.came_at = now
                first = self._attempt_locks.first(round_id, chain, shard.index)
                shard.attempt = self._next_attempt(shard, first, now)
                if shard.attempt > first:
                    skipped = shard.server_of(first)
                    reason = "it was paused" if skipped == self.local else self.skip_reason(skipped)
                    effects.append(
                        attempt_report(round_id, shard, f"{skipped} is skipped: {reason}")
                    )
                effects += self.server.pulse(shard, now)
            effects += self.start_computing()
        if self._stage_gate is not None and self.is_committed:
            # This round was committed before a recovery, and has waited for other stages.
            return effects + self._notify_gate(self._stage_gate, now)
        # Each of these messages may end the round, and begin the next.
        former = self.future_buffer.former_commits
        for event in self.future_buffer.pop_former_commits(round_id) if former else ():
            effects += self.on_former_commit(event, now)
        for event in self.future_buffer.pop_round(round_id):
            effects += self.on_message(event, now)
        return effects

    def _start_round(self) -> StartRound:
        self._started_round = self.round_id
        return StartRound(
            self.round_id,
            self.replicated.slice_of(self.local),
            main=self._main_peer,
            collectives=self.replicated.collectives,
            deadline_us=self.replicated.deadline_us,
            began_at=self.lag_detector.began_at,
            compares=self.divergence.compares_next,
            roster=self.replicated.roster.peers,
            left=tuple(self.departures.done),
        )

    def _send_update(self, shard: ShardRound, now: float) -> list[Effect]:
        """Send the update of this peer to the server of its attempt, and start that server's
        timeout."""
        own = self._own
        effects = self.cross_shard.send_measurements() if shard.index == 0 else []
        if own is None or shard.commit is not None:
            return effects
        payload = own.payloads[shard.index] if own.samples else None
        where = (self.settings.lineage, self.round_id, shard.index, shard.attempt, self.chain)
        first = shard.index == 0
        update = Update(
            *where,
            own.samples,
            own.loss,
            own.rates if first else (),
            self._computed_us,
            own.collective if first else b"",
            own.skipped and first,
            own.micro_batches,
            own.pass_us,
            own.replica if first else b"",
            own.kind,
        )
        if self.cross_shard.is_timed(shard):
            effects += self.patience.start_timeout(shard, now, bool(own.collective))
        if (server := shard.server_of(shard.attempt)) == self.local:
            return effects + self._on_update(self.local, shard, update, payload, now)
        effects.append(Send(server, update, payload))
        if payload is not None and self.patience.transfer_tracker.may_be_slow:
            self._note_load(now)
        return effects

    def _advance(self, shard: ShardRound, reason: str, now: float) -> list[Effect]:
        """Give up the present attempt and send the local update to a later one. It is that of the
        latest deferred claim that may be followed, else the next one with a server that is not
        skipped."""
        self.later_turns.leave(shard, now)
        granted = self.later_turns.grant_claim(shard, self._may_serve(now), now)
        following = self._next_attempt(shard, shard.attempt + 1, now)
        shard.attempt = following if granted is None else granted
        effects: list[Effect] = [
            attempt_report(self.round_id, shard, reason),
            *self.server.pulse(shard, now),
        ]
        if shard.server_of(shard.attempt) == self.local and (shard.served.attempt < shard.attempt):
            effects += self.server.serve(shard, shard.attempt, now)
        return effects + self._send_update(shard, now)

    def _next_attempt(self, shard: ShardRound, first: int, now: float) -> int:
        """Return the first attempt from ``first`` on with a server that is not skipped. If all
        servers are skipped, return ``first``."""
        order = shard.order
        for attempt in range(first, first + len(order)):
            server = order[attempt % len(order)]
            if self._may_serve(now) if server == self.local else not self.skip_reason(server):
                return attempt
        return first

    def _may_serve(self, now: float) -> bool:
        """Whether this peer may serve. A swarm of one has no other server."""
        return self.mode == "active" and (now >= self._serves_from or len(self.roster) == 1)

    def _postpone_serving(
        self, shard: ShardRound, sender: PeerId, attempt: int, now: float
    ) -> list[Effect]:
        """Store an attempt that this peer rejects only because it was paused, to request its
        updates later. Otherwise a round in which all peers were paused would wait for the
        timeout."""
        if (
            self.mode != "active"
            or shard.server_of(attempt) != self.local
            or attempt < max(shard.attempt, shard.postponed_attempt + 1)
        ):
            return []
        if attempt > shard.attempt and self.later_turns.defer_claim(shard, sender, attempt, now):
            return []
        shard.postponed_attempt, shard.postponed_from = attempt, sender
        if shard.serve_postponed is not None:
            return []
        timer = self.timers.set(
            self._serves_from, RoundTimer("serve_postponed", self.round_id, shard.index, attempt)
        )
        shard.serve_postponed = timer.token
        return [timer]

    def _serve_postponed(self, shard: ShardRound, now: float) -> list[Effect]:
        """Serve the last attempt that this peer has rejected after its pause."""
        shard.serve_postponed = None
        attempt, shard.postponed_attempt = shard.postponed_attempt, -1
        if attempt < shard.attempt:
            return []
        if not self._may_serve(now):  # It was paused once more.
            return self._postpone_serving(shard, shard.postponed_from, attempt, now)
        effects = self._move_to(shard, attempt, shard.postponed_from, now)
        if effects is None:
            return []
        if shard.served.attempt < attempt:
            effects += self.server.serve(shard, attempt, now)
            if attempt == 0:  # ``serve`` schedules the request only for later attempts.
                effects += self.server.request_missing(shard, attempt)
        return [*effects, *self.server.pulse(shard, now), *self._send_update(shard, now)]

    # --- the end of a round -----------------------------------------------------------------------

    def _record_commit(
        self, shard: ShardRound, commit: Commit, payload: Payload | None, made: bool, now: float
    ) -> list[Effect]:
        effects: list[Effect] = [
            effect for token in shard.tokens() for effect in self.timers.cancel(token)
        ]
        if shard.claims.led_here is not None or self.later_turns.credit.by_peer:
            self.later_turns.end(shard, commit.server, now)
        shard.record_commit(commit, payload, made)
        if all(each.commit is not None for each in self._shards):
            gate = self._stage_gate
            return effects + (self._finish(now) if gate is None else self._notify_gate(gate, now))
        return effects + self.cross_shard.on_shard_committed(shard, self._own is not None, now)

    @property
    def is_committed(self) -> bool:
        """Whether every shard of this round is committed here. It is over then, unless other stages
        of a pipeline are waited for."""
        return bool(self._shards) and all(shard.commit is not None for shard in self._shards)

    def committed_roster(self) -> tuple[PeerId, ...]:
        """Return the roster of the next round if this one is committed, else of this one."""
        first = self._shards[0].commit if self._shards else None
        return first.roster if first is not None and self.is_committed else self.roster.peers

    def committed_pass_us(self) -> tuple[int, ...]:
        """Return the time that counts for a micro-batch of each peer of ``committed_roster``, in
        microseconds."""
        held = [shard.commit for shard in self._shards if shard.commit is not None]
        return self.replicated.pass_us(self.committed_roster(), held if self.is_committed else ())

    def _notify_gate(self, gate: StageGate, now: float) -> list[Effect]:
        """Report the committed round to the other stages, and finish it if none is waited for."""
        effects = gate.on_round_committed(
            self.round_id, self.committed_roster(), self.committed_pass_us(), now
        )
        return effects + self.pass_gate(now)

    def pass_gate(self, now: float) -> list[Effect]:
        """Finish the round if it is committed here and no other stage is waited for."""
        gate = self._stage_gate
        is_over = self.is_committed and (gate is None or gate.is_open(self.round_id))
        return self._finish(now) if is_over else []

    def resend_commits(self, peer: PeerId, round_id: int) -> list[Effect]:
        """Send all commits of ``round_id`` again to a peer that is still in that round."""
        if round_id < self.round_id:
            over = self.log.get(round_id) or ()
            return [reissue(peer, commit, payload, commit.attempt) for commit, payload in over]
        if round_id > self.round_id or not self.is_committed:
            return []
        held = [(s.commit, s.payload, s.attempt) for s in self._shards if s.commit is not None]
        return [reissue(peer, commit, payload, attempt) for commit, payload, attempt in held]

    def _finish(self, now: float) -> list[Effect]:
        """End the round: every shard is committed. The commit of shard 0 names the next roster."""
        held = tuple(
            [(shard.commit, shard.payload) for shard in self._shards if shard.commit is not None]
        )
        self.log.append(self.round_id, held)
        self._attempt_locks.keep_finished(self.round_id, held[0][0].parent, self._shards)
        expected = self._quorum.expected()  # read before ``append``, which begins the next round
        coming, locked = held[0][0].roster, self.present.locked
        alive = (
            len(expected)
            if coming == self.present.roster.peers and not locked
            else sum([peer == self.local or not self.skip_reason(peer) for peer in coming])
        )
        effects = self.replicated.append(held, [shard.made_here for shard in self._shards], alive)
        # A collective operation is not measured: its time includes the script before it.
        kind = held[0][0].kind
        if self.replicated.was_step or (kind and is_further(kind)):
            self.deadline.observe_round(now - self.lag_detector.began_at)
        roster = self.replicated.roster.peers  # of the next round
        self.patience.lateness.committed(roster, expected, self.replicated.in_all)
        contributors = list(self.replicated.contributors)
        self.lag_detector.fork_choice.committed(contributors)
        self.joining.difference_update(roster)
        if self._own is not None and self._applied == self.round_id - 1:
            # The trainer receives the commits before the next StartRound.
            self._applied = self.round_id
        self.round_id += 1
        self.lag_detector.begin()
        # After an adopted state a round may come again. Its replicas are not judged twice.
        watch, commit = self.divergence, held[0][0]
        diverged = commit.diverged if commit.round_id > watch.round_id else ()
        if watch.is_active or commit.replica or contributors != watch.contributors:
            step = self.round_id - self.replicated.collectives
            watch.observe(commit, contributors, step)
        if diverged:
            effects += self._check_replicas(commit, len(expected))
        return effects + self._begin(now)

    def _check_replicas(self, commit: Commit, of: int) -> list[Effect]:
        """Lose track if this peer's replica differs from that of most, so that it recovers. Set
        ``ends_diverged`` if this peer, or more than f peers, keep differing."""
        differ, struck = commit.diverged, self.divergence.struck
        sent = b"" if self._own is None else self._own.replica
        is_own = self.local in differ and sent not in (b"", commit.replica)
        report = Report(
            "replicas_differ", {"round": commit.round_id, "peers": list(differ), "of": of}
        )
        on_divergence = self.settings.rounds.on_divergence
        if on_divergence == "warn":
            return [report]
        if on_divergence == "stop" and (self.local in struck or len(struck) > self.settings.f):
            who = ", ".join(map(str, sorted(struck)))
            self.ends_diverged = (
                f"before round {commit.round_id} the replica of peer {who} differs from that of "
                "most, though it was replaced and its peer has missed no round since"
            )
        if self.ends_diverged or is_own:
            donors = [each.peer for each in commit.contributors if each.peer not in differ]
            donor = commit.server if commit.server in donors else min(donors, default=self.local)
            reason = f"its replica differs from that of most before round {commit.round_id}"
            self.lag_detector.lose_track(donor, reason)
        return [report]

    # --- others are elsewhere ---------------------------------------------------------------------

    def _on_later_round(
        self,
        event: Received,
        message: Update | UpdateRequest | Commit | PartialStatistics | PartialOverdue,
        now: float,
    ) -> list[Effect]:
        """Keep a message of a later round. The commits between may be on their way. If not, ask for
        them."""
        if not self.settings.may_be(event.sender) or message.shard >= len(self.shard_bytes):
            return []
        if self.mode == "off" and message.round_id > 0 and isinstance(message, Update):
            # It would be outdated when this peer is back.
            return [Send(event.sender, self.lag_detector.not_serving(message))]
        first = self._first_round_to_store()
        kept = self.future_buffer.stash(first, message.round_id, event, message.shard)
        if self.mode == "off" and isinstance(message, UpdateRequest) and not kept:
            # The sender asks again when this peer is back.
            return [Send(event.sender, self.lag_detector.in_no_round(message))]
        if isinstance(message, Commit):
            self.lag_detector.on_later_commit(message.round_id)
        is_not_ahead = message.round_id <= self.round_id or self.mode == "off"
        return [] if is_not_ahead else self.lag_detector.behind(event.sender, message.round_id, now)

    def _first_round_to_store(self) -> int:
        """Return the earliest round of stored messages. While this peer takes no part, it is the
        round of the others."""
        if self.mode == "off":
            return self.future_buffer.next_round(self.round_id)
        return self.round_id

    def on_disconnect(self, peer: PeerId) -> None:
        """Handle the broken link to ``peer``."""
        self.future_buffer.on_disconnect(peer)
        self.lag_detector.on_disconnect(peer)
        for shard in self._shards:
            shard.served.asked.discard(peer)  # The request may be lost with the link.

    def payload_bytes(self, message: Update | Commit | Push) -> int:
        """Return the length that the payload of ``message`` must have by our own layout, in bytes;
        -1 when there is no such shard."""
        if isinstance(message, Push):
            return -1
        of_results = isinstance(message, Commit) and self.result_bytes
        return bytes_of(message, of_results or self.shard_bytes)

    def compared_with(self, message: Message) -> tuple[Payload, ...] | None:
        """Return what the payload of a message is compared with before it comes: the own update.
        None: nothing."""
        return (
            self.result_validator.compared_with(message, self.round_id, self._own)
            if self.mode == "active"
            else None
        )
