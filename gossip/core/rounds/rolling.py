"""Rolling rounds: collect updates, reach a quorum, aggregate, commit, or move to the next server.

In attempt a, ``order[a % len(order)]`` serves a shard. Each peer of the round sends its ``Update``
to this server. After a quorum of updates the server runs the rule and broadcasts the ``Commit``. A
peer ends a round when it has recorded a commit of every shard, and then applies all of them. A peer
is skipped if it is dead, unreachable, finished, or silent since its link was lost
(``skip_reason``). No peer waits for a skipped peer.

**A failed server.** There is no vote. Each peer decides alone to leave its attempt:

- The server is skipped, or replies ``NotServing``.
- No result arrives before the timeout. The timeout is extended while bytes of an update or a result
  still arrive, or while a peer compiles (``patience.py``).
- With f > 0, the peer rejects the result of the server.
- The peer is the server itself, and notices that its process was paused (``on_pause``).

The peer enters the next attempt with a server that is not skipped, or just the next attempt if all
are skipped. It sends its update again, with the number of this attempt. The first such update, or
its own decision, makes the next server enter the attempt. In attempts after the first, the server
requests missing updates (``UpdateRequest``), also from the earlier server. It needs no proof that
the earlier server has failed, but it needs a quorum as before.

Every ``Update`` and ``UpdateRequest`` with a later attempt than that of the receiver is a *claim*
that the later attempt has begun. The receiver follows the claim, so all peers reach the latest
attempt. With f > 0 a claim may be false. A claim is *explained* if the receiver itself sees a
reason to leave the attempts before it (``later_turns.py``). If the unexplained claims of a peer
have cost too much time, its next claims wait until the receiver leaves its attempt for another
reason, or until a waiting time that doubles has passed.

An update that was sent in an earlier attempt stays valid for the earlier server. There is one
exception: with f > 0, a peer that follows an unexplained claim withdraws its update. For this it
sends ``NotServing`` to the earlier server, which drops the update unless the rule is running. After
the earlier server has received a claim itself, it makes no commit.

A server that returns enters the present attempt by a claim. A restarted server adopts the state of
another peer. Peers that have recorded its departure skip it until its ``Hello`` announces a round.
In its first round it requests updates in attempt 0 as well, because its former process may have
made a commit (``come_into``).

**Two results.** Let attempts a < b of a shard both reach a quorum of updates, and let both quorums
be majorities of one roster. Then some peer p has sent its update in both attempts. The attempts of
a peer only increase, so p has sent the update of b later. At that time p had recorded no commit of
the shard, because a peer with a commit replies with this commit instead of an update (``reissue``:
the same result under the number b; after the round, ``CommitLog.answer_late``). A server that
receives such a commit records and broadcasts it, and makes no other result. The server of a itself
records its commit only after it has sent the commit to all peers (``AfterSends``).

So both results exist only if

- p has left a before the commit of a reached p, and
- no peer that has the commit of a has reached the server of b before this server made its result.

This takes messages that are late at the wrong moment, or a server of a that is cut off or dies,
with all peers that have recorded its result. Three rules make it rare. The server of a makes no
commit any more after it has received a claim or noticed a pause. The server of b requests the
updates of all peers. If the commit of a reaches p late, p does not record it, but forwards it once
to the server of its present attempt (``_accept``). It remains possible: unlike PBFT, an attempt has
no prepare phase.

A round can also have two results in these cases:

- At most two members remain after departures, so that the quorum is 1. Or the run has ``quorum =
  "available"`` or ``on_minority = "continue"`` (``quorum.py``). If members have ended for good, the
  quorum may be smaller, too, but then all others must reply.
- With f > 0, members have recorded a result that the server of b rejects (``Quorum.suffices``).
- p is Byzantine and sends updates in both attempts. The quorum is not enlarged for this case.
- p was restarted between its updates, so it has no ``AttemptLocks``. Or p has applied the result of
  a, has left its branch, and contributes to another result: the locks keep the attempts of
  completed rounds, but not their commits.
- A Byzantine server sends different commits.

Two results are detected: the hash chains of the peers differ. The branch that more peers have
reported wins. If equally many have reported both, the branch with the lower hash wins
(``LagDetector.record_branch``). If minorities may continue, ``fork_choice.py`` decides. The other
peers adopt the state of the winning branch (docs/limits.md).
"""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

from gossip.core.events import (
    Aggregated,
    Applied,
    Arriving,
    Contributed,
    Effect,
    Payload,
    Received,
    Send,
)
from gossip.core.ledger import (
    CommitLog,
    ReplicatedState,
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
from gossip.core.settings import (
    NEWCOMER_ROUNDS,
    NEWCOMER_S,
    TRANSFER_FACTOR,
    CoreSettings,
)
from gossip.core.timers import Timers
from gossip.core.view import MembersView, RollingTopology
from gossip.topologies import Roster

from .arrivals import Transfer
from .commits import CommitRecorder
from .departures import Departures
from .fork_choice import ForkChoice
from .future_buffer import FutureBuffer
from .lag import CatchUpOverdue, LagDetector
from .participant import Participant
from .patience import Patience
from .quorum import Quorum
from .replica_check import LocalReplicaCheck
from .roster import Attendance
from .server import Server
from .shard import Mode, PresentRound, RoundTimer, ShardRound, bytes_of
from .timeouts import Deadline
from .trainer_rounds import TrainerRounds

RoundMessage: TypeAlias = (
    Update | UpdateRequest | Commit | NotServing | PartialStatistics | PartialOverdue
)
"""Messages about one round, with a field ``round_id``."""
RollingMessage: TypeAlias = RoundMessage | CommitRequest | Compiling | ReceivingPayload
RollingTimer: TypeAlias = RoundTimer | CatchUpOverdue


class RollingRounds:
    """Rolling rounds of one peer.

    ``present`` is the present round, and ``replicated`` is the state that is equal on all peers. If
    this peer cannot follow the rounds, it requests the state of another peer (``LostTrack``).
    """

    def __init__(
        self,
        local: PeerId,
        settings: CoreSettings,
        topology: RollingTopology,
        view: MembersView,
        timers: Timers[Any],
    ) -> None:
        self.local, self.settings, self.topology = local, settings, topology
        rounds = settings.rounds
        self.replicated = ReplicatedState(settings, local)
        self.deadline = Deadline(rounds.grace_mads, rounds.grace_floor_s, rounds.round_timeout_s)
        fork_choice = ForkChoice(local, settings, self.replicated.lineage)
        self.present = PresentRound(lineage=settings.lineage)
        self.lag_detector = LagDetector(fork_choice, timers, view, self.deadline, self.present)
        self.requests = self.lag_detector.requests
        self.log = CommitLog(rounds.commit_log, rounds.commit_log_bytes)
        self.joining: set[PeerId] = set()  # peers that are ready to be in the roster
        self.departures = Departures(rounds.commit_log)
        self.future_buffer = FutureBuffer(settings.f)
        attendance = Attendance(
            local, view, self.replicated.lineage, self.departures, self.future_buffer
        )
        self.attendance, self.skip_reason = attendance, attendance.skip_reason
        quorum = Quorum(settings, self.present, attendance, self.joining)
        self.quorum, self.branch = quorum.required, fork_choice.describe_branch
        self.patience = Patience(quorum, timers, self.deadline, self.lag_detector.transfer_tracker)
        self.server = Server(timers, quorum, self.patience, self.lag_detector.awaits_commit)
        self.participant = Participant(self.server, self.lag_detector, attendance, self.replicated)
        self.replica_check = LocalReplicaCheck(self.replicated, self.lag_detector)
        self.trainer = TrainerRounds(
            self.present, self.replicated, self.lag_detector, self.replica_check, self.departures
        )
        self.commits = CommitRecorder(self.participant, attendance, self.joining, self._finish)
        self.shard_bytes: tuple[int, ...] = ()
        self.result_bytes: tuple[int, ...] = ()

    # --- state ------------------------------------------------------------------------------------

    @property
    def mode(self) -> Mode:
        return self.present.mode

    @property
    def round_id(self) -> int:
        return self.present.round_id

    @property
    def shards(self) -> list[ShardRound]:
        """Shards of the present round."""
        return self.present.shards

    @property
    def chain(self) -> bytes:
        """Head of the hash chain of commits, after the last round that this peer has applied."""
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

    def validate_state(self) -> None:
        """Check the invariants of the rounds."""
        self.present.validate_state()
        self.trainer.validate_state()
        after = self.replicated.lineage.next_round
        assert self.round_id == after, "the present round is the one after the last commit"
        is_off = self.mode == "off"
        assert not is_off or self.commits.own_commit is None, "its own commit is recorded"

    def prepare(self, shard_bytes: tuple[int, ...], result_bytes: tuple[int, ...] = ()) -> None:
        """Set the size of each shard of an update in bytes, and the sizes of the shards of a result
        if they differ."""
        self.shard_bytes, self.result_bytes = shard_bytes, result_bytes

    def begin_branch(self, state: bytes) -> None:
        """Bind the hash chain to the initial weights. If a checkpoint was loaded, its chain
        continues instead."""
        if self.round_id == 0:
            self.replicated.lineage.begin(state)

    def start(self, now: float) -> list[Effect]:
        """Begin round ``round_id``. The trainer has the state before this round."""
        self.trainer.set_state(self.round_id)
        return self._begin(now)

    def resume(self, now: float) -> list[Effect]:
        """Continue the round in which ``stop`` was called. No state of another peer was adopted."""
        own = self.present.own
        return [*self._begin(now), *(self.on_contributed(own, now) if own is not None else ())]

    def stop(self, now: float) -> list[Effect]:
        """Stop participation until ``start``. This peer still sends commits to peers that are
        behind."""
        effects = self.commits.record_own_commit(now) + self.participant.stop()
        present = self.present
        present.mode, present.shards = "off", []
        return effects

    def adopt(self, round_id: int, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        """Adopt the state of another peer. It is the state before ``round_id``.

        Raises: The errors of ``check``. After an error nothing has changed.
        """
        self.replicated.adopt(round_id, chain, snapshot)
        self.log.clear()
        self.lag_detector.restart(round_id == self.round_id, self.roster)
        present = self.present
        present.round_id = round_id
        self.trainer.restart()

    def come_back(self) -> None:
        """Record that this peer begins the present round with an adopted state. It may have missed
        commits of this round, so as a server it requests the updates of all peers."""
        self.server.come_into(self.round_id)

    def snapshot(self, round_id: int) -> tuple[bytes, tuple[Any, ...]] | None:
        return self.replicated.snapshot(round_id)

    def check(self, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        self.replicated.check(snapshot)

    def configure_data(
        self, samples_total: int, batch: int, ahead: int = 0, extended: int = 0
    ) -> list[Effect]:
        effects = self.replicated.configure_data(samples_total, batch, ahead, extended)
        return effects + self.trainer.repeat()

    # --- the trainer ------------------------------------------------------------------------------

    def on_contributed(self, event: Contributed, now: float) -> list[Effect]:
        # An update for another round is dropped, because that round was committed without it.
        is_present = event.round_id == self.round_id
        return self.participant.contribute(event, now) if is_present else []

    def on_applied(self, event: Applied, now: float) -> list[Effect]:
        return self.trainer.on_applied(event.round_id)

    def on_aggregated(self, event: Aggregated, now: float) -> list[Effect]:
        return self.commits.on_aggregated(event, now)

    # --- messages ---------------------------------------------------------------------------------

    def on_message(self, event: Received, now: float) -> list[Effect]:
        sender, message = event.sender, event.message
        assert isinstance(message, RollingMessage)
        if message.lineage != self.settings.lineage:
            return []
        if isinstance(message, CommitRequest):
            if sender not in self.roster:
                self.attendance.view.note_state(sender, now + self.deadline.round_timeout_s())
            return self.log.catch_up(
                sender,
                message,
                self.round_id,
                self.replicated.lineage.before(message.first),
            )
        if event.payload is not None:
            if self.patience.transfer_tracker.came(event, now):
                self.attendance.view.forget_load()
            if self.local not in self.replicated.roster:
                # This peer only follows the rounds. If its link is slower than the rounds, payloads
                # are always queued on this link.
                self.attendance.view.note_state(self.local, now + self.deadline.round_timeout_s())
        if isinstance(message, Compiling):
            self.patience.compile_tracker.record_compiling(sender, now)
            return []
        if isinstance(message, ReceivingPayload):
            self.patience.transfer_tracker.record_progress(
                sender, message.received, message.pause_s, now
            )
            if self.patience.transfer_tracker.is_busy(sender, now):
                self.participant.note_load(now)
            return []
        return self._on_round_message(event, message.round_id, now)

    def _on_round_message(self, event: Received, round_id: int, now: float) -> list[Effect]:
        """Handle a message that names the round of its sender. A commit is checked before its
        sender counts as present: the sender may have been silent until now, so the roster of the
        commit may rightly omit it."""
        if isinstance(event.message, Commit):
            effects = self._dispatch_message(event, now)
            returns = self.future_buffer.record_round(event.sender, round_id)
            return effects + self.on_view_change(now) if returns else effects
        effects = self._record_round(event.sender, round_id, isinstance(event.message, Update), now)
        return effects + self._dispatch_message(event, now)

    def _record_round(
        self, peer: PeerId, round_id: int, contributes: bool, now: float
    ) -> list[Effect]:
        """Record the round that ``peer`` has reported. A peer that was silent until now may serve
        from now on, and may be the only possible server."""
        returns = self.future_buffer.record_round(peer, round_id, contributes)
        return self.on_view_change(now) if returns else []

    def _dispatch_message(self, event: Received, now: float) -> list[Effect]:
        sender, message = event.sender, event.message
        assert isinstance(message, RoundMessage)
        present = self.present
        self.participant.result_validator.saw(event)
        if isinstance(message, NotServing):
            return self._on_not_serving(sender, message, now)
        if message.round_id > present.round_id or not present.shards:
            return self._on_later_round(event, message, now)
        if message.round_id < present.round_id:
            if isinstance(message, Update):
                self.patience.lateness.record_late_update(sender, message, now)
            before = self.replicated.lineage.before(message.round_id)
            return self.log.answer_late(sender, message, present.round_id, before)
        if message.shard >= len(present.shards):
            return []
        shard = present.shards[message.shard]
        match message:
            case Update():
                return self.participant.on_update(sender, shard, message, event.payload, now)
            case UpdateRequest():
                return self.participant.on_update_request(event, shard, message, now)
            case Commit():
                return self.commits.on_commit(event, shard, now)
            case PartialStatistics() | PartialOverdue():
                heard = present.mode == "active" and not self.lag_detector.record_branch(
                    sender, message.parent, now
                )
                return (
                    self.participant.cross_shard.on_message(sender, message, now) if heard else []
                )

    def _on_not_serving(self, sender: PeerId, notice: NotServing, now: float) -> list[Effect]:
        if notice.round_id <= self.round_id:
            return self.participant.on_not_serving(sender, notice, now)
        return [] if self.mode == "off" else self.lag_detector.not_kept(sender, notice, now)

    def on_hello(self, sender: PeerId, hello: Hello, now: float) -> list[Effect]:
        """Handle a hello, which announces that its sender is ready for the roster, or ends."""
        effects = self._record_round(sender, hello.round_id, False, now)
        keeps_up = (
            hello.round_id > 0 and self.round_id - hello.round_id <= self._rounds_behind_max()
        )
        if hello.stage != "ready":
            self.joining.discard(sender)
            self.departures.record_departure(sender, hello)
            # While this peer receives a state, requested commits would only delay that state on a
            # slow link.
            if hello.round_id > self.round_id and self.mode != "off":
                effects += self.lag_detector.behind(sender, hello.round_id, now)
            return effects + self.on_view_change(now)  # its shards move to other servers
        stance = self.lag_detector.fork_choice.on_hello(sender, hello)
        if stance == "same" and sender not in self.roster and keeps_up:
            self.departures.record_return(sender)
            self.joining.add(sender)
            # A round may be closed early to admit a newcomer.
            return effects + self.on_view_change(now)
        if keeps_up:
            effects += self.participant.request_again(sender)
        else:
            self.joining.discard(sender)
        return effects + self.lag_detector.on_hello(sender, hello, stance, now)

    def _rounds_behind_max(self) -> int:
        """Return the largest number of rounds by which a ready peer may be behind and still be
        admitted to the roster. Several short rounds may pass while a message is in transit."""
        usual_s = self.deadline.typical_round_s()
        return max(
            NEWCOMER_ROUNDS,
            min(self.settings.rounds.commit_log, int(NEWCOMER_S / usual_s) if usual_s else 0),
        )

    def on_arriving(self, event: Arriving, now: float) -> list[Effect]:
        """Handle the arrival of a part of a payload. From time to time, report to other peers that
        payloads arrive, so that they do not skip this peer."""
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
            and message.shard < len(self.shards)
        ):
            shard = self.shards[message.shard]
            if shard.commit_transfer is None or event.received < shard.commit_transfer.received:
                shard.commit_transfer = Transfer.begun(event.nbytes, event.received, now)
            shard.commit_transfer.grew(event.received, now)
        if not transfer_tracker.begin_report(now):
            return []
        received, pause_s = min(transfer_tracker.total, ROUND_MAX), transfer_tracker.pause_s(now)
        transfer_tracker.record_progress(self.local, received, pause_s, now)
        return self._to_roster(ReceivingPayload(self.settings.lineage, received, pause_s))

    def on_compiling(self, now: float) -> list[Effect]:
        """Report to other peers that the local trainer compiles. The node calls this repeatedly
        until the compilation ends."""
        if self.mode == "off":
            return []
        self.patience.compile_tracker.record_compiling(self.local, now)
        return self._to_roster(Compiling(self.settings.lineage))

    def _to_roster(self, message: Compiling | ReceivingPayload) -> list[Effect]:
        return [Send(peer, message) for peer in self._others()]

    def _others(self) -> list[PeerId]:
        """Return the other peers of the roster that are not skipped."""
        return [peer for peer in self.roster if peer != self.local and not self.skip_reason(peer)]

    def on_progress(self, peer: PeerId, rounds_applied: int, now: float) -> list[Effect]:
        """Handle the number of rounds that the trainer of ``peer`` has applied. If this number is
        larger than the local number, the local peer has missed commits."""
        if rounds_applied <= 0 or self.mode == "off":
            return []
        effects = self._record_round(peer, rounds_applied, False, now)
        if rounds_applied > self.round_id and (peer in self.roster or not self._others()):
            # Request commits from a peer outside the roster only if no member is reachable, because
            # that peer may have no commits.
            effects += self.lag_detector.behind(peer, rounds_applied, now)
        return effects

    def on_former_commit(self, event: Received, now: float) -> list[Effect]:
        """Handle a commit that arrived from a former incarnation of its sender."""
        commit = event.message
        assert isinstance(commit, Commit)
        if commit.lineage != self.settings.lineage or commit.shard >= len(self.shard_bytes):
            return []
        if commit.round_id == self.round_id and self.shards:
            return self.commits.on_commit(event, self.shards[commit.shard], now, is_former=True)
        first = self._first_round_to_store()
        self.future_buffer.stash(first, commit.round_id, event, commit.shard, is_former=True)
        return []

    # --- changes of the view, and time ------------------------------------------------------------

    def on_view_change(self, now: float) -> list[Effect]:
        return self.participant.on_view_change(now)

    def on_pause(self, paused_s: float, now: float) -> list[Effect]:
        return self.participant.on_pause(paused_s, now)

    def on_timer(self, timer: RollingTimer, now: float) -> list[Effect]:
        if timer.round_id != self.round_id:
            return []
        if isinstance(timer, CatchUpOverdue):
            return self.lag_detector.still_behind(timer, now)
        if self.mode != "active" or (shard := self.shards[timer.shard]).commit is not None:
            return []
        return self.participant.on_shard_timer(timer, shard, now)

    # --- start and end of a round -----------------------------------------------------------------

    def _begin(self, now: float, contributed: bool = False) -> list[Effect]:
        present, roster, chain = self.present, self.replicated.roster, self.replicated.lineage.head
        round_id, n_shards = present.round_id, len(self.shard_bytes)
        present.mode = "active" if self.local in roster.peers else "following"
        if present.mode == "following":
            self.requests.add(FollowRounds())
        able = self.replicated.serving_roster()
        plan = self.topology(able, round_id, self.settings.seed, shards=n_shards)
        # Largest number of transfers over one link in a round: one update and one result for each
        # shard that a single peer serves.
        serving = Counter([order[0] for order in plan.servers])
        self.patience.transfer_tracker.begin_round(
            max(self.shard_bytes, default=0),
            TRANSFER_FACTOR * self.deadline.cap_s,
            2 * max(serving.values(), default=0),
        )
        present.entered = [ShardRound(index, order) for index, order in enumerate(plan.servers)]
        present.shards = present.entered
        present.own, present.began_at = None, now
        self.server.begin(round_id, roster, self.replicated.begin(), chain, self.log, n_shards)
        present.main_peer = min(able.peers)
        effects = self.participant.begin(now) + self.trainer.begin(contributed)
        return effects + self._replay_stored(now)

    def _replay_stored(self, now: float) -> list[Effect]:
        """Handle the messages that arrived before this round began. Each message may end the round
        and begin the next round."""
        effects: list[Effect] = []
        round_id, buffer = self.present.round_id, self.future_buffer
        for is_former in (True, False) if buffer.stored else ():
            handle = self.on_former_commit if is_former else self.on_message
            for event in buffer.pop_round(round_id, is_former):
                effects += handle(event, now)
        return effects

    def _finish(self, now: float) -> list[Effect]:
        """End the round after every shard is committed. The commit of shard 0 contains the next
        roster."""
        present = self.present
        held = tuple(
            [(shard.commit, shard.payload) for shard in present.shards if shard.commit is not None]
        )
        self.log.append(present.round_id, held)
        self.participant.attempt_locks.keep_finished(
            present.round_id, present.parent, present.shards
        )
        # ``append`` changes to the roster of the next round.
        expected = self.server.quorum.expected()
        coming, locked = held[0][0].roster, present.locked
        # Number of reachable members of the next round.
        alive = (
            len(expected)
            if coming == present.roster.peers and not locked
            else sum([peer == self.local or not self.skip_reason(peer) for peer in coming])
        )
        made_here = [shard.made_here for shard in present.shards]
        effects = self.replicated.append(held, made_here, alive)
        # The time of a collective operation is not observed, because it includes the time of the
        # script before the operation.
        kind = held[0][0].kind
        if self.replicated.was_step or (kind and is_further(kind)):
            self.deadline.observe_round(now - present.began_at)
        roster = self.replicated.roster.peers  # roster of the next round
        self.patience.lateness.committed(roster, expected, self.replicated.in_all)
        self.lag_detector.fork_choice.committed(self.replicated.contributors)
        self.joining.difference_update(roster)
        present.round_id += 1
        self.lag_detector.begin()
        effects += self.replica_check.on_commit(held[0][0], present.own, len(expected))
        return effects + self._begin(now, present.own is not None)

    # --- peers in other rounds --------------------------------------------------------------------

    def _on_later_round(self, event: Received, message: RoundMessage, now: float) -> list[Effect]:
        """Store a message of a later round, or of any round while this peer takes part in none. The
        missing commits of the rounds before it may be in transit. If they do not arrive, this peer
        requests them."""
        if not self.settings.may_be(event.sender) or message.shard >= len(self.shard_bytes):
            return []
        if self.mode == "off" and message.round_id > 0 and isinstance(message, Update):
            # The update would be outdated when this peer returns.
            return [Send(event.sender, self.lag_detector.not_serving(message))]
        first = self._first_round_to_store()
        kept = self.future_buffer.stash(first, message.round_id, event, message.shard)
        if self.mode == "off" and isinstance(message, UpdateRequest) and not kept:
            # The sender will repeat the request after this peer has returned to the rounds.
            return [Send(event.sender, self.lag_detector.in_no_round(message))]
        if isinstance(message, Commit):
            self.lag_detector.on_later_commit(message.round_id)
        is_not_ahead = message.round_id <= self.round_id or self.mode == "off"
        return [] if is_not_ahead else self.lag_detector.behind(event.sender, message.round_id, now)

    def _first_round_to_store(self) -> int:
        """Return the earliest round for which messages are stored. While this peer takes part in no
        round, this is the present round of the other peers."""
        if self.mode == "off":
            return self.future_buffer.next_round(self.round_id)
        return self.round_id

    def on_disconnect(self, peer: PeerId) -> None:
        """Handle the loss of the link to ``peer``."""
        self.future_buffer.on_disconnect(peer)
        self.lag_detector.on_disconnect(peer)
        for shard in self.shards:
            shard.served.asked.discard(peer)  # the request may be lost with the link

    def payload_bytes(self, message: Update | Commit | Push) -> int:
        """Return the length in bytes that the payload of ``message`` must have by the local layout;
        -1 if the shard does not exist."""
        if isinstance(message, Push):
            return -1
        of_results = isinstance(message, Commit) and self.result_bytes
        return bytes_of(message, of_results or self.shard_bytes)

    def compared_with(self, message: Message) -> tuple[Payload, ...] | None:
        """Return the local update, if the payload of ``message`` has to be compared with it on
        arrival; None otherwise."""
        return (
            self.participant.result_validator.compared_with(
                message, self.round_id, self.present.own
            )
            if self.mode == "active"
            else None
        )
