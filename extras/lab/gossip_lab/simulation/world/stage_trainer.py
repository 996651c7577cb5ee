"""Substitute for the layers of one stage in a simulated pipeline. Short vectors pass through the
stage, forward and backward. The outputs depend on all inputs of the stage."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal, assert_never

from gossip.core import Effect, Payload, PipelineTask, events
from gossip.faults import ActivationFault, PassResult, corrupt_pass_result
from gossip.vectors import bytes_for

from .toy_payloads import Values, bytes_of_state, noise_of, payload_of_values
from .toy_trainer import Said, ToyTrainer

WIDTH = 4  # number of elements of an activation
PASSED_ON = 0.5  # factor on an activation, or gradient, in each stage
SAVED_EVERY = 4  # number of rounds between two checkpoints of a stage
REBUILT_OF = ("checkpoint", "neighbours", "fresh")
"""Sources from which a lost stage may be rebuilt. The seed selects the source."""
STATE_BYTES = 2**16  # maximum size of a neighbouring stage's state
PULL = 0.05  # weight of the activations in an update
COLLECT_S = 0.0002


@dataclass(eq=False, repr=False)
class StageTrainer(ToyTrainer):
    """A ``ToyTrainer`` for one stage of a pipeline.

    The update of a step is the mean of one vector for each micro-batch. This vector depends only on
    the micro-batch, its activation, its gradient and the parameters. So all members of a stage
    compute the same vector for the same micro-batch.

    Args:
        stage, stages: Index of the stage, and number of stages.
        micro_batches: Number of micro-batches per step.
        compute_s: Bounds of the time for the forward and backward passes of all micro-batches of a
            step.
        lies: Attacks on the results of micro-batches.
        saved: Stage -> (round, state) of its last checkpoint, which all peers share.

    Attributes:
        told: Kind of attack -> number of attacks.
        passes: (round, micro-batch) of each backward pass, in order.
        gradients: (round, micro-batch) -> contribution of the micro-batch to the update.
    """

    _: KW_ONLY
    stage: int = 0
    stages: int = 1
    micro_batches: int = 1
    lies: tuple[ActivationFault, ...] = ()
    told: Counter[str] = field(default_factory=Counter)
    saved: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    passes: list[tuple[int, int]] = field(default_factory=list)
    gradients: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._kept: dict[int, list[float]] = {}  # micro-batch -> input, until the backward pass
        self._sum: dict[int, list[float]] = {}  # micro-batch in the sum -> its gradient
        # Input of an audited micro-batch, until its backward pass.
        self._audited: list[float] = []
        self.audits = 0  # number of audited micro-batches
        self._offered: events.Contributed | None = None

    def on_start(self, now: float) -> list[tuple[float, Said]]:
        nbytes = bytes_for(WIDTH)
        lots = hashlib.blake2b(f"lots/{self.seed}/{self.peer}/{self.incarnation}".encode())
        sizes = (nbytes if self.stage else 0, nbytes if self.stage < self.stages - 1 else 0)
        layout = hashlib.blake2b(f"stage {self.stage}".encode(), digest_size=16).digest()
        return [
            (
                after_s,
                replace(event, layout=layout, activation_bytes=sizes, lots=lots.digest()[:16])
                if isinstance(event, events.Prepared)
                else event,
            )
            for after_s, event in super().on_start(now)
        ]

    def is_still_valid(self, event: Said) -> bool:
        return not isinstance(event, events.Contributed) or event is self._offered

    def put_off(self, said: Said) -> Sequence[Effect]:
        return ()

    def on_effect(self, effect: Effect, now: float) -> list[tuple[float, Said]]:
        if isinstance(effect, PipelineTask):
            return self._run(effect)
        if isinstance(effect, events.StartRound | events.Apply | events.Restore):
            self._offered = None
        if isinstance(effect, events.StartRound):
            self._kept, self._sum = {}, {}
            return [] if self._trains(effect.round_id) else self._start(effect)
        if isinstance(effect, events.RebuildState):
            return [(self.pace.snapshot_s, self._rebuild(effect, now))]
        said = super().on_effect(effect, now)
        if isinstance(effect, events.Apply) and self.next_round % SAVED_EVERY == 0:
            self.saved[self.stage] = self.next_round, self._here.tobytes()
        return said

    def _rebuild(self, task: events.RebuildState, now: float) -> events.StateRebuilt:
        way = REBUILT_OF[self.seed % len(REBUILT_OF)]
        at, saved = self.saved.get(self.stage, (0, b""))
        beside = [at for at in (self.stage - 1, self.stage + 1) if 0 <= at < self.stages]
        states = [bytes_of_state(payload) for _, payload in task.beside]
        source: Literal["checkpoint", "neighbours", "fresh"] = "fresh"
        if way == "neighbours" and not task.is_last:
            needs = tuple([(stage, STATE_BYTES) for stage in beside])
            return events.StateRebuilt(task.round_id, "", needs=needs)
        if way == "checkpoint" and 0 < at <= task.round_id:
            source, self._here = "checkpoint", array("f", saved)
        elif states:
            source, nbytes = "neighbours", len(self._here.tobytes())
            found = [array("f", state[:nbytes]) for state in states]
            self._here = array("f", [sum(each) / len(found) for each in zip(*found, strict=True)])
        self.next_round, self.changed_at = task.round_id, now
        step = at if source == "checkpoint" else 0
        return events.StateRebuilt(task.round_id, source, step, self.digest)

    def _run(self, task: PipelineTask) -> list[tuple[float, Said]]:
        match task:
            case events.RunForward():
                return [self._timed(self._forward(task))]
            case events.RunBackward():
                return [self._timed(self._backward(task))]
            case events.DropForward():
                self._kept.pop(task.micro_batch, None)
                return []
            case events.ResetSum():
                self._kept, self._sum = {}, {}
                return []
            case events.CollectUpdate():
                return [(COLLECT_S, self._collect(task))]
            case _:
                assert_never(task)

    def _timed(self, done: events.ForwardDone | events.BackwardDone) -> tuple[float, Said]:
        """Return the duration of a finished pass, and the event with this duration."""
        took_s = self.pace.draw_s(self.rng) / (2 * self.micro_batches)
        return took_s, replace(done, took_us=round(1e6 * took_s))

    def _forward(self, task: events.RunForward) -> events.ForwardDone:
        where = f"{self.seed}/{task.round_id}/{task.micro_batch}/{self.stage}"
        read = noise_of(f"{where}/input", WIDTH)
        came = read if task.payload is None else task.payload.data.tolist()
        if task.audit:
            self._audited, self.audits = came, self.audits + 1
        else:
            self._kept[task.micro_batch] = came
        told = (task.round_id, task.micro_batch, task.attempt)
        output = self._lied("output", task, self._output(came, where))
        return events.ForwardDone(*told, output, task.audit)

    def _lied(
        self,
        about: PassResult,
        task: events.RunForward | events.RunBackward,
        truth: Payload | None,
    ) -> Payload | None:
        """Return the payload to send in place of ``truth``, or ``truth`` itself if this result is
        not attacked."""
        if truth is None or not self.lies:
            return truth
        about = "audit" if task.audit else about
        where = self.peer, task.round_id, task.micro_batch
        said = corrupt_pass_result(self.lies, about, where, truth.data)
        if said is truth.data:
            return truth
        self.told.update(lie.kind for lie in self.lies if lie.lies_about == about)
        return payload_of_values(said.tolist(), digest=True)

    def _output(self, came: Values, where: str) -> Payload | None:
        if self.stage == self.stages - 1:
            return None
        noise = noise_of(f"{where}/dropout", WIDTH)
        moved = zip(came, self._here, noise, strict=False)
        values = [PASSED_ON * value + PULL * (here + z) for value, here, z in moved]
        return payload_of_values(values, digest=True)

    def _backward(self, task: events.RunBackward) -> events.BackwardDone:
        micro_batch = task.micro_batch
        if task.audit:
            gradient = self._audited if task.payload is None else task.payload.data.tolist()
            told = (task.round_id, micro_batch, task.attempt, self._back(task, gradient))
            return events.BackwardDone(*told, 0, audit=True)
        came = self._kept.pop(micro_batch, None)
        assert came is not None, f"micro-batch {micro_batch} goes backward but was not kept"
        assert micro_batch not in self._sum, f"micro-batch {micro_batch} is in the sum already"
        gradient = came if task.payload is None else task.payload.data.tolist()
        self._sum[micro_batch] = self.gradient_of(task.round_id, micro_batch, came, gradient)
        self.passes.append((task.round_id, micro_batch))
        self.gradients[task.round_id, micro_batch] = self._sum[micro_batch]
        return events.BackwardDone(
            task.round_id,
            micro_batch,
            task.attempt,
            self._back(task, gradient),
            self.batch,
            self.distance if self.stage == self.stages - 1 else None,
        )

    def _back(self, task: events.RunBackward, gradient: Values) -> Payload | None:
        """Return the gradient for the previous stage, false if it is attacked."""
        moved = zip(gradient, self._here, strict=False)
        values = [PASSED_ON * value + PULL * here for value, here in moved]
        payload = payload_of_values(values, digest=True) if self.stage else None
        return self._lied("gradient", task, payload)

    def gradient_of(
        self, round_id: int, micro_batch: int, came: Values, gradient: Values
    ) -> list[float]:
        """Return the contribution of a micro-batch to the update, computed from the present
        parameters."""
        noise = noise_of(f"{self.seed}/{round_id}/{micro_batch}", len(self._target))
        flow = PULL * (sum(came) + sum(gradient)) / WIDTH
        return [
            self.step_size * (to - here + self.noise * z) + PULL * flow
            for to, here, z in zip(self._target, self._here, noise, strict=True)
        ]

    def _collect(self, task: events.CollectUpdate) -> events.Contributed:
        named = list(task.micro_batches)
        assert named == sorted(self._sum), f"{named} requested, but the sum has {sorted(self._sum)}"
        mean = [sum(parts) / len(named) for parts in zip(*self._sum.values(), strict=True)]
        self._offered = events.Contributed(
            task.round_id,
            self.batch * len(named),
            tuple([payload_of_values(part) for part in self._cut(mean)]) if named else (),
            loss=self.distance if self.stage == self.stages - 1 and named else None,
            rates=self.rates if named else (),
            micro_batches=task.micro_batches,
        )
        self.history.computed.append((task.round_id, self._offered.samples))
        return self._offered
