"""Peer of a run with a pipeline. It takes part in the rounds of its stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Literal

from gossip.core import (
    HAS_COMMITTED_STATE,
    NOT_ADMITTED,
    STATE_LOST,
    Ack,
    Activation,
    ActivationGradient,
    Admission,
    Arriving,
    AuditReply,
    BackwardDone,
    Change,
    Contributed,
    CoreSettings,
    Counted,
    Decision,
    Effect,
    Event,
    ForwardDone,
    Halt,
    Hello,
    MembershipMessage,
    MembersView,
    MemberTable,
    Message,
    Peer,
    PeerId,
    PipelineMessage,
    Prepared,
    RebuildStage,
    Received,
    Report,
    Restored,
    Send,
    StageDone,
    StartRound,
    StateAttestation,
    StateOffer,
    StateRebuilt,
    StateRequest,
    Stop,
    TakeState,
    genesis,
)
from gossip.errors import ConfigError
from gossip.topologies import Topology

from .audits import Auditor, AuditTimer
from .barrier import BarrierTimer, StageBarrier
from .flow import FlowTimer, MicroBatchFlow
from .rebuild import RebuildTimer, StageRebuild
from .stage_rounds import StageRounds
from .stage_view import StageView
from .stage_watch import StageWatch


class StagePeer(Peer):
    """The sans-IO core of a peer in one stage of a pipeline.

    Membership covers all peers of the run. Rounds, recovery and the quorum cover only the peers of
    the stage. ``barrier`` connects the rounds of this stage with those of the other stages.

    Args: As for ``Peer``. The settings are those of the whole run, with a pipeline.
    Raises: ConfigError: The topology has no servers, or the plan does not fit the peers.
    """

    rounds: StageRounds

    def __init__(
        self,
        local: PeerId,
        incarnation: int,
        settings: CoreSettings,
        topology: Topology,
        **addresses: Any,
    ) -> None:
        if not topology.rolling:
            raise ConfigError("a pipeline needs rounds with a server", "topology = rolling")
        self._run = settings
        super().__init__(local, incarnation, settings.of_stage(local), topology, **addresses)
        rounds = self.rounds
        table = self.membership.view
        timers = self.timers
        patience_s = rounds.deadline.round_timeout_s
        note_audit = rounds.participant.result_validator.note_audit
        auditor = Auditor(self.barrier, timers, patience_s, note_audit)
        self.flow = MicroBatchFlow(
            self.barrier, timers, patience_s, lambda round_id: rounds.round_id > round_id, auditor
        )
        self.rebuild = StageRebuild(settings, self.barrier, table, timers)
        self.watch = StageWatch(settings, self.barrier, table)
        self._refused: set[PeerId] = set()  # Senders that ``_refuse`` has reported.

    def _known_peers(self) -> frozenset[PeerId]:
        return frozenset(self._run.everybody)

    def _members_of_rounds(self, table: MemberTable) -> StageView:
        return StageView(table, self.settings.peers)

    def _make_rounds(self, members: MembersView, rng: Random) -> StageRounds:
        pipeline, table = self._run.pipeline, self.membership.view
        assert pipeline is not None, "the settings are of a pipeline"
        self.barrier = StageBarrier(self.local, self._run, pipeline, table, self.timers)
        return StageRounds(
            self.barrier, self.local, self.settings, self.topology, members, self.timers
        )

    def _round_elsewhere(self) -> int | None:
        return self.barrier.furthest()

    @property
    def weights(self) -> Mapping[PeerId, float]:
        return self.flow.weights

    def stores(self) -> dict[str, int]:
        return {**self.flow.stores(), "stages' words": self.barrier.report_count}

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = super().handle(event, now)
        return effects if self.over else effects + self._begin_rounds(effects, now)

    def admit(self, sender: PeerId, message: Message) -> Admission:
        if self.phase in ("unprepared", "halted"):
            return NOT_ADMITTED
        if isinstance(message, Activation | ActivationGradient | AuditReply):
            return Admission(self.flow.payload_bytes(sender, message))
        if isinstance(message, StateOffer) and not self.settings.may_be(sender):
            return Admission(self.rebuild.payload_bytes(sender, message))
        return super().admit(sender, message)

    # --- events -----------------------------------------------------------------------------------

    def _dispatch(self, event: Event, now: float) -> list[Effect]:
        match event:
            case ForwardDone() | BackwardDone() if event.audit:
                return self.flow.on_audit_done(event, now)
            case ForwardDone():
                return self.flow.on_forward_done(event, now)
            case BackwardDone():
                return self.flow.on_backward_done(event)
            case StateRebuilt():
                return self._on_rebuilt(event, now)
            case _:
                return super()._dispatch(event, now)

    def _on_arriving(self, event: Arriving, now: float) -> list[Effect]:
        if isinstance(event.message, StateOffer) and not self._is_of_stage(event.sender):
            return self.rebuild.on_arriving(event, now)
        return super()._on_arriving(event, now)

    def _on_received(self, event: Received, now: float) -> list[Effect]:
        """Process a message, which may be from a stage with other rounds."""
        sender, message = event.sender, event.message
        of_stage = self._is_of_stage(message.target if isinstance(message, Ack) else sender)
        if not isinstance(message, PipelineMessage) and of_stage:
            return super()._on_received(event, now)
        if not self.membership.accept_sender(sender, event.incarnation, now):
            return []
        if isinstance(message, MembershipMessage):
            return self.membership.on_message(sender, event.incarnation, message, now)
        if isinstance(message, Hello):
            effects = self.membership.learn(
                sender, message.address, message.bulk, event.incarnation, now
            )
            self.watch.note(sender, message.stage == "completed")
            news = message.begun and self.barrier.note_begun(sender, event.incarnation)
            begins = news and self.phase == "running"
            return effects + (self.flow.on_begun(now) if begins else [])
        if isinstance(message, StateRequest | StateAttestation | StateOffer):
            return self._on_state_of_stage(event, now)
        if not isinstance(message, PipelineMessage):
            return self._refuse(event)
        if self.phase == "unprepared":
            return []
        if isinstance(message, StageDone):
            return self._on_done(event, message, now)
        effects = []
        if isinstance(message, Counted) and message.again and of_stage:
            effects = self.rounds.resend_commits(sender, message.round_id)
        active = self.phase == "running" and self.rounds.mode == "active"
        round_id = self.rounds.round_id if active else None
        return effects + self.flow.on_message(event, round_id, now)

    def _is_of_stage(self, peer: PeerId) -> bool:
        """Whether a peer is in this stage. The rounds contain only peers of this stage."""
        return self.barrier.pipeline.stage_of(peer) == self.barrier.stage

    def _refuse(self, event: Received) -> list[Effect]:
        """Report that a message of a round or of a state transfer is from another stage. Each
        sender is reported once."""
        if event.sender in self._refused:
            return []
        self._refused.add(event.sender)
        fields = {
            "subject": event.sender,
            "message": type(event.message).__name__,
            "stage": self.barrier.pipeline.stage_of(event.sender),
        }
        return [Report("other_stage", fields)]

    def _on_done(self, event: Received, done: StageDone, now: float) -> list[Effect]:
        if done.lineage != self._run.lineage:
            return []
        # A peer without a state is in no round. A reply would mean that it is in round 0.
        waits = self.rounds.mode == "off" and self.rounds.round_id == 0
        asked = done.asks and not waits
        answers: list[Effect] = [Send(event.sender, self._here())] if asked else []
        if not self.barrier.record_report(event.sender, event.incarnation, done):
            return answers
        return answers + self.rounds.pass_barrier(now)

    def _here(self) -> StageDone:
        rounds = self.rounds
        return self.barrier.report(
            rounds.round_id,
            rounds.round_id + rounds.is_committed,
            rounds.committed_roster(),
            rounds.committed_pass_us(),
            rounds.locked,
        )

    def _on_state_of_stage(self, event: Received, now: float) -> list[Effect]:
        """Process a message of another stage about the reconstruction of a state."""
        request = event.message
        stage = self.barrier.pipeline.stage_of(event.sender)
        if not isinstance(request, StateRequest):
            return self.rebuild.on_message(event, now) if self.phase == "gathering" else []
        # A neighbouring stage that has lost its state may request the state of this stage.
        beside = stage is not None and abs(stage - self.barrier.stage) == 1
        if not beside or request.lineage != self.settings.lineage:
            return self._refuse(event)
        return self._on_state_message(event, now)

    def _on_due(self, timer: Any, now: float) -> list[Effect]:
        match timer:
            case RebuildTimer():
                return self.rebuild.on_timer(timer, now) if self.phase == "gathering" else []
            case BarrierTimer() | FlowTimer() | AuditTimer() if (
                self.phase not in HAS_COMMITTED_STATE
            ):
                return []
            case BarrierTimer(round_id):
                waits = self.rounds.is_committed and self.rounds.round_id == round_id
                return self.barrier.ask(self._here(), now) if waits else []
            case FlowTimer():
                return self.flow.on_timer(timer, now)
            case AuditTimer():
                return self.flow.on_audit_timer(timer, now)
            case _:
                return super()._on_due(timer, now)

    # --- gathering --------------------------------------------------------------------------------

    def _on_prepared(self, event: Prepared, now: float) -> list[Effect]:
        self.flow.prepare(event.activation_bytes, event.lots)
        self.rebuild.prepare(event.round_id, event.state)
        return super()._on_prepared(event, now)

    def _gather(self, now: float) -> list[Effect]:
        return [*self.barrier.ask_others(), *super()._gather(now)]

    def _execute_decision(self, decision: Decision, now: float) -> list[Effect]:
        match decision:
            case RebuildStage(round_id):
                held = self.rebuild.held(round_id)
                if held is not None:
                    return self._resume_with_stages(held, now)
                return self.rebuild.begin(round_id)
            case Halt() if decision.exit_code == STATE_LOST:
                # The end is announced, so that the other stages do not wait for this stage.
                return self._end(decision, self.membership.leave(now))
            case TakeState():
                self.rebuild.cancel()
        return super()._execute_decision(decision, now)

    def _begin(
        self,
        trigger: Literal["quorum is here", "training is over"],
        present: tuple[PeerId, ...],
        now: float,
    ) -> list[Effect]:
        return [*super()._begin(trigger, present, now), *self._greet_stages()]

    def _on_rebuilt(self, event: StateRebuilt, now: float) -> list[Effect]:
        """Process the trainer's reply: a state, or a request for the states of other stages."""
        if self.phase != "gathering":
            return []
        effects, done = self.rebuild.on_rebuilt(event, now)
        return self._resume_with_stages(event, now) if done else effects

    def _resume_with_stages(self, event: StateRebuilt, now: float) -> list[Effect]:
        """Begin the round of the other stages with the state that the trainer has."""
        # The other stages may have completed rounds while the state was created.
        round_id = max(event.round_id, self.bootstrap.elsewhere() or 0)
        fields = {
            "round": round_id,
            "stage": self.barrier.stage,
            "source": event.source,
            "lost": round_id - event.step,
            "fresh": event.fresh,
        }
        self._transition("stage rebuilt")
        self.membership.view.note_state(self.local, now)
        self.hello_exchange.adopt(event.state)
        self.rounds.future_buffer.begin_without(self.bootstrap.unheard())
        # The new chain depends only on the state and the round, so all peers of the stage have it.
        origin = event.state + round_id.to_bytes(8, "little")
        chain = genesis(self.settings.run, self.settings.lineage, origin)
        self.rounds.adopt(round_id, chain, self.rounds.replicated.first_snapshot())
        return [
            Report("stage_rebuilt", fields),
            *self.barrier.broadcast(self._here()),
            *self.rounds.start(now),
            *self.hello_exchange.to_all(),
            *self._greet_stages(),
        ]

    def _greet_stages(self) -> list[Effect]:
        """Send a hello to the other stages. It contains whether this peer has begun its rounds."""
        return [self.hello_exchange.to(peer) for peer in self.barrier.others()]

    # --- training, and leaving --------------------------------------------------------------------

    def _begin_rounds(self, effects: Sequence[Effect], now: float) -> list[Effect]:
        """If ``effects`` begin a round, return the additional effects that it needs."""
        starts = [effect for effect in effects if isinstance(effect, StartRound)]
        if not starts:
            return []
        locked, reports = self.rounds.locked, self.barrier.begin(self._here())
        roster = self.rounds.roster.peers
        working = tuple([peer for peer in roster if peer not in locked])
        pass_us = self.rounds.replicated.pass_us(roster)
        weights = self.barrier.weights(roster, pass_us, working)
        return reports + [each for start in starts for each in self.flow.begin(start, weights, now)]

    def _on_restored(self, event: Restored, now: float) -> list[Effect]:
        recovers = self.phase == "recovering"
        effects = super()._on_restored(event, now)
        resumes = recovers and self.phase == "running"
        return effects + (self._greet_stages() if resumes else [])

    def _on_change(self, change: Change, now: float) -> list[Effect]:
        gathers = self.phase == "gathering"
        effects = self.rebuild.on_view_change(now) if gathers else []
        if self._is_of_stage(change.peer):
            effects += super()._on_change(change, now)
        else:
            effects += self._announce(change)
        if self.phase == "running" and not gathers:
            if change.what == "joined":
                effects += self.flow.on_joined(change.peer, now)
            effects += self.rounds.pass_barrier(now) + self.flow.on_view_change(now)
        return effects

    def _watch_quorum(self, now: float) -> list[Effect]:
        effects = super()._watch_quorum(now)
        if self.phase not in ("running", "recovering"):
            return effects
        reports, halt = self.watch.check_lost_stages(self.rounds.round_id, now)
        end = [] if halt is None else self._end(halt, self.membership.leave(now))
        return [*effects, *reports, *end]

    def _contribute(self, event: Contributed, now: float) -> list[Effect]:
        """Contribute an update, with the time of a micro-batch, if it belongs to the current
        sum."""
        if not event.collective and not self.flow.is_current(event):
            return []
        return super()._contribute(replace(event, pass_us=self.flow.pass_us), now)

    def _on_stop(self, event: Stop, now: float) -> list[Effect]:
        draining = self.phase == "draining"
        effects = super()._on_stop(event, now)
        drains = not draining and self.phase == "draining"
        return effects + (self._greet_stages() if drains else [])
