"""One member of a stage of a pipeline, with neighbours that a test controls."""

from __future__ import annotations

from gossip.core import (
    Activation,
    ActivationGradient,
    AuditVote,
    BackwardDone,
    CoreSettings,
    Counted,
    Effect,
    ForwardDone,
    Payload,
    PipelineMessage,
    PipelineSettings,
    Received,
    RunBackward,
    RunForward,
    Send,
    SetTimer,
    StartRound,
    Timers,
)
from gossip_pipelines.protocol import Auditor, MicroBatchFlow, StageBarrier

LINEAGE = b"lineage!"
STAGES = ((0, 1), (2, 3), (4, 5))
PATIENCE_S = 3.0


def payload(name: str) -> Payload:
    return Payload(name, 16, True, name.encode().ljust(16))


class Members:
    def __init__(self) -> None:
        self.skipped: set[int] = set()
        self.lives: dict[int, int] = {}

    def skip_reason(self, peer: int) -> str:
        return "dead" if peer in self.skipped else ""

    def incarnation_of(self, peer: int) -> int:
        return self.lives.get(peer, 0)


class Rig:
    """The micro-batch flow of one peer. ``begun``: the rounds of all other peers have begun."""

    def __init__(
        self,
        local: int,
        micro_batches: int = 4,
        in_flight: int = 0,
        stages: tuple[tuple[int, ...], ...] = STAGES,
        audit: float = 0.0,
        begun: bool = True,
    ) -> None:
        pipeline = PipelineSettings(stages, micro_batches, in_flight, audit=audit)
        peers = tuple([peer for members in stages for peer in members])
        settings = CoreSettings(b"run", LINEAGE, 5, peers, pipeline=pipeline)
        self.stages, self.votes = stages, list[AuditVote]()
        self.members, self.timers, self.local = Members(), Timers[object](), local
        self.barrier = StageBarrier(local, settings, pipeline, self.members, self.timers)
        for peer in peers if begun else ():
            self.barrier.note_begun(peer, 0)
        patience = lambda: PATIENCE_S  # noqa: E731
        self.auditor = Auditor(self.barrier, self.timers, patience, self.votes.append)
        self.flow = MicroBatchFlow(
            self.barrier, self.timers, patience, lambda round_id: self.is_over, self.auditor
        )
        self.is_over = False
        self.flow.prepare((16, 16))
        self.now = 0.0
        self.stage = self.barrier.stage
        self.said: list[Effect] = []

    def begin(self, round_id: int = 0) -> list[Effect]:
        weights = dict.fromkeys(self.stages[self.stage], 1.0)
        return self._keep(self.flow.begin(StartRound(round_id, None), weights, self.now))

    def _keep(self, effects: list[Effect]) -> list[Effect]:
        self.said += effects
        return effects

    def hear(
        self, sender: int, message: PipelineMessage, sent: Payload | None = None, life: int = 0
    ) -> list[Effect]:
        event = Received(sender, life, message, sent)
        return self._keep(self.flow.on_message(event, max(0, self.flow.round_id), self.now))

    def activation(
        self, sender: int, micro_batch: int, attempt: int = 0, round_id: int = 0, life: int = 0
    ) -> list[Effect]:
        sent = payload(f"x{round_id}.{micro_batch}")
        message = Activation(LINEAGE, round_id, self.stage, micro_batch, attempt, sent.digest)
        return self.hear(sender, message, sent, life)

    def gradient(self, sender: int, micro_batch: int, attempt: int = 0) -> list[Effect]:
        sent = payload(f"g{micro_batch}")
        message = ActivationGradient(LINEAGE, 0, self.stage, micro_batch, attempt, sent.digest)
        return self.hear(sender, message, sent)

    def mate_counts(self, sender: int, number: int, *micro_batches: int) -> list[Effect]:
        told = Counted(LINEAGE, 0, self.stage, number, micro_batches, False)
        return self.hear(sender, told)

    def forward(self, task: RunForward) -> list[Effect]:
        output = None if self.flow.last else payload(f"y{task.micro_batch}")
        done = ForwardDone(task.round_id, task.micro_batch, task.attempt, output)
        return self._keep(self.flow.on_forward_done(done, self.now))

    def backward(self, task: RunBackward) -> list[Effect]:
        back = None if self.flow.first else payload(f"b{task.micro_batch}")
        done = BackwardDone(task.round_id, task.micro_batch, task.attempt, back, 4)
        return self._keep(self.flow.on_backward_done(done))

    def view(self, *skipped: int) -> list[Effect]:
        self.members.skipped = set(skipped)
        return self._keep(self.flow.on_view_change(self.now))

    def begins(self, peer: int, life: int = 0) -> list[Effect]:
        """Deliver the news that the rounds of another peer have begun."""
        assert self.barrier.note_begun(peer, life)
        return self._keep(self.flow.on_begun(self.now))

    def fire(self, timer: SetTimer) -> list[Effect]:
        self.now = timer.at
        return self._keep(self.flow.on_timer(self.timers.fire(timer.token), self.now))  # type: ignore[arg-type]

    def compute(self, effects: list[Effect]) -> list[Effect]:
        """Carry out tasks, with instant replies of the next stage, until none is left. Return the
        last effects."""
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, RunForward):
                effects = self.forward(effect)
            elif isinstance(effect, RunBackward):
                effects = self.backward(effect)
            elif isinstance(effect, Send) and isinstance(effect.message, Activation):
                message = effect.message
                effects = self.gradient(effect.peer, message.micro_batch, message.attempt)
            else:
                continue
            waiting += effects
        return effects
