"""Rolling rounds: collect, reach quorum, aggregate, commit or hand on.

Every peer is a participant of each round, and the server of a shard when its turn comes. A round
ends for a peer when it holds a commit for every shard; then it applies them all and goes on.
Nothing here waits for a peer that is skipped.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from gossip.core.events import (
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
    Token,
)
from gossip.core.ledger import (
    CommitLog,
    DivergenceWatch,
    Held,
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
from gossip.core.settings import CoreSettings
from gossip.core.timers import Timers
from gossip.core.view import RollingTopology, StageGate, View
from gossip.topologies import Roster

from .arrivals import TRANSFER_FACTOR, Transfer
from .attempt_locks import AttemptLocks
from .claims import Objection
from .cross_shard import CrossShardRound
from .departures import Departures
from .fork_choice import ForkChoice
from .future_buffer import FutureBuffer
from .lag import CatchUpOverdue, LagDetector
from .later_turns import LaterTurns
from .progress import RollingProgress
from .roster import Attendance, spread
from .server import RoundTimer, Server
from .shard import ShardRound, attempt_report, bytes_of
from .timeouts import Deadline
from .validation import ResultValidator

AFTER_STANDING_STILL_S = 1.0
"""How long a peer that was stopped does not serve: what it was sent before is drained by then, and
was meant for another time."""

BEHIND_MAX, BEHIND_S = 2, 0.5
"""How many rounds, or seconds of rounds, a newcomer may be behind when it says that it is ready."""

SMALL_BYTES = 2**20
"""Results up to this size are sent once more to whoever may lack them."""

LOADED_ROUNDS = 3
"""For how many usual rounds payloads that take time are remembered."""

RollingTimer: TypeAlias = RoundTimer | CatchUpOverdue
Mode: TypeAlias = Literal["off", "following", "active"]


class RollingRounds:
    """The rounds of one peer.

    ``mode``: ``off`` until ``start``, ``following`` while it applies commits without being in the
    roster, then ``active``. ``replicated`` is what it has in common with the others;
    ``lag.lost_track`` says when it needs their state instead.
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
        self.log = CommitLog(rounds.commit_log, rounds.commit_log_bytes)
        self.joining: set[PeerId] = set()  # ready to be in the roster
        self.departures = Departures(rounds.commit_log)
        self.future_buffer = FutureBuffer(settings.f)
        self.attendance = Attendance(
            local, view, self.replicated.lineage, self.departures, self.future_buffer
        )
        self.skip_reason = self.attendance.skip_reason
        self.server = Server(
            local,
            settings,
            timers,
            self.deadline,
            self.skip_reason,
            self.joining,
            self.departures,
            view,
            self.lag_detector.transfer_tracker,
            self.lag_detector.awaits_commit,
        )
        self.later_turns = LaterTurns(settings.f, self.server)
        self.cross_shard = CrossShardRound(local, settings, self.server, timers, self._advance)
        self.result_validator = ResultValidator(
            self.replicated, self.lag_detector, self.server, view, self._advance
        )
        self.progress = RollingProgress(self.replicated, self.server, fork_choice)
        self.mode: Mode = "off"
        self.round_id = 0
        self.shard_bytes: tuple[int, ...] = ()
        self.result_bytes: tuple[int, ...] = ()
        self._shards: list[ShardRound] = []
        self._own: Contributed | None = None
        self._took_us = 0  # from the begin of the round, or of its local steps
        self._applied = -1  # the last round that the trainer has applied
        self._main: PeerId = local  # in this round, of all peers
        # the round that the trainer works on; that others have our answer in
        self._go_round = self._said = -1
        self._serves_from = float("-inf")
        self._attempt_locks = AttemptLocks()
        self.divergence = DivergenceWatch(settings.f)
        self.ends_diverged = ""  # why no state of others helps this peer
        # spread, and not yet held here
        self.made: tuple[ShardRound, Commit, Payload | None, Token] | None = None

    # --- where we are -----------------------------------------------------------------------------

    @property
    def chain(self) -> bytes:
        """H of the last round applied here."""
        return self.replicated.lineage.head

    @property
    def roster(self) -> Roster:
        """Peers of the present round."""
        return self.replicated.roster

    @property
    def locked(self) -> tuple[PeerId, ...]:
        """Peers of the roster that are in quarantine in the present round, ascending."""
        locked = self.server.locked
        return tuple([peer for peer in self.roster.peers if peer in locked]) if locked else ()

    def quorum(self) -> int:
        """Answers without which a round is not closed."""
        return self.server.quorum()

    def has_answered(self) -> bool:
        """Whether others may have this peer's answer in the present round."""
        return self.mode == "active" and self._said == self.round_id and len(self.roster) > 1

    def must_stay(self) -> bool:
        """Whether others that are within reach may count on what this peer has said in
        the present round."""
        # from another state of that round, it may be
        said = self.mode == "active" and self._said == self.round_id
        return said and any(
            peer != self.local and not self.skip_reason(peer) for peer in self.roster
        )

    def prepare(self, shard_bytes: tuple[int, ...], result_bytes: tuple[int, ...] = ()) -> None:
        """The trainer has built its model: bytes of each shard of an update, and of a result, where
        that is another number."""
        self.shard_bytes, self.result_bytes = shard_bytes, result_bytes

    def wait_for_stages(self, gate: StageGate) -> None:
        """These rounds are of one stage of a pipeline: none is over before ``gate`` says so."""
        self._stage_gate = gate

    def begin_branch(self, state: bytes) -> None:
        """Binds H to the weights of a start. Behind a checkpoint H goes on."""
        if self.round_id == 0:
            self.replicated.lineage.begin(state)

    def start(self, now: float) -> list[Effect]:
        """Round ``round_id`` begins here: the trainer holds the state before it."""
        self._applied = self.round_id - 1
        return self._begin(now)

    def resume(self, now: float) -> list[Effect]:
        """Goes on where ``stop`` was called: no other state was taken over."""
        own = self._own
        return [*self._begin(now), *(self.on_contributed(own, now) if own is not None else ())]

    def stop(self, now: float) -> list[Effect]:
        """Takes part no more until ``start``; goes on helping those behind."""
        effects = self.hold_made(now)
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
        """Takes over a peer's state before ``round_id``. Raises as ``LocalProgress.check`` does,
        nothing changed."""
        self.replicated.adopt(round_id, chain, snapshot)
        self.log.clear()
        self.lag_detector.restart(round_id == self.round_id, self.roster)
        self.round_id, self._go_round = round_id, -1

    def come_back(self) -> None:
        """Go on from an adopted state of a peer that is in the round which begins next."""
        self.server.come_into(self.round_id)

    def snapshot(self, round_id: int) -> tuple[bytes, tuple[Any, ...]] | None:
        return self.replicated.snapshot(round_id)

    def configure_data(
        self, samples_total: int, batch: int, ahead: int = 0, extended: int = 0
    ) -> list[Effect]:
        told = self.replicated.configure_data(samples_total, batch, ahead, extended)
        return (
            [*told, self._go()] if self._go_round == self.round_id and self._own is None else told
        )

    # --- the trainer ------------------------------------------------------------------------------

    def on_contributed(self, event: Contributed, now: float) -> list[Effect]:
        if event.round_id != self.round_id:
            return []  # committed without us meanwhile: the trainer is told by Apply
        began = now - event.lasted_us / 1e6 if event.lasted_us else self.lag_detector.began_at
        self._own, self._said = event, self.round_id
        self._took_us = 0 if event.compiled else since_us(began, now, event.steps)
        self.server.transfer_tracker.contributed(now - self.lag_detector.began_at)
        effects: list[Effect] = []
        for shard in tuple(self._shards) if self.mode == "active" else ():
            if event.round_id == self.round_id:  # our own update may have ended the round
                # One that stood still may serve again by now, when it skips everybody else.
                gone = (
                    self.skip_reason(shard.server(shard.attempt))
                    if shard.commit is None and self._serves(now)
                    else ""
                )
                effects += (
                    self._advance(shard, f"its server is skipped: {gone}", now)
                    if gone
                    else self._offer(shard, now)
                )
        return effects

    def on_applied(self, event: Applied, now: float) -> list[Effect]:
        self._applied = max(self._applied, event.round_id)
        return self.let_go() if self.mode == "active" else []

    def let_go(self) -> list[Effect]:
        """The trainer may compute this round, once it holds the state before it."""
        return (
            [self._go()]
            if self._applied == self.round_id - 1 and self._go_round < self.round_id
            else []
        )

    def on_aggregated(self, event: Aggregated, now: float) -> list[Effect]:
        if self.mode != "active":
            return []
        if (measured := self.server.measured(event)) is not None:
            return self.cross_shard.on_measured(measured, now)
        roster = self.attendance.next_roster(self.roster, self.joining, now)
        validator = self.result_validator
        accusations, audits = validator.accusations(), validator.audit_votes()
        made = self.server.finish(event, roster, accusations, audits)
        if made is None:
            return []
        # The others wait for it: it leaves now, and what follows from it here comes in a
        # turn of its own.
        timer = self.timers.set(
            now, RoundTimer("hold", self.round_id, made[0].index, made[1].attempt)
        )
        self.made = (*made, event.payload, timer.token)
        return [*spread(self.local, self.view, self.roster, made[1], event.payload), timer]

    def hold_made(self, now: float, fires: Token | None = None) -> list[Effect]:
        """Holds the commit made and spread last. Comes before all else that happens here, but the
        timer that ``fires`` for it."""
        if self.made is None or self.made[3] == fires:
            return []
        shard, commit, payload, token = self.made
        self.made = None
        return [*self.timers.cancel(token), *self._hold(shard, commit, payload, True, now)]

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
            if self.server.transfer_tracker.came(event, now):
                self.view.forget_load()
            if self.local not in self.roster:
                # Its link may carry less than the rounds, and then it is never empty.
                self.view.note_state(self.local, now + self.deadline.round_timeout_s())
        if isinstance(message, Compiling):
            self.server.compile_tracker.record_compiling(sender, now)
            return []
        if isinstance(message, ReceivingPayload):
            self.server.transfer_tracker.record_progress(
                sender, message.received, message.pause_s, now
            )
            if self.server.transfer_tracker.is_busy(sender, now):
                self._note_load(now)
            return []
        return self._on_round_message(event, message.round_id, now)

    def _on_round_message(self, event: Received, round_id: int, now: float) -> list[Effect]:
        """Handle a message that says where its sender is. The roster of a commit is judged by what
        was known before it: whoever had been silent until it handed that over was rightly left out.
        """
        if isinstance(event.message, Commit):
            effects = self._dispatch_message(event, now)
            returns = self.future_buffer.record_round(event.sender, round_id)
            return effects + self.on_view_change(now) if returns else effects
        contributes = isinstance(event.message, Update)
        changes = self._record_round(event.sender, round_id, contributes, now)
        effects = self._dispatch_message(event, now)
        return changes + effects if changes else effects

    def _note_load(self, now: float) -> None:
        """They come again in the next round, all at once. The first answers that wait behind them
        do so before any news of them is here."""
        usual_s = self.deadline.typical_round_s() or self.deadline.round_timeout_s()
        self.view.note_load(now, LOADED_ROUNDS * usual_s)

    def _record_round(
        self, peer: PeerId, round_id: int, contributes: bool, now: float
    ) -> list[Effect]:
        """It says where it is. Until then nobody was to be served by it;
        now it may be the only one who can."""
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
            return self._on_ahead(event, message, now)
        if message.round_id < self.round_id:
            if isinstance(message, Update):
                self.server.lateness.came_late(sender, message, now)
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
                return self._on_query(event, shard, message, now)
            case Commit():
                return self._on_commit(sender, shard, message, event, now)
            case PartialStatistics() | PartialOverdue():
                heard = self.mode == "active" and not self.lag_detector.is_on_other_branch(
                    sender, message.parent, now
                )
                return self.cross_shard.on_message(sender, message, now) if heard else []

    def on_hello(self, sender: PeerId, hello: Hello, now: float) -> list[Effect]:
        """A peer says how far it is: ready to be in the roster, or finished."""
        changes = self._record_round(sender, hello.round_id, False, now)
        effects = self._on_hello(sender, hello, now)
        return changes + effects if changes else effects

    def _on_hello(self, sender: PeerId, hello: Hello, now: float) -> list[Effect]:
        close = hello.round_id > 0 and self.round_id - hello.round_id <= self._rounds_behind_max()
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
            and close
        ):
            self.departures.is_back(sender)
            self.joining.add(sender)
            return self.on_view_change(now)  # a round may be closed to let it in
        if not close:
            self.joining.discard(sender)
        asks = self._ask_again(sender) if close else []
        return [*asks, *self.lag_detector.on_hello(sender, hello, stance, now)]

    def _ask_again(self, peer: PeerId) -> list[Effect]:
        """It says that it is in a round. When it was asked for its update it was in none."""
        return [
            effect
            for shard in self._shards
            if peer in shard.had_nothing and shard.server(shard.attempt) == self.local
            for effect in self.server.ask_again(shard, peer)
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
        """An update for us, or a result, is on its way. Others hear of it now and then: they are
        not to give us up."""
        message, transfer_tracker = event.message, self.server.transfer_tracker
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
            if shard.result is None or event.received < shard.result.received:
                shard.result = Transfer.begun(event.nbytes, event.received, now)
            shard.result.grew(event.received, now)
        if not transfer_tracker.begin_report(now):
            return []
        received, pause_s = min(transfer_tracker.total, ROUND_MAX), transfer_tracker.pause_s(now)
        transfer_tracker.record_progress(self.local, received, pause_s, now)
        return self._to_roster(ReceivingPayload(self.settings.lineage, received, pause_s))

    def on_compiling(self, now: float) -> list[Effect]:
        """The own trainer compiles, and is asked again soon. The others hear of it."""
        if self.mode == "off":
            return []
        self.server.compile_tracker.record_compiling(self.local, now)
        return self._to_roster(Compiling(self.settings.lineage))

    def _to_roster(self, message: Compiling | ReceivingPayload) -> list[Effect]:
        return [
            Send(peer, message)
            for peer in self.roster
            if peer != self.local and not self.skip_reason(peer)
        ]

    def on_progress(self, peer: PeerId, step: int, now: float) -> list[Effect]:
        """An ack tells how many rounds a trainer has applied. So it has a state, though its link
        broke a moment ago. More than we know of means that we have missed some."""
        known = step > 0 and self.mode != "off"
        changes = self._record_round(peer, step, False, now) if known else []
        return changes + self._on_progress(peer, step, now)

    def _on_progress(self, peer: PeerId, step: int, now: float) -> list[Effect]:
        if step <= self.round_id or self.mode == "off":
            return []
        # A newcomer that is ahead of another has no commits to give, if there is anybody else.
        others = [
            other for other in self.roster if other != self.local and not self.skip_reason(other)
        ]
        return (
            self.lag_detector.behind(peer, step, now) if peer in self.roster or not others else []
        )

    def _on_update(
        self, sender: PeerId, shard: ShardRound, update: Update, payload: Payload | None, now: float
    ) -> list[Effect]:
        if sender not in self.roster:
            return []
        if self.lag_detector.is_on_other_branch(sender, update.parent, now):
            return [Send(sender, self.lag_detector.not_serving(update))]
        if shard.commit is not None:
            self.server.lateness.came_late(sender, update, now)
            # A large one that was spread is on its way already. Should it be lost,
            # the sender asks for it.
            spread_before = shard.made_here and update.attempt <= shard.commit.attempt
            large = shard.payload is not None and shard.payload.nbytes > SMALL_BYTES
            return (
                []
                if spread_before and large
                else [reissue(sender, shard.commit, shard.payload, update.attempt)]
            )
        serves = self._serves(now) and shard.server(update.attempt) == self.local
        if not serves or update.attempt < shard.attempt:
            if sender == self.local:
                return []
            return [
                *self._serve_later(shard, sender, update.attempt, now),
                Send(sender, self.lag_detector.not_serving(update)),
            ]
        before, later = shard.attempt, update.attempt > shard.attempt
        if later and not self.later_turns.follow_claim(shard, sender, update.attempt, now):
            return []
        effects = self._withdraw_update(shard, before) if later else []
        if shard.serving is None or update.attempt > shard.serving:
            effects += self.server.serve(shard, update.attempt, now)
            if later:
                shard.attempt = update.attempt
                effects += self.server.pulse(shard, now) + self._offer(shard, now)
        return effects + self.server.accept_update(shard, sender, update, payload, now)

    def _on_query(
        self, event: Received, shard: ShardRound, query: UpdateRequest, now: float
    ) -> list[Effect]:
        if shard.commit is not None:
            return [reissue(event.sender, shard.commit, shard.payload, query.attempt)]
        if self.lag_detector.is_on_other_branch(event.sender, query.parent, now):
            # we may be there in a moment
            self.future_buffer.stash(self.round_id, query.round_id, event, query.shard)
            return (
                [Send(event.sender, self.lag_detector.not_serving(query))]
                if self.future_buffer.is_first(event.sender, query)
                else []
            )
        idle = self.mode != "active" or self.cross_shard.is_combining(shard)
        if idle or shard.server(query.attempt) != event.sender or query.attempt < shard.attempt:
            return []
        left: list[Effect] = []
        if query.attempt > shard.attempt:
            before = shard.attempt
            if not self.later_turns.follow_claim(shard, event.sender, query.attempt, now):
                return []
            left = self._withdraw_update(shard, before)
        shard.attempt = query.attempt
        return left + self._offer(shard, now)

    def _withdraw_update(self, shard: ShardRound, attempt: int) -> list[Effect]:
        """The server of ``attempt`` has our update, and may not believe who has drawn us away: it
        must not make a result of it any more."""
        server = shard.server(attempt)
        if shard.on_word is None or self._own is None or server == self.local:
            return []
        where = (self.settings.lineage, self.round_id, shard.index, attempt, self.chain)
        return [Send(server, self.lag_detector.not_serving(UpdateRequest(*where)))]

    def _on_commit(
        self, sender: PeerId, shard: ShardRound, commit: Commit, event: Received, now: float
    ) -> list[Effect]:
        payload = event.payload
        shard.result = None  # it is here, and no longer on its way
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
        if self.lag_detector.is_on_a_fork(sender, commit, now):
            return []
        in_turn = commit.made_at <= commit.attempt and commit.server == shard.server(commit.made_at)
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
        """Nothing speaks against it, but that this peer may have promised not to take it."""
        payload = event.payload
        present = commit.made_at == shard.attempt  # it was made in its turn
        serves = (commit.server if present else shard.server(shard.attempt)) == self.local
        if commit.attempt < shard.attempt and not serves:
            # We would take it. Who serves our attempt may, and re-issues it to everybody then.
            return (
                [Send(shard.server(shard.attempt), commit, payload)]
                if shard.passes_on(commit)
                else []
            )
        if serves:
            # A server that hears of a commit, its own of a former life even, spreads that one and
            # does not aggregate again, nor commit what its rule is at.
            commit = replace(commit, attempt=max(commit.attempt, shard.attempt))
        effects = spread(self.local, self.view, self.roster, commit, payload) if serves else []
        if commit.made_at < shard.attempt and not serves:
            effects = self._forward_commit(event.sender, shard, commit, payload)
        return effects + self._hold(shard, commit, payload, False, now)

    def _forward_commit(
        self, sender: PeerId, shard: ShardRound, commit: Commit, payload: Payload | None
    ) -> list[Effect]:
        """A result of an earlier attempt was taken. Who serves our attempt has our update and may
        not know of that result: a liar that shows its own to us need not have answered when it was
        asked. It would make a second."""
        server = shard.server(shard.attempt)
        if sender == server or self.lag_detector.is_ahead(server):
            return []
        return [Send(server, commit, payload)] if shard.passes_on(commit) else []

    def on_last_words(self, event: Received, now: float) -> list[Effect]:
        """A commit that a former life of its sender has sent. It says nothing of where the present
        one is. But others may hold that result, and there may be no other copy of it: a server that
        threw it away would make a second."""
        commit, payload = event.message, event.payload
        assert isinstance(commit, Commit)
        if commit.lineage != self.settings.lineage or commit.shard >= len(self.shard_bytes):
            return []
        if commit.round_id != self.round_id or not self._shards:
            buffer, first = self.future_buffer, self.round_id
            if self.mode == "off":
                first = buffer.next_round(first)
            buffer.stash_last_words(first, commit.round_id, event, commit.shard)
            return []
        shard = self._shards[commit.shard]
        in_turn = commit.made_at <= commit.attempt and commit.server == shard.server(commit.made_at)
        if (
            shard.commit is not None
            or commit.parent != self.chain
            or not in_turn
            or not self.replicated.is_sound(commit, payload)
            # The present life is neither asked for another, nor does it keep to that result.
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
        elsewhere = notice.round_id == self.round_id and self.lag_detector.is_on_other_branch(
            sender, notice.chain, now
        )
        shard = self._shards[notice.shard]
        if notice.attempt == shard.serving and notice.round_id == 0:  # it is in no round
            shard.had_nothing.add(sender)
        if self._is_withdrawal(shard, notice):
            shard.withdraw_update(sender, notice.attempt)
        refused = (
            shard.commit is None
            and notice.attempt == shard.attempt
            and shard.server(shard.attempt) == sender
        )
        if refused:
            shard.declined = shard.attempt
        # Once round the order at the speed of the network; after that only time can help.
        if refused and shard.attempt < len(shard.order):
            return self._advance(
                shard,
                f"{sender} "
                f"{'is on another branch' if elsewhere else 'says that it does not serve'}",
                now,
            )
        return []

    def _is_withdrawal(self, shard: ShardRound, notice: NotServing) -> bool:
        """Whether its sender has gone on to another server, and its update is not to be used."""
        here = (notice.round_id, notice.chain) == (self.round_id, self.chain)
        to_us = shard.server(notice.attempt) == self.local
        return bool(self.settings.f) and here and to_us

    # --- the view changes, time passes ------------------------------------------------------------

    def on_view_change(self, now: float) -> list[Effect]:
        """Somebody is skipped or back: hand on what a skipped server had,
        stop waiting for skipped participants."""
        effects: list[Effect] = []
        round_id = self.round_id
        for shard in tuple(self._shards):
            if self.mode != "active" or self.round_id != round_id or shard.commit is not None:
                continue
            server = shard.server(shard.attempt)
            if server != self.local and (reason := self.skip_reason(server)):
                effects += self._advance(shard, f"{server} is skipped: {reason}", now)
            elif server == self.local and not self._serves(now):
                effects += self._advance(shard, f"{server} stood still", now)
            else:
                effects += self.server.ask_newcomers(shard) if server == self.local else []
                effects += self.server.maybe_close(shard, now)
        return effects

    def on_stalled(self, still_s: float, now: float) -> list[Effect]:
        """This peer was stopped for a while. What it served meanwhile the others have handed on, so
        it must not commit it. What it has spread before they may have taken, so it holds that."""
        if len(self.roster) == 1:
            return []  # there is nobody who could have
        spread = None if self.made is None else self.made[0]
        self._serves_from = now + AFTER_STANDING_STILL_S
        effects: list[Effect] = []
        for shard in tuple(self._shards):
            pending = shard.commit is None and shard is not spread
            if self.mode == "active" and pending and shard.server(shard.attempt) == self.local:
                effects += self._advance(
                    shard, f"{self.local} stood still for {still_s:.1f} s", now
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
        match timer.what:
            case "give_up":
                shard.give_up = None
                if timer.attempt != shard.attempt:
                    return []
                if more := self.server.more_time(shard, now):
                    return more
                shard.given_up += 1
                return self.result_validator.on_server_timeout(shard, now)
            case "grace":
                shard.grace = None
                return self.server.maybe_close(shard, now) if timer.attempt == shard.serving else []
            case "ask":
                return self.server.ask(shard, timer.attempt)
            case "pulse":
                return self.server.pulse(shard, now)
            case "lack":
                return self.cross_shard.lacks(shard, now)
            case "hold":
                return self.hold_made(now)  # the token is spent, so there is nothing to cancel
            case "again":
                return self._serve_again(shard, now)

    # --- the participant --------------------------------------------------------------------------

    def _begin(self, now: float) -> list[Effect]:
        round_id, roster, chain = self.round_id, self.replicated.roster, self.chain
        self.mode = "active" if self.local in roster.peers else "following"
        able = self.replicated.serving_roster()
        self._main = min(able.peers)
        plan = self.topology(able, round_id, self.settings.seed, shards=len(self.shard_bytes))
        # Of one peer, its updates for all that another serves, and its results.
        serving = Counter([order[0] for order in plan.servers])
        self.server.transfer_tracker.begin_round(
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
                shard.came_at = now
                first = self._attempt_locks.first(round_id, chain, shard.index)
                shard.attempt = self._next_attempt(shard, first, now)
                if shard.attempt > first:
                    skipped = shard.server(first)
                    reason = (
                        "it stood still" if skipped == self.local else self.skip_reason(skipped)
                    )
                    effects.append(
                        attempt_report(round_id, shard, f"{skipped} is skipped: {reason}")
                    )
                effects += self.server.pulse(shard, now)
            effects += self.let_go()
        if (
            self._stage_gate is not None and self.is_held
        ):  # it was left while others were waited for
            return effects + self._wait(self._stage_gate, now)
        # One of them may end the round, and begin the next.
        last_words = self.future_buffer.last_words
        for event in self.future_buffer.pop_last_words(round_id) if last_words else ():
            effects += self.on_last_words(event, now)
        for event in self.future_buffer.pop_round(round_id):
            effects += self.on_message(event, now)
        return effects

    def _go(self) -> StartRound:
        self._go_round = self.round_id
        return StartRound(
            self.round_id,
            self.replicated.slice_of(self.local),
            main=self._main,
            collectives=self.replicated.collectives,
            deadline_us=self.replicated.deadline_us,
            began_at=self.lag_detector.began_at,
            compares=self.divergence.compares_next,
        )

    def _offer(self, shard: ShardRound, now: float) -> list[Effect]:
        """Sends our update to whoever serves our attempt, and gives that server its time."""
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
            self._took_us,
            own.collective if first else b"",
            own.skipped and first,
            own.micro_batches,
            own.pass_us,
            own.replica if first else b"",
            own.kind,
        )
        if self.cross_shard.is_timed(shard):
            effects += self.server.start_timeout(shard, now, bool(own.collective))
        if (server := shard.server(shard.attempt)) == self.local:
            return effects + self._on_update(self.local, shard, update, payload, now)
        effects.append(Send(server, update, payload))
        if payload is not None and self.server.transfer_tracker.may_be_slow:
            self._note_load(now)
        return effects

    def _advance(self, shard: ShardRound, reason: str, now: float) -> list[Effect]:
        """Hands on: to where somebody is whose word was put off, or else to the next server in the
        order that is not skipped."""
        self.later_turns.leave(shard, now)
        granted = self.later_turns.grant_claim(shard, self._serves(now), now)
        following = self._next_attempt(shard, shard.attempt + 1, now)
        shard.attempt = following if granted is None else granted
        effects: list[Effect] = [
            attempt_report(self.round_id, shard, reason),
            *self.server.pulse(shard, now),
        ]
        if shard.server(shard.attempt) == self.local and (
            shard.serving is None or shard.serving < shard.attempt
        ):
            effects += self.server.serve(shard, shard.attempt, now)
        return effects + self._offer(shard, now)

    def _next_attempt(self, shard: ShardRound, first: int, now: float) -> int:
        for attempt in range(first, first + len(shard.order)):
            server = shard.server(attempt)
            if self._serves(now) if server == self.local else not self.skip_reason(server):
                return attempt
        return first

    def _serves(self, now: float) -> bool:
        """Whether this peer may serve. A swarm of one has nobody else."""
        return self.mode == "active" and (now >= self._serves_from or len(self.roster) == 1)

    def _serve_later(
        self, shard: ShardRound, sender: PeerId, attempt: int, now: float
    ) -> list[Effect]:
        """Remembers an attempt that is refused only because this peer stood still: when it serves
        again, it asks for the updates.

        Where all stood still, each refuses what the others hand on to it, and would then wait for
        the round timeout.
        """
        if (
            self.mode != "active"
            or shard.server(attempt) != self.local
            or attempt < max(shard.attempt, shard.refused + 1)
        ):
            return []
        if attempt > shard.attempt and self.later_turns.put_off(shard, sender, attempt, now):
            return []
        shard.refused, shard.refused_of = attempt, sender
        if shard.again is not None:
            return []
        timer = self.timers.set(
            self._serves_from, RoundTimer("again", self.round_id, shard.index, attempt)
        )
        shard.again = timer.token
        return [timer]

    def _serve_again(self, shard: ShardRound, now: float) -> list[Effect]:
        """The time that this peer did not serve is over:
        it takes up the last attempt that it has refused."""
        shard.again = None
        attempt, shard.refused = shard.refused, -1
        if attempt < shard.attempt:
            return []
        if not self._serves(now):  # it has stood still once more
            return self._serve_later(shard, shard.refused_of, attempt, now)
        effects: list[Effect] = []
        if (before := shard.attempt) < attempt:
            if not self.later_turns.follow_claim(shard, shard.refused_of, attempt, now):
                return []
            effects = self._withdraw_update(shard, before)
        shard.attempt = attempt
        if shard.serving is None or shard.serving < attempt:
            effects += self.server.serve(shard, attempt, now)
            # of a later one it asks in any case
            effects += [] if attempt else self.server.ask(shard, attempt)
        return [*effects, *self.server.pulse(shard, now), *self._offer(shard, now)]

    # --- the end of a round -----------------------------------------------------------------------

    def _hold(
        self, shard: ShardRound, commit: Commit, payload: Payload | None, made: bool, now: float
    ) -> list[Effect]:
        effects: list[Effect] = [
            effect for token in shard.tokens() for effect in self.timers.cancel(token)
        ]
        if shard.on_word is not None or self.later_turns.credit.by_peer:
            self.later_turns.end(shard, commit.server, now)
        shard.hold(commit, payload, made)
        if all(each.commit is not None for each in self._shards):
            gate = self._stage_gate
            return effects + (self._finish(now) if gate is None else self._wait(gate, now))
        return effects + self.cross_shard.on_held(shard, self._own is not None, now)

    @property
    def is_held(self) -> bool:
        """Whether every shard of this round is committed here. It is over then, unless other stages
        of a pipeline are waited for."""
        return bool(self._shards) and all(shard.commit is not None for shard in self._shards)

    def held_roster(self) -> tuple[PeerId, ...]:
        """Roster of the next round where this one is held, else of this one."""
        first = self._shards[0].commit if self._shards else None
        return first.roster if first is not None and self.is_held else self.roster.peers

    def held_pass_us(self) -> tuple[int, ...]:
        """Return the time that counts for a micro-batch of each peer of ``held_roster``, in
        microseconds."""
        held = [shard.commit for shard in self._shards if shard.commit is not None]
        return self.replicated.pass_us(self.held_roster(), held if self.is_held else ())

    def _wait(self, gate: StageGate, now: float) -> list[Effect]:
        """For the other stages of the pipeline."""
        effects = gate.on_held(self.round_id, self.held_roster(), self.held_pass_us(), now)
        return effects + self.pass_gate(now)

    def pass_gate(self, now: float) -> list[Effect]:
        """The round is over once it is held here and no other stage is waited for."""
        gate = self._stage_gate
        is_over = self.is_held and (gate is None or gate.is_open(self.round_id))
        return self._finish(now) if is_over else []

    def resend_commits(self, peer: PeerId, round_id: int) -> list[Effect]:
        """To one that is still in a round of which we hold all commits, or that is over here."""
        if round_id < self.round_id:
            over = self.log.get(round_id) or ()
            return [reissue(peer, commit, payload, commit.attempt) for commit, payload in over]
        if round_id > self.round_id or not self.is_held:
            return []
        held = [(s.commit, s.payload, s.attempt) for s in self._shards if s.commit is not None]
        return [reissue(peer, commit, payload, attempt) for commit, payload, attempt in held]

    def _finish(self, now: float) -> list[Effect]:
        """Every shard is committed: this round is history."""
        held = tuple(
            [(shard.commit, shard.payload) for shard in self._shards if shard.commit is not None]
        )
        self.log.append(self.round_id, held)
        self._attempt_locks.keep_finished(self.round_id, self.chain, self._shards)
        expected = self.server.expected()  # in this round: the next begins with what is appended
        coming, locked = held[0][0].roster, self.server.locked
        alive = (
            len(expected)
            if coming == self.server.roster.peers and not locked
            else sum([peer == self.local or not self.skip_reason(peer) for peer in coming])
        )
        effects = self.replicated.append(held, [shard.made_here for shard in self._shards], alive)
        # The length of a collective operation is that of what scripts did before it.
        kind = held[0][0].kind
        if self.replicated.was_step or (kind and is_further(kind)):
            self.deadline.observe_round(now - self.lag_detector.began_at)
        roster = self.replicated.roster.peers  # of the next round
        self.server.lateness.committed(roster, expected, _in_all(held))
        contributors = [c.peer for c in held[0][0].contributors]
        self.lag_detector.fork_choice.committed(contributors)
        self.joining.difference_update(roster)
        if self._own is not None and self._applied == self.round_id - 1:
            self._applied = self.round_id  # it will have, before it reads the Go behind it
        self.round_id += 1
        self.lag_detector.begin()
        # A state that was taken over may be that before a round which was applied here already.
        watch, commit = self.divergence, held[0][0]
        diverged = commit.diverged if commit.round_id > watch.round_id else ()
        if watch.is_active or commit.replica or contributors != watch.contributors:
            step = self.round_id - self.replicated.collectives
            watch.observe(commit, contributors, step)
        if diverged:
            effects += self._check_replicas(commit, len(expected))
        return effects + self._begin(now)

    def _check_replicas(self, commit: Commit, of: int) -> list[Effect]:
        """Ask for a state of others if this peer's replica differs, and end if the peer, or the
        run, has to: ``ends_diverged``."""
        differ, struck = commit.diverged, self.divergence.struck
        sent = b"" if self._own is None else self._own.replica
        is_own = self.local in differ and sent not in (b"", commit.replica)
        told = Report(
            "replicas_differ", {"round": commit.round_id, "peers": list(differ), "of": of}
        )
        on_divergence = self.settings.rounds.on_divergence
        if on_divergence == "warn":
            return [told]
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
        return [told]

    # --- others are elsewhere ---------------------------------------------------------------------

    def _on_ahead(
        self,
        event: Received,
        message: Update | UpdateRequest | Commit | PartialStatistics | PartialOverdue,
        now: float,
    ) -> list[Effect]:
        """A message of a later round: keep it. The commits between may be on their way;
        if not, ask for them."""
        if not self.settings.may_be(event.sender) or message.shard >= len(self.shard_bytes):
            return []
        if self.mode == "off" and message.round_id > 0 and isinstance(message, Update):
            # not kept: it would be outdated when we are back
            return [Send(event.sender, self.lag_detector.not_serving(message))]
        buffer, first = self.future_buffer, self.round_id
        if self.mode == "off":
            first = buffer.next_round(first)
        kept = buffer.stash(first, message.round_id, event, message.shard)
        if self.mode == "off" and isinstance(message, UpdateRequest) and not kept:
            # Who asks hears that, and asks again when we are back.
            return [Send(event.sender, self.lag_detector.in_no_round(message))]
        if isinstance(message, Commit):
            self.lag_detector.on_later_commit(message.round_id)
        here = message.round_id <= self.round_id or self.mode == "off"
        return [] if here else self.lag_detector.behind(event.sender, message.round_id, now)

    def on_disconnect(self, peer: PeerId) -> None:
        """The link to it broke."""
        self.future_buffer.on_disconnect(peer)
        self.lag_detector.on_disconnect(peer)
        for shard in self._shards:
            shard.asked.discard(peer)  # what was asked may be lost with the link

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


def _in_all(held: Held) -> frozenset[PeerId]:
    """Return the peers whose updates are in every commit of a round that contains any."""
    each = [
        frozenset([contribution.peer for contribution in commit.contributors])
        for commit, _ in held
        if commit.contributors
    ]
    return frozenset.intersection(*each) if each else frozenset()
