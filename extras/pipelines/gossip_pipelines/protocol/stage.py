"""A peer's part in a pipeline: what its rounds, its micro-batches and the other stages have to do
with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, assert_never

from gossip.core import (
    Activation,
    ActivationGradient,
    ActivationRefused,
    AuditFinding,
    AuditReply,
    AuditRequest,
    BackwardDone,
    Contributed,
    CoreSettings,
    Counted,
    Effect,
    ForwardDone,
    Hello,
    MicroBatchesMissing,
    PeerId,
    Received,
    Report,
    RollingRounds,
    StageDone,
    StartRound,
    Timers,
    Withdraw,
    genesis,
)

from .audits import Auditor, AuditTimer
from .barrier import BarrierTimer, Presence, StageBarrier, StageProgress
from .flow import FlowTimer, MicroBatchFlow
from .rebuild import RebuildTimer, StageRebuild
from .stage_watch import StageWatch


class StagePipeline:
    """Args:
    settings: of the run, with all stages.
    rounds: of the own stage; ``barrier`` is their gate.
    """

    def __init__(
        self,
        settings: CoreSettings,
        members: Presence,
        timers: Timers[Any],
        barrier: StageBarrier,
        rounds: RollingRounds,
    ) -> None:
        self.settings, self.pipeline = settings, barrier.pipeline
        self.barrier, self.rounds = barrier, rounds
        patience_s = rounds.deadline.round_timeout_s
        auditor = Auditor(barrier, timers, patience_s, rounds.result_validator.note_audit)
        self.flow = MicroBatchFlow(
            barrier,
            timers,
            patience_s,
            lambda round_id: rounds.round_id > round_id,
            auditor if self.pipeline.audit else None,
        )
        self.rebuild = StageRebuild(settings, barrier, members, timers)
        self.watch = StageWatch(settings, barrier, members)
        self._refused: set[PeerId] = set()  # of whom it was reported

    def is_of_stage(self, peer: PeerId) -> bool:
        """Whether a peer is of the own stage: the rounds know of no others."""
        return self.pipeline.stage_of(peer) == self.barrier.stage

    def is_neighbour_request(self, event: Received) -> bool:
        """Whether it is one of a stage beside, which may have lost its state, that asks for
        ours."""
        request, stage = event.message, self.pipeline.stage_of(event.sender)
        beside = stage is not None and abs(stage - self.barrier.stage) == 1
        return beside and getattr(request, "lineage", b"") == self.rounds.settings.lineage

    def refuse(self, event: Received) -> list[Effect]:
        """Something of a round, or of a state, came from another stage. Said once of each."""
        if event.sender in self._refused:
            return []
        self._refused.add(event.sender)
        fields = {"subject": event.sender, "message": type(event.message).__name__}
        return [Report("other_stage", {**fields, "stage": self.pipeline.stage_of(event.sender)})]

    # --- what happens -----------------------------------------------------------------------------

    def begin_rounds(self, effects: Sequence[Effect], now: float) -> list[Effect]:
        """Return the effects of a round that begins with one of ``effects``."""
        starts = [effect for effect in effects if isinstance(effect, StartRound)]
        if not starts:
            return []
        locked, told = self.rounds.locked, self.barrier.begin(self._here())
        everybody = self.rounds.roster.peers
        working = tuple([peer for peer in everybody if peer not in locked])
        pass_us = self.rounds.replicated.pass_us(everybody)
        weights = self.barrier.weights(everybody, pass_us, working)
        return told + [each for start in starts for each in self.flow.begin(start, weights, now)]

    def on_message(self, event: Received, trains: bool, now: float) -> list[Effect]:
        """``trains``: this peer is in the training, and not before or behind it."""
        message = event.message
        match message:
            case StageDone():
                return self._on_done(event, message, now)
            case Counted(again=True) if self.is_of_stage(event.sender):
                held = self.rounds.resend_commits(event.sender, message.round_id)
                return held + self.flow.on_message(event, self._active_round(trains), now)
            case (
                Counted()
                | Activation()
                | ActivationGradient()
                | Withdraw()
                | ActivationRefused()
                | MicroBatchesMissing()
                | AuditRequest()
                | AuditReply()
                | AuditFinding()
            ):
                return self.flow.on_message(event, self._active_round(trains), now)
            case _:
                raise AssertionError(f"{type(message).__name__} is no message of a pipeline")

    def on_hello(self, event: Received, hello: Hello, trains: bool, now: float) -> list[Effect]:
        """Handle the hello of a peer of another stage. ``trains``: as for ``on_message``."""
        self.watch.note(event.sender, hello.stage == "completed")
        news = hello.begun and self.barrier.note_begun(event.sender, event.incarnation)
        return self.flow.on_begun(now) if news and trains else []

    def _active_round(self, trains: bool) -> int | None:
        return self.rounds.round_id if trains and self.rounds.mode == "active" else None

    def _on_done(self, event: Received, done: StageDone, now: float) -> list[Effect]:
        if done.lineage != self.settings.lineage:
            return []
        # Who has no state yet is in no round, and would be taken for one that is in the first.
        waits = self.rounds.mode == "off" and self.rounds.round_id == 0
        asked = done.asks and not waits
        answers = self.barrier.answer(event.sender, self._here()) if asked else []
        if not self.barrier.record_report(event.sender, event.incarnation, done):
            return answers
        return answers + self.rounds.pass_gate(now)

    def on_view_change(self, now: float) -> list[Effect]:
        """Somebody of any stage is skipped or back."""
        return self.rounds.pass_gate(now) + self.flow.on_view_change(now)

    def begin_anew(self, round_id: int, state: bytes) -> list[Effect]:
        """The stage goes on with a state that this peer's trainer has made, whose digest is
        ``state``: on a branch of its own, with all its peers in the roster."""
        rounds, stage = self.rounds, self.rounds.settings
        told = state + round_id.to_bytes(8, "little")
        chain = genesis(stage.run, stage.lineage, told)
        rounds.adopt(round_id, chain, rounds.replicated.first_snapshot())
        return self.barrier.broadcast_progress(self._here())

    def on_timer(
        self, timer: BarrierTimer | FlowTimer | AuditTimer | RebuildTimer, now: float
    ) -> list[Effect]:
        match timer:
            case RebuildTimer():
                return self.rebuild.on_timer(timer, now)
            case BarrierTimer(round_id):
                waits = self.rounds.is_committed and self.rounds.round_id == round_id
                return self.barrier.ask(self._here(), now) if waits else []
            case FlowTimer():
                return self.flow.on_timer(timer, now)
            case AuditTimer():
                return self.flow.on_audit_timer(timer, now)
            case _:
                assert_never(timer)

    def on_trainer(self, event: ForwardDone | BackwardDone, now: float) -> list[Effect]:
        if event.audit:
            return self.flow.on_audit_done(event, now)
        if isinstance(event, ForwardDone):
            return self.flow.on_forward_done(event, now)
        return self.flow.on_backward_done(event)

    def stores(self) -> dict[str, int]:
        """How much there is of what is bounded."""
        return {**self.flow.stores(), "stages' words": self.barrier.report_count}

    def current(self, event: Contributed) -> Contributed | None:
        """An update that is of the sum as it is, or of a collective operation, with the time that
        a micro-batch took; None: it is not."""
        if not event.collective and not self.flow.is_current(event):
            return None
        return replace(event, pass_us=self.flow.pass_us)

    def _here(self) -> StageProgress:
        rounds = self.rounds
        return StageProgress(
            rounds.round_id,
            rounds.round_id + rounds.is_committed,
            rounds.committed_roster(),
            rounds.committed_pass_us(),
            rounds.locked,
        )
