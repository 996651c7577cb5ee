"""The sans-IO core of one peer: membership, rounds and recovery, with the interface
``handle(event, now) -> effects``.

Phases of a peer, and the usual transitions between them:

    unprepared --Prepared--> gathering --all peers here-> running --Stop--> draining --> halted
                               |   ^                        ^   |
                               |   +--no state anywhere---+ |   |
                               +--the swarm is ahead----> recovering

A running peer that can no longer follow the rounds also enters ``recovering``.
``lifecycle/phases.py`` lists all transitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from random import Random
from typing import Any, Literal, Protocol, assert_never

from gossip.core.settings import (
    CHECK_INTERVAL_S,
    FELL_BEHIND_MAX_S,
    FELL_BEHIND_S,
    STALL_TIMEOUTS,
    STASH_ROUNDS,
    WATCH_INTERVAL_S,
)
from gossip.errors import ConfigError
from gossip.topologies import Topology

from .events import (
    NOT_ADMITTED,
    AddressLearned,
    Admission,
    Aggregated,
    Applied,
    Arriving,
    BackwardDone,
    ClockJumped,
    ConfirmState,
    Contributed,
    DataConfigured,
    Effect,
    Event,
    ForwardDone,
    Halt,
    LedgerReply,
    LedgerRequest,
    LinkDown,
    LinkUp,
    PeerEnded,
    PeerExpected,
    Prepared,
    Received,
    Report,
    Restored,
    SendsDone,
    SnapshotTaken,
    Started,
    StateRebuilt,
    Stop,
    TimerFired,
    TrainerLost,
    TrainerProgress,
)
from .ledger import Ledgers, genesis, pack_ledger, squeeze, stretch, unpack_ledger
from .lifecycle import (
    DIVERGED,
    REFUSED,
    Bootstrap,
    FinalCheck,
    HelloExchange,
    LingerExpired,
    PeerProgress,
    Phase,
    QuorumWatch,
    Rejoin,
    RejoinRetry,
    Shutdown,
    Trigger,
    after,
    bootstrap as decisions,
)
from .membership import (
    TIMERS,
    Change,
    Member,
    Membership,
    MembershipMessage,
    MemberTable,
)
from .messages import (
    CORE_BYTES_MAX,
    Ack,
    Commit,
    Hello,
    Message,
    PeerId,
    PipelineMessage,
    Push,
    StateAttestation,
    StateOffer,
    StateRequest,
    Update,
)
from .pauses import PauseDetector
from .requests import (
    ConfirmResult,
    EndDrain,
    FollowRounds,
    LeaveRun,
    LostTrack,
    Request,
    ServeStates,
)
from .rounds import (
    CatchUpOverdue,
    GatherOverdue,
    GossipMessage,
    GossipRounds,
    GossipTimer,
    LocalLeave,
    LocalProgress,
    PeerTimer,
    RollingMessage,
    RollingRounds,
    RoundTimer,
)
from .settings import CoreSettings
from .timers import Timers
from .transfer import Donor, DonorTimeout, Recovery, SnapshotExpired
from .view import MembersView

OVER: Phase = "halted"
HAS_COMMITTED_STATE = ("running", "draining")
"""Phases in which the local state is the result of the last committed round."""


class NodeCore(Protocol):
    """Part of a ``Peer`` that a node needs. Classes that wrap a peer have the same methods."""

    def handle(self, event: Event, now: float) -> Iterable[Effect]: ...

    def admit(self, sender: PeerId, message: Message) -> Admission: ...

    @property
    def incarnation(self) -> int: ...


class Peer:
    """The sans-IO core of one peer.

    Args:
        local: Id of the peer, one of ``settings.everybody``.
        incarnation: Incarnation of the peer, higher than all earlier incarnations of this id.
        topology: A rolling or a gossip topology, the same on every peer.
        control, bulk: Addresses at which other peers reach the two connections of this peer.
        seeds: Addresses of other peers that are known at the start.
    """

    def __init__(
        self,
        local: PeerId,
        incarnation: int,
        settings: CoreSettings,
        topology: Topology,
        *,
        control: str,
        bulk: str,
        seeds: Mapping[PeerId, tuple[str, str]] | None = None,
    ) -> None:
        self.local, self.settings, self.topology = local, settings, topology
        self.timers: Timers[Any] = Timers()
        rng = Random(f"{settings.seed}/{local}/{incarnation}")
        self.membership = Membership(
            Member.own(local, incarnation, control, bulk),
            settings.membership,
            self.timers,
            rng,
            self._known_peers(),
        )
        timers, members = self.timers, self._members_of_rounds(self.membership.view)
        self.rounds = self._make_rounds(members, rng)
        self._rolling = self.rounds if isinstance(self.rounds, RollingRounds) else None
        self.requests = self.rounds.requests
        self.pauses = PauseDetector(self.membership, self.rounds, timers)
        # the interface through which other parts read the rounds
        progress: LocalProgress = self.rounds
        lag = self._rolling.lag_detector if self._rolling is not None else None
        self.bootstrap = Bootstrap(local, settings, members, self._round_elsewhere)
        self.hello_exchange = hellos = HelloExchange(
            settings, members, progress, (control, bulk), lambda: self.bootstrap.may_begin
        )
        self.peer_progress = PeerProgress(
            members,
            self.bootstrap,
            progress,
            self.rounds.future_buffer,
            lag.fork_choice if lag is not None else None,
        )
        self.final_check = FinalCheck(progress, lag, members, hellos, timers)
        self.shutdown = Shutdown(
            settings, members, self.peer_progress, timers, self.final_check.differs
        )
        self._leaving = LocalLeave(settings, timers)
        self._rejoin = Rejoin(lag, timers, hellos, self.peer_progress) if lag is not None else None
        self.recovery = Recovery(
            local,
            Donor(settings, progress, timers),
            self.peer_progress,
            settings.f + 1 if topology.rolling else 1,
        )
        self.quorum_watch = QuorumWatch(
            local,
            settings,
            self._rolling.attendance.reachable if self._rolling else members.reachable,
            self.shutdown,
            self.recovery.giving.current_receivers,
        )
        self.phase: Phase = "unprepared"
        self._seeds = {peer: at for peer, at in (seeds or {}).items() if peer != local}
        self._fell_behind = 0  # Number of consecutive recoveries without a round in between.
        self._recover_at: float | None = None  # Time of the next recovery, while it is delayed.
        self._data: tuple[int, int, int, int] | None = None
        self._stop_reason, self._stop_code = "", 0

    def _known_peers(self) -> frozenset[PeerId]:
        """Return the peers that the membership admits."""
        return frozenset(self.settings.everybody)

    def _members_of_rounds(self, table: MemberTable) -> MembersView:
        """Return the members that take part in the rounds of this peer."""
        return table

    def _make_rounds(self, members: MembersView, rng: Random) -> RollingRounds | GossipRounds:
        own = (self.local, self.settings, self.topology, members, self.timers)
        return RollingRounds(*own) if self.topology.rolling else GossipRounds(*own, rng)

    def _round_elsewhere(self) -> int | None:
        """Return the round that the other stages have reached; None without stages."""
        return None

    @property
    def weights(self) -> Mapping[PeerId, float]:
        """Weight of each member of this stage in the distribution of micro-batches; empty without
        stages."""
        return {}

    def stores(self) -> dict[str, int]:
        """Return the number of entries in each bounded store that a subclass adds, by name."""
        return {}

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Process an event and return its effects, in order. No message of another peer raises an
        exception.

        A pause of this process is handled before the event. Changes of the membership view,
        requests of the parts, and gossip are handled after the event. Effects may follow a
        ``Halt``.
        """
        if self.phase == "halted":
            return []
        effects = self.pauses.on_event(event, self.phase == "running", now)
        effects += self._dispatch(event, now)
        for change in self.membership.view.drain():
            effects += self._on_change(change, now)
        for request in self.requests.drain():
            effects += self._fulfil(request, now)
        return effects if self.phase == OVER else effects + self.membership.schedule_gossip(now)

    def _fulfil(self, request: Request, now: float) -> list[Effect]:
        """Fulfil a request of a part. If it is too early for the request, add the request again."""
        match request:
            case ConfirmResult():
                return self._confirm_result(request, now)
            case LostTrack():
                return self._handle_lost_track(request, now)
            case ServeStates():
                return self._serve_states(request, now)
            case FollowRounds():
                follows = self.rounds.mode == "following" and self.phase == "running"
                return self._follow_rounds(now, only_if_idle=True) if follows else []
            case LeaveRun():
                return self._leave_if_free(request, now)
            case EndDrain():
                if self.phase == "draining" and self.shutdown.linger_until() <= now:
                    return self._leave(now)
                self.requests.add(request)
                return []
            case _:
                assert_never(request)

    def _confirm_result(self, request: ConfirmResult, now: float) -> list[Effect]:
        if self.final_check.round_id is None:
            return []
        self.requests.add(request)
        return self.final_check.check_result(self.rounds.mode != "off", now)

    def _serve_states(self, request: ServeStates, now: float) -> list[Effect]:
        giving = self.recovery.giving
        if giving.asks:
            self.requests.add(request)
        return giving.on_round(now) if giving.next_requested_round <= self.rounds.round_id else []

    def _leave_if_free(self, request: LeaveRun, now: float) -> list[Effect]:
        if self.phase == "running" and self._leaving.is_due(
            self.rounds.round_id, self._must_stay(), now
        ):
            return self._on_stop(request.event, now)
        self.requests.add(request)
        return []

    def validate_state(self) -> None:
        """Check the invariants of this peer and of its rounds, between two events."""
        if self.phase == "halted":
            return
        is_running, is_draining = self.phase == "running", self.phase == "draining"
        assert is_running == (self.rounds.mode != "off"), "a running peer is in its rounds"
        for kind, waits in (
            (EndDrain, is_draining),
            (ConfirmResult, self.final_check.round_id is not None),
            (ServeStates, bool(self.recovery.giving.asks)),
            (LeaveRun, self._leaving.asked is not None and not is_draining),
        ):
            assert not waits or self.requests.find(kind) is not None, f"{kind.__name__} is lost"
        self.rounds.validate_state()

    @property
    def over(self) -> bool:
        return self.phase == "halted"

    @property
    def incarnation(self) -> int:
        """Incarnation of this peer, which every envelope carries."""
        return self.membership.incarnation

    def share_ledgers(self, ledgers: Ledgers, headers: dict[int, tuple[Commit, bytes]]) -> None:
        """Share the ledger of rolling rounds with other peers of a simulation. Call this before the
        first event."""
        if self._rolling is not None:
            self._rolling.replicated.share(ledgers, headers)

    def admit(self, sender: PeerId, message: Message) -> Admission:
        """Decide on the payload that may follow the header of ``message``, from local state
        alone."""
        if self.phase in ("unprepared", "halted"):
            return NOT_ADMITTED
        if not self.settings.may_be(sender):
            return NOT_ADMITTED
        match message:
            case Commit():
                compare_with = (
                    self._rolling.compared_with(message) if self._rolling is not None else None
                )
                return Admission(self.rounds.payload_bytes(message), compare_with)
            case Update() | Push():
                return Admission(self.rounds.payload_bytes(message))
            case StateOffer():
                return Admission(self.recovery.payload_bytes(sender, message))
            case _:
                return NOT_ADMITTED

    # --- events -----------------------------------------------------------------------------------

    def _dispatch(self, event: Event, now: float) -> list[Effect]:  # noqa: C901, PLR0912
        """Handle an event. There is one case for each kind, in four groups."""
        membership, view = self.membership, self.membership.view
        match event:
            case Received():
                return self._on_received(event, now)
            case Contributed():
                return self._on_contributed(event, now)
            case Aggregated():
                return self.rounds.on_aggregated(event, now)
            case SendsDone():
                return (
                    self._rolling.commits.record_own_commit(now)
                    if self._rolling is not None
                    else []
                )
            case Applied():
                return self._on_applied(event, now)
            case TimerFired():
                return self._on_timer(event, now)
            # other peers, the links to them, and the clock
            case Arriving(sender, incarnation):
                if not membership.accept_sender(sender, incarnation, now):
                    return []
                membership.record_arriving_payload(sender, now)
                return self._on_arriving(event, now)
            case LinkUp(peer):
                greets = self.phase != "unprepared"
                effects = membership.on_link(peer, True, "", now)
                return effects + ([self.hello_exchange.to(peer)] if greets else [])
            case LinkDown(peer, reason):
                # Before the first commit a peer that returns needs no state, so its lost link does
                # not make it absent from the rounds.
                if self.rounds.round_id > 0:
                    self.rounds.on_disconnect(peer)
                return membership.on_link(peer, False, reason, now)
            case ClockJumped(late_s):
                return membership.on_clock_jump(late_s, now)
            case PeerEnded(peer):
                view.note_end(peer)
                return []
            case PeerExpected(peer):
                view.note_claim(peer)
                return []
            case AddressLearned(peer, control, bulk, incarnation):
                view.note_address(peer)
                return membership.learn(peer, control, bulk, incarnation, now)
            # the local trainer, its model and its data
            case Started():
                return self._on_started(now)
            case Prepared():
                return self._on_prepared(event, now)
            case DataConfigured(samples_total, batch, ahead, extended):
                self._data = (samples_total, batch, ahead, extended)
                return self._configured() if self.phase == "running" else []
            case TrainerProgress(step, age_s, compiling):
                membership.set_progress(step, age_s, now)
                compiles = compiling and self.phase == "running"
                return self.rounds.on_compiling(now) if compiles else []
            case TrainerLost(reason):
                halt = Halt(f"the trainer is gone: {reason}", 1)
                return self._end(halt, membership.announce_own_death(reason, now))
            case Stop():
                return self._on_stop(event, now)
            # states, and the agreement on a state
            case SnapshotTaken():
                return self.recovery.on_snapshot(event, now)
            case Restored():
                return self._on_restored(event, now)
            case ConfirmState(round_id):
                closed = self.recovery.giving.close()
                self.requests.add(ConfirmResult())
                return closed + self.final_check.ask(round_id, self.phase, now)
            case LedgerRequest():
                return [self._ledger()]
            case ForwardDone() | BackwardDone() | StateRebuilt():
                return []  # This run has no stages.
            case _:
                assert_never(event)

    def _on_arriving(self, event: Arriving, now: float) -> list[Effect]:
        if isinstance(event.message, StateOffer):
            return self.recovery.on_arriving(event, now)
        return self.rounds.on_arriving(event, now) if self.phase == "running" else []

    def _on_received(self, event: Received, now: float) -> list[Effect]:
        if not self.membership.accept_sender(event.sender, event.incarnation, now):
            return self._on_former_incarnation(event, now)
        message = event.message
        if isinstance(message, MembershipMessage):
            effects = self.membership.on_message(event.sender, event.incarnation, message, now)
            if type(message) is Ack and self.phase == "running":
                effects += self.rounds.on_progress(message.target, message.progress.step, now)
            elif type(message) is Ack and self.phase == "draining":
                # A draining peer no longer waits for a peer that has reached the local round.
                self.rounds.future_buffer.record_round(message.target, message.progress.step)
            return effects
        if isinstance(message, RollingMessage | GossipMessage):
            if (
                self.phase == "unprepared"
                # a message for the other kind of topology
                or isinstance(message, GossipMessage) == self.topology.rolling
                or (self.final_check.round_id is not None and self.final_check.rejects(message))
            ):
                return []
            leaves = self.hello_exchange.stage != "ready"
            answer = self.hello_exchange.answer_missed_farewell(event, now) if leaves else []
            return answer + self.rounds.on_message(event, now)
        if isinstance(message, Hello):
            return self._on_hello(event.sender, event.incarnation, message, now)
        if isinstance(message, StateRequest | StateAttestation | StateOffer):
            self.shutdown.asked(event.sender, message, now)
            return self._on_state_message(event, now)
        assert isinstance(message, PipelineMessage), "all other kinds stand above"
        return []  # This run has no stages.

    def _on_state_message(self, event: Received, now: float) -> list[Effect]:
        self.requests.add(ServeStates())
        return self.recovery.on_message(event, self.phase in HAS_COMMITTED_STATE, now)

    def _on_former_incarnation(self, event: Received, now: float) -> list[Effect]:
        """Handle a message from a former incarnation of its sender. Only a commit is accepted,
        because its validity does not depend on its sender."""
        rolling, message = self._rolling, event.message
        counts = (
            rolling is not None
            and type(message) is Commit
            and self.phase != "unprepared"
            and self.final_check.round_id is None
            and self.settings.may_be(event.sender)
            and self.membership.is_former(event.sender, event.incarnation)
        )
        return rolling.on_former_commit(event, now) if counts and rolling is not None else []

    def _on_timer(self, event: TimerFired, now: float) -> list[Effect]:
        timer = self.timers.fire(event.token)
        # None if the timer was cancelled or has fired before
        return [] if timer is None else self._on_due(timer, now)

    def _on_due(self, timer: Any, now: float) -> list[Effect]:
        match timer:
            case RoundTimer() | CatchUpOverdue() | GossipTimer() | GatherOverdue():
                return self.rounds.on_timer(timer, now)  # type: ignore[arg-type]
            case DonorTimeout() | SnapshotExpired():
                return (
                    self._resume(now)
                    if self.recovery.has_no_donor(timer)
                    else self.recovery.on_timer(timer, now)
                )
            case RejoinRetry():
                return self._follow_rounds(now)
            case LingerExpired():
                return self.shutdown.stay(now)
            case PeerTimer("watch"):
                return self._watch_quorum(now)
            case PeerTimer():
                return self._gather(now) if self.phase == "gathering" else []
            case _:
                assert isinstance(timer, TIMERS)
                return self.membership.on_timer(timer, now)

    def _transition(self, trigger: Trigger) -> None:
        self.phase = after(self.phase, trigger)

    def _schedule(self, what: Literal["hello", "watch"], at: float) -> Effect:
        return self.timers.set(at, PeerTimer(what))

    # --- gathering --------------------------------------------------------------------------------

    def _on_started(self, now: float) -> list[Effect]:
        self.bootstrap.start(now)
        effects = self.membership.start(now)
        # Until the first round, states for other peers may occupy the link of this host.
        self.membership.view.note_state(self.local, inf)
        for peer, (control, bulk) in sorted(self._seeds.items()):
            effects += self.membership.learn(peer, control, bulk, 0, now)
        return effects

    def _on_prepared(self, event: Prepared, now: float) -> list[Effect]:
        self.hello_exchange.prepare(event)
        self.rounds.prepare(event.shard_bytes, event.result_bytes)
        self.recovery.prepare(event.state_bytes)
        self.bootstrap.prepare(holds=event.round_id > 0)
        if self.phase != "unprepared":
            return [Report("error", {"message": "the trainer prepared twice"})]
        if event.ledger and (halt := self._load(event)) is not None:
            return self._end(halt)
        if self._rolling is not None and not event.ledger:
            self._rolling.replicated.resume_count(event.collectives)
        self._transition("prepared")
        return [self._schedule("watch", now + WATCH_INTERVAL_S), *self._gather(now)]

    def _load(self, event: Prepared) -> Halt | None:
        """Adopt the round and the ledger of the checkpoint that the trainer has loaded. Return a
        halt if the ledger is invalid."""
        try:
            chain, snapshot, all_contributed = unpack_ledger(
                stretch(event.ledger), self.settings.peers
            )
            if self._rolling is None:
                # A gossip run has no chain of commits to continue.
                chain = genesis(self.settings.run, self.settings.lineage)
            elif not snapshot:
                # The run of the checkpoint had other stages, with other peers in each stage. Its
                # tables cannot be used, so this run begins with empty tables.
                snapshot = self._rolling.replicated.first_snapshot()
            self.rounds.adopt(event.round_id, chain, snapshot)
        except (ValueError, OverflowError) as error:
            return Halt(f"the checkpoint of step {event.round_id} cannot be used: {error}", 2)
        if self._rolling is not None:
            self._rolling.replicated.resume(all_contributed)
        self.shutdown.begin_at(event.round_id)
        return None

    def _ledger(self) -> LedgerReply:
        """Return the ledger of the state before the present round. Return an empty ledger if that
        ledger is not stored or is too large for a message."""
        rolling, round_id = self._rolling, self.rounds.round_id
        kept = self.rounds.snapshot(round_id) if self.phase in HAS_COMMITTED_STATE else None
        if kept is None:
            return LedgerReply(round_id, b"")
        all_contributed = rolling is None or rolling.replicated.whole
        ledger = squeeze(pack_ledger(round_id, *kept, all_contributed))
        # The ledger of very many peers does not fit in a message. The trainer then reports that the
        # ledger is missing.
        return LedgerReply(round_id, ledger if len(ledger) <= CORE_BYTES_MAX else b"")

    def _gather(self, now: float) -> list[Effect]:
        self.bootstrap.record_hello(self.local, self.hello_exchange.hello(), now)
        effects: list[Effect] = [*self.hello_exchange.to_all()]
        effects += self._decide(now)
        if self.phase == "gathering":
            effects.append(self._schedule("hello", now + CHECK_INTERVAL_S))
        return effects

    def _decide(self, now: float) -> list[Effect]:
        if self.bootstrap.only_waits(now):
            return []
        if self._is_training_over():
            return self._begin("training is over", (self.local,), now)
        return self._execute_decision(self.bootstrap.decide(now), now)

    def _execute_decision(self, decision: decisions.Decision, now: float) -> list[Effect]:
        match decision:
            case decisions.WaitForPeers(missing):
                return list(self.bootstrap.report_waiting(missing, now))
            case decisions.BeginFresh(present):
                return self._begin("quorum is here", present, now)
            case decisions.TakeState(donor, reason):
                self.rounds.future_buffer.begin_without(self.bootstrap.missed_by(donor))
                return self._recover(donor, reason, now)
            case Halt():
                return self._end(decision)
            case decisions.RebuildStage():
                raise AssertionError("a run without stages cannot lack a stage")
            case _:
                assert_never(decision)

    def _is_training_over(self) -> bool:
        """Whether more than f other peers have completed the training at or before the round of the
        local checkpoint. The local trainer then has no further steps and needs no other peer."""
        over_at, here = self.shutdown.completed_at(self.settings.f + 1), self.rounds.round_id
        return here > 0 and over_at is not None and over_at <= here

    def _begin(
        self,
        trigger: Literal["quorum is here", "training is over"],
        present: tuple[PeerId, ...],
        now: float,
    ) -> list[Effect]:
        """Start the rounds with the state of the local trainer."""
        self._transition(trigger)
        self.membership.view.note_state(self.local, now)  # no state arrives any more
        self.hello_exchange.begin()
        self.rounds.begin_branch(self.hello_exchange.state)
        self.rounds.future_buffer.begin_without(self.bootstrap.unheard())
        waited_s = round(self.bootstrap.waited_s(now), 3)
        return [
            Report("ready", {"present": list(present), "waited_s": waited_s}),
            *(self._rolling.replicated.report_standings() if self._rolling is not None else ()),
            *self._configured(),
            *self.rounds.start(now),
        ]

    def _on_hello(self, sender: PeerId, incarnation: int, hello: Hello, now: float) -> list[Effect]:
        if hello.lineage != self.settings.lineage:
            return []
        self.shutdown.record_hello(sender, hello)
        effects = self.membership.learn(sender, hello.address, hello.bulk, incarnation, now)
        new = self.peer_progress.on_hello(sender, incarnation, hello, now)
        if self.phase == "unprepared":
            return effects
        if self.phase == "gathering":
            return effects + ([self.hello_exchange.to(sender)] if new else []) + self._decide(now)
        effects += self.rounds.on_hello(sender, hello, now) + self.final_check.on_hello(
            sender, incarnation, hello, now
        )
        effects += self.recovery.on_hello(sender, hello.round_id)
        if (
            hello.round_id == 0
            or hello.layout != self.hello_exchange.layout
            or self.peer_progress.may_be_on_other_branch(sender, hello)
            or (self.phase == "draining" and hello.stage == "ready")
        ):
            # The sender has just started, comes from another branch, or continues without this
            # peer. The reply announces the local round.
            effects += self.hello_exchange.answer(sender, incarnation, now)
        return effects

    # --- data -------------------------------------------------------------------------------------

    def _configured(self) -> list[Effect]:
        try:
            return [] if self._data is None else self.rounds.configure_data(*self._data)
        except ConfigError as error:
            return self._end(Halt(str(error), error.exit_code))

    # --- returning --------------------------------------------------------------------------------

    def _follow_rounds(self, now: float, only_if_idle: bool = False) -> list[Effect]:
        """Apply the commits of other peers until the roster of a commit contains this peer. With
        ``only_if_idle``, do nothing if this is already in progress."""
        rejoin, rolling = self._rejoin, self._rolling
        assert rejoin is not None
        assert rolling is not None
        if only_if_idle and rejoin.under_way:
            return []
        follows = self.phase == "running" and rolling.mode == "following"
        effects = rejoin.go_on(follows, now)
        if follows and self.shutdown.had_last_round():
            # No later commit will have this peer in its roster. The local trainer runs its last
            # step and stops.
            effects += rolling.trainer.start()
        return effects

    def _handle_lost_track(self, request: LostTrack, now: float) -> list[Effect]:
        """Recover with the state of another peer. If this peer could not keep up after its last
        recovery, it waits first, and longer after each further failure. Without the wait, the links
        of this peer and of its donors would carry nothing but states."""
        rolling = self._rolling
        assert rolling is not None
        effects: list[Effect] = []
        if (why := rolling.replica_check.end_reason) and not self._stop_code:
            # The commit that ends this peer also ends the peers that have not received it yet.
            # Drain first, because these peers may request the commit.
            self._stop_code = DIVERGED
            stops = self._on_stop(Stop(why, completed=False), now)
            return [Report("error", {"message": why}), *stops]
        if rolling.mode == "following":
            if self._recover_at is None:
                wait_s = min(FELL_BEHIND_S * (2.0**self._fell_behind - 1.0), FELL_BEHIND_MAX_S)
                self._fell_behind, self._recover_at = self._fell_behind + 1, now + wait_s
                fields = {
                    "round": rolling.round_id,
                    "reason": request.reason,
                    "times": self._fell_behind,
                    "again_s": wait_s,
                }
                effects.append(Report("cannot_keep_up", fields))
            if now < self._recover_at:
                self.requests.add(request)
                return effects
        else:
            self._fell_behind = 0
        self._recover_at = None
        if self.phase == "running" and self.final_check.allows_recovery():
            effects += self._recover(request.donor, request.reason, now)
        return effects

    def _recover(self, donor: PeerId | None, reason: str, now: float) -> list[Effect]:
        has_own = self.phase == "running"
        self._transition("needs a state")
        return self.rounds.stop(now) + self.recovery.begin(donor, reason, now, has_own)

    def _resume(self, now: float) -> list[Effect]:
        """End the recovery, because no peer has a state to send. Resume with the local state, or
        gather again if the local rounds have not begun."""
        self.recovery.cancel()
        if self.phase != "recovering":
            return []
        if not self.hello_exchange.begun:
            self._transition("nobody has a state")
            return [*self.bootstrap.again(now), *self._gather(now)]
        self._transition("keeps its own state")
        return [
            Report("kept_own_state", {"round": self.rounds.round_id}),
            *self.rounds.resume(now),
            *self.hello_exchange.to_all(),
        ]

    def _on_restored(self, event: Restored, now: float) -> list[Effect]:
        effects, done = self.recovery.on_restored(event, self.rounds.adopt, now)
        if self.recovery.records.fits_no_state and self.phase == "recovering":
            last = f"peer {self.recovery.donor}: {event.error}"
            why = f"no state of the run fits this peer; the last state was from {last}"
            return effects + self._end(Halt(why, REFUSED), self.membership.leave(now))
        if done and self.phase == "recovering":
            self._transition("state restored")
            self.hello_exchange.adopt(self.bootstrap.initial_digest(self.recovery.donor))
            if self.rounds.round_id > 0:
                self.peer_progress.mark_unreported_members()
                if self._rolling is not None:
                    self._rolling.come_back()
            # Peers that recorded the departure of the previous incarnation skip this peer until it
            # announces a round.
            effects += [
                *self._configured(),
                *self.rounds.start(now),
                *(self.hello_exchange.to_all() if self._rolling else ()),
            ]
        return effects

    # --- changes of the view ----------------------------------------------------------------------

    def _on_change(self, change: Change, now: float) -> list[Effect]:
        self.shutdown.note(change, now)
        effects = self._announce(change)
        if change.what in ("joined", "alive_again"):
            self.peer_progress.expect_hello(change.peer)
        if self.phase == "gathering":
            effects += self._decide(now)
        elif self.phase == "running":
            effects += self.rounds.on_view_change(now)
        elif self.phase == "recovering":
            effects += self.recovery.on_view_change(now)
        return effects

    def _announce(self, change: Change) -> list[Effect]:
        """Report a change of the view, and send a hello to a peer that has joined."""
        # At the end of the training the links to other peers close one after the other, so skips
        # are not reported.
        ends = self.phase == "draining" or change.peer in self.shutdown.completed
        told = change.what != "skip" or not ends
        greets = change.what == "joined" and self.phase != "unprepared"
        return [
            *([Report(change.what, change.fields(self.rounds.round_id))] if told else ()),
            *([self.hello_exchange.to(change.peer)] if greets else ()),
        ]

    def _watch_quorum(self, now: float) -> list[Effect]:
        """Report a lost quorum, and halt if the quorum does not return in time."""
        if self.phase not in ("running", "recovering"):
            return (
                [self._schedule("watch", now + WATCH_INTERVAL_S)]
                if self.phase == "gathering"
                else []
            )
        self.membership.expect_steps(STALL_TIMEOUTS * self.rounds.deadline.round_timeout_s())
        # A state that is being restored counts as a state of this peer.
        has_state = self.phase == "running" or self.recovery.has_own or self.recovery.restores
        roster = self.rounds.roster.peers
        reports, halt = self.quorum_watch.check_quorum(
            roster if has_state else {*roster, *self.shutdown.members.met()},
            self.rounds.quorum(),
            self.rounds.round_id,
            now,
            stateless=None if has_state else self.recovery.records.stateless(now),
        )
        if halt is not None:
            return self._end(halt, self.membership.leave(now))
        return [*reports, self._schedule("watch", now + WATCH_INTERVAL_S)]

    # --- leaving ----------------------------------------------------------------------------------

    def _on_contributed(self, event: Contributed, now: float) -> list[Effect]:
        self.shutdown.offered(event.round_id)
        self.recovery.giving.expect_rounds(self.phase != "draining")
        halt = self.shutdown.verdict(now, has_state=True)
        return (
            self._contribute(event, now)
            if halt is None
            else self._end(halt, self.membership.leave(now))
        )

    def _contribute(self, event: Contributed, now: float) -> list[Effect]:
        return self.rounds.on_contributed(event, now)

    def _on_applied(self, event: Applied, now: float) -> list[Effect]:
        if (
            self._rolling is None
            and self.phase == "running"
            and self.shutdown.left_behind(STASH_ROUNDS)
            and self.peer_progress.donors()
        ):
            # No peer is left to exchange with. If this peer trained alone, its model would be worse
            # than the model of the finished peers.
            return self._recover(None, "the others have completed the training", now)
        return self.rounds.on_applied(event, now)

    def _end(self, halt: Halt, farewell: Sequence[Effect] = ()) -> list[Effect]:
        """Halt this peer, without a request to stop."""
        self._transition("gives up")
        return [
            Report("error" if halt.exit_code else "over", {"message": halt.reason}),
            *farewell,
            halt,
        ]

    def _on_stop(self, event: Stop, now: float) -> list[Effect]:
        if self.phase == "draining":
            return self._leave(now)  # the second request: leave at once
        was_running, self._stop_reason = self.phase == "running", self._stop_reason or event.reason
        round_id, must_stay = self.rounds.round_id, self._must_stay()
        if was_running and (
            (put_off := self._leaving.put_off(event, round_id, must_stay, now)) is not None
        ):
            self.requests.add(LeaveRun(event))
            return put_off
        cut_off = (
            not event.completed
            and self._rolling is not None
            and self._rolling.participant.has_answered()
        )
        if self._leaving.breaks_obligation(must_stay) or (was_running and cut_off):
            # A ``Hello`` with the stage "leaving" promises that no server has this peer's update
            # of the round. An unreachable server may have it, so leave without this promise.
            return self._leave(now)
        effects = self.rounds.stop(now) + self.recovery.giving.close()
        self.final_check.stop()
        self._transition("stops")
        self.requests.add(EndDrain())
        self.hello_exchange.end("completed" if event.completed else "leaving")
        if not was_running:
            return effects + self._leave(now)
        return [
            *effects,
            *self.hello_exchange.to_all(),
            *self.shutdown.stop(event.completed, self._leaving.since(now), now),
        ]

    def _must_stay(self) -> bool:
        """Whether other peers may rely on a message of this peer in the present round."""
        return self._rolling is not None and self._rolling.participant.must_stay()

    def _leave(self, now: float) -> list[Effect]:
        self._transition("leaves")
        return [*self.membership.leave(now), Halt(self._stop_reason, self._stop_code)]
