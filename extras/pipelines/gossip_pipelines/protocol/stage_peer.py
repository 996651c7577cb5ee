"""A peer of a run whose model is split into stages: its rounds are those of its stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gossip.core import (
    HAS_COMMITTED_STATE,
    NOT_ADMITTED,
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
    Decision,
    Effect,
    Event,
    ForwardDone,
    HaltStateLost,
    Hello,
    MembershipMessage,
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
    StageView,
    StateAttestation,
    StateOffer,
    StateRebuilt,
    StateRequest,
    Stop,
    TakeState,
    end_of,
)
from gossip.errors import ConfigError
from gossip.topologies import Topology

from .audits import AuditTimer
from .barrier import BarrierTimer, StageBarrier
from .flow import FlowTimer
from .rebuild import RebuildTimer
from .stage import StagePipeline


class StagePeer(Peer):
    """The sans-IO core of a peer in one stage of a pipeline.

    Membership covers all peers of the run. Rounds, recovery and the quorum cover the peers of the
    stage, and ``pipeline`` connects the rounds with those of the other stages.

    Args: Those of ``Peer``. The settings are those of the run and have a pipeline.
    Raises: ConfigError: The topology has no servers, or the plan does not fit the peers.
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
        if not topology.rolling:
            raise ConfigError("a pipeline needs rounds with a server", "topology = rolling")
        self._run = settings
        stage = settings.of_stage(local)
        super().__init__(
            local, incarnation, stage, topology, control=control, bulk=bulk, seeds=seeds
        )
        plan, rounds = settings.pipeline, self._rolling
        assert plan is not None, "the settings are of a pipeline"
        assert rounds is not None, "checked above"
        table = self.membership.view
        barrier = StageBarrier(local, settings, plan, table, self.timers)
        rounds.wait_for_stages(barrier)
        self.pipeline = StagePipeline(settings, table, self.timers, barrier, rounds)

    def _known_peers(self) -> frozenset[PeerId]:
        return frozenset(self._run.everybody)

    def _members_of_rounds(self, table: MemberTable) -> StageView:
        return StageView(table, self.settings.peers)

    def _round_elsewhere(self) -> int | None:
        return self.pipeline.barrier.furthest()

    @property
    def weights(self) -> Mapping[PeerId, float]:
        return self.pipeline.flow.weights

    def stores(self) -> dict[str, int]:
        return self.pipeline.stores()

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = super().handle(event, now)
        return effects if self.over else effects + self.pipeline.begin_rounds(effects, now)

    def admit(self, sender: PeerId, message: Message) -> Admission:
        if self.phase in ("unprepared", "halted"):
            return NOT_ADMITTED
        if isinstance(message, Activation | ActivationGradient | AuditReply):
            return Admission(self.pipeline.flow.payload_bytes(sender, message))
        if isinstance(message, StateOffer) and not self.settings.may_be(sender):
            return Admission(self.pipeline.rebuild.payload_bytes(sender, message))
        return super().admit(sender, message)

    # --- events -----------------------------------------------------------------------------------

    def _dispatch(self, event: Event, now: float) -> list[Effect]:
        match event:
            case ForwardDone() | BackwardDone():
                return self.pipeline.on_trainer(event, now)
            case StateRebuilt():
                return self._on_rebuilt(event, now)
            case _:
                return super()._dispatch(event, now)

    def _on_arriving(self, event: Arriving, now: float) -> list[Effect]:
        of_stage = self.pipeline.is_of_stage(event.sender)
        if isinstance(event.message, StateOffer) and not of_stage:
            return self.pipeline.rebuild.on_arriving(event, now)
        return super()._on_arriving(event, now)

    def _on_received(self, event: Received, now: float) -> list[Effect]:
        """Handle a message, which may come from another stage with rounds of its own."""
        pipeline, sender, message = self.pipeline, event.sender, event.message
        of_stage = pipeline.is_of_stage(message.target if isinstance(message, Ack) else sender)
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
            return effects + pipeline.on_hello(event, message, self.phase == "running", now)
        if isinstance(message, StateRequest | StateAttestation | StateOffer):
            return self._on_state_of_stage(event, now)
        if not isinstance(message, PipelineMessage):
            return pipeline.refuse(event)
        if self.phase == "unprepared":
            return []
        return pipeline.on_message(event, self.phase == "running", now)

    def _on_state_of_stage(self, event: Received, now: float) -> list[Effect]:
        """Handle a message from another stage about a state that is rebuilt from its neighbours."""
        pipeline = self.pipeline
        if not isinstance(event.message, StateRequest):
            return pipeline.rebuild.on_message(event, now) if self.phase == "gathering" else []
        if not pipeline.is_neighbour_request(event):
            return pipeline.refuse(event)
        return self.recovery.on_message(event, self.phase in HAS_COMMITTED_STATE, now)

    def _on_due(self, timer: Any, now: float) -> list[Effect]:
        match timer:
            case RebuildTimer():
                return self.pipeline.on_timer(timer, now) if self.phase == "gathering" else []
            case BarrierTimer() | FlowTimer() | AuditTimer():
                return (
                    self.pipeline.on_timer(timer, now) if self.phase in HAS_COMMITTED_STATE else []
                )
            case _:
                return super()._on_due(timer, now)

    # --- gathering --------------------------------------------------------------------------------

    def _on_prepared(self, event: Prepared, now: float) -> list[Effect]:
        self.pipeline.flow.prepare(event.activation_bytes, event.lots)
        self.pipeline.rebuild.prepare(event.round_id, event.state)
        return super()._on_prepared(event, now)

    def _gather(self, now: float) -> list[Effect]:
        return [*self.pipeline.barrier.ask_others(), *super()._gather(now)]

    def _execute_decision(self, decision: Decision, now: float) -> list[Effect]:
        match decision:
            case RebuildStage(round_id):
                held = self.pipeline.rebuild.held(round_id)
                if held is not None:
                    return self._resume_with_stages(held, now)
                return self.pipeline.rebuild.begin(round_id)
            case HaltStateLost():
                # The other stages learn of it, and do not wait for this one.
                return self._end(end_of(decision), self.membership.leave(now))
            case TakeState():
                self.pipeline.rebuild.cancel()
        return super()._execute_decision(decision, now)

    def _begin(
        self,
        trigger: Literal["quorum is here", "training is over"],
        present: tuple[PeerId, ...],
        now: float,
    ) -> list[Effect]:
        return [*super()._begin(trigger, present, now), *self._greet_stages()]

    def _on_rebuilt(self, event: StateRebuilt, now: float) -> list[Effect]:
        """Handle a state that the trainer has made for the stage, or its request for others'."""
        if self.phase != "gathering":
            return []
        effects, done = self.pipeline.rebuild.on_rebuilt(event, now)
        return self._resume_with_stages(event, now) if done else effects

    def _resume_with_stages(self, event: StateRebuilt, now: float) -> list[Effect]:
        """Enter the round of the other stages with the state that the trainer has now."""
        # The other stages may have finished rounds while this state was made.
        round_id = max(event.round_id, self.bootstrap.elsewhere() or 0)
        lost = round_id - event.step
        told = {"round": round_id, "stage": self.pipeline.barrier.stage, "source": event.source}
        told |= {"lost": lost, "fresh": event.fresh}
        self._transition("stage rebuilt")
        self.membership.view.note_state(self.local, now)
        self.hello_exchange.adopt(event.state)
        self.rounds.future_buffer.begin_without(self.bootstrap.unheard())
        return [
            Report("stage_rebuilt", told),
            *self.pipeline.begin_anew(round_id, event.state),
            *self.rounds.start(now),
            *self.hello_exchange.to_all(),
            *self._greet_stages(),
        ]

    def _greet_stages(self) -> list[Effect]:
        """Send a hello to the peers of the other stages, which must know if this one trains."""
        return [self.hello_exchange.to(peer) for peer in self.pipeline.barrier.others()]

    # --- training, and leaving --------------------------------------------------------------------

    def _on_restored(self, event: Restored, now: float) -> list[Effect]:
        recovers, effects = self.phase == "recovering", super()._on_restored(event, now)
        resumes = recovers and self.phase == "running"
        return effects + (self._greet_stages() if resumes else [])

    def _on_change(self, change: Change, now: float) -> list[Effect]:
        pipeline, gathers = self.pipeline, self.phase == "gathering"
        effects = pipeline.rebuild.on_view_change(now) if gathers else []
        if pipeline.is_of_stage(change.peer):
            effects += super()._on_change(change, now)
        else:
            effects += self._announce(change)
        if self.phase == "running" and not gathers:
            if change.what == "joined":
                effects += pipeline.flow.on_joined(change.peer, now)
            effects += pipeline.on_view_change(now)
        return effects

    def _watch_quorum(self, now: float) -> list[Effect]:
        effects = super()._watch_quorum(now)
        if self.phase not in ("running", "recovering"):
            return effects
        reports, halt = self.pipeline.watch.check_lost_stages(self.rounds.round_id, now)
        end = [] if halt is None else self._end(halt, self.membership.leave(now))
        return [*effects, *reports, *end]

    def _contribute(self, event: Contributed, now: float) -> list[Effect]:
        current = self.pipeline.current(event)
        return [] if current is None else super()._contribute(current, now)

    def _on_stop(self, event: Stop, now: float) -> list[Effect]:
        draining, effects = self.phase == "draining", super()._on_stop(event, now)
        drains = not draining and self.phase == "draining"
        return effects + (self._greet_stages() if drains else [])
