"""Steps of a peer with a stage. The trainer computes the passes that the node requests in a round,
and reconstructs the state of a lost stage."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, assert_never

import torch
from torch import Tensor

from gossip.core import events
from gossip.ipc import map_received, messages as control
from gossip.run import SavedStage
from gossip.training import GradientNorms, OwnStage, PeerRun

from .passes import StageWork, rows_of
from .rebuilding import StageModel, StageRebuilder
from .recutting import Recut, load_recut


class StageStep(OwnStage):
    """The stage of this peer in the rounds of the run."""

    def __init__(
        self,
        run: PeerRun,
        placed: StageModel,
        work: StageWork,
        optimizer: torch.optim.Optimizer,
        make_step: Callable[[Callable[[], None]], None],
    ) -> None:
        """``make_step``: runs a step of the script. Its argument is the function that computes the
        round."""
        self.stage, self.stages = placed.stage, len(placed.cut)
        self.model, self.optimizer = placed.model, optimizer
        self.norms = GradientNorms(placed.model)
        self._run, self._placed, self._work, self._make_step = run, placed, work, make_step
        self._rebuilder = StageRebuilder(placed, optimizer, run)
        self._commands: deque[tuple[control.StageCommand, memoryview | None]] = deque()
        self._beside: dict[int, memoryview] = {}  # States of other stages for a reconstruction.

    @property
    def activation_bytes(self) -> tuple[int, int]:
        return self._work.activation_bytes

    # --- steps ------------------------------------------------------------------------------------

    def step(self, x: Any, y: Any) -> float | None:
        plan, work = self._run.config.pipeline, self._work
        if plan is None:
            return self._step_alone(x, y)
        work.inputs = rows_of(x, plan, "inputs") if self.stage == 0 else ()
        work.targets = rows_of(y, plan, "targets") if self._placed.is_last else ()
        work.loss = None
        self._make_step(self._run_round)
        return work.loss

    def _step_alone(self, x: Tensor, y: Tensor) -> float | None:
        """Compute a step without a round, because this peer has all layers."""
        executor, device = self._work.executor, self._work.device
        executor.reset()
        executor.forward(self._run.step, 0, x.to(device), y.to(device))
        executor.backward(0)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= executor.samples
        self.optimizer.step()
        return executor.loss

    def _run_round(self) -> None:
        """Compute the passes that the node requests until the round is applied and the next round
        may begin."""
        node = self._run.node
        round_id = self._run.exchange.wait_go().round_id
        with node.applied.stepping():
            # A restarted node has no record of the computed passes, so the round begins again.
            while node.claim_go(round_id):
                self._work.begin()
                self._run_passes(round_id)
        if node.halted is None:
            node.serve_until_go()

    def _run_passes(self, round_id: int) -> None:
        """Compute passes until the round is applied, or until the node permits a new round or the
        same round again."""
        node = self._run.node

        def is_over() -> bool:
            return node.applied.round_id > round_id or node.may_go

        while True:
            node.serve(lambda: bool(self._commands) or is_over())
            if is_over():
                return
            self._follow(*self._commands.popleft())
            node.applied.note_progress()
            node.link.flush()

    def _follow(self, command: control.StageCommand, memory: memoryview | None) -> None:
        match command:
            case control.PassCommand():
                self._run.node.link.queue(*self._work.run(command, memory))
            case events.DropForward():
                self._work.executor.drop(command.micro_batch)
            case events.ResetSum():
                self._work.executor.reset()
            case control.CollectCommand():
                self._collect(command)
            case _ as never:
                assert_never(never)

    def _collect(self, command: control.CollectCommand) -> None:
        executor, model = self._work.executor, self._run.model
        assert executor.done == tuple(sorted(command.micro_batches)), (
            f"the update of {command.micro_batches} was requested, but it has {executor.done}"
        )
        if executor.samples:
            update, layout = model.updates[command.slot], model.trained.layout
            layout.flatten_gradients(update)
            update[: layout.trained] /= executor.samples
        loss = executor.loss
        self._run.node.link.queue(
            control.Contribute(
                command.round_id,
                command.slot,
                executor.samples,
                loss if loss is not None and math.isfinite(loss) else None,
                rates=model.rates if executor.samples else (),
                micro_batches=command.micro_batches,
            )
        )

    # --- messages of the node ---------------------------------------------------------------------

    def handle(self, message: control.StageMessage, fds: deque[int]) -> None:
        match message:
            case control.BesideCommand():
                self._beside[message.stage] = map_received(fds.popleft(), message.nbytes)
            case control.RebuildCommand():
                self._rebuild(message)
            case control.PassCommand(nbytes=nbytes) if nbytes:
                self._commands.append((message, map_received(fds.popleft(), nbytes)))
            case _:
                self._commands.append((message, None))

    def drop_commands(self, round_id: int) -> None:
        stale = [each for each, _ in self._commands if each.round_id < round_id]
        for command in stale:
            # The node sends the next pass only after a reply, so a dropped pass gets one, too.
            if isinstance(command, control.PassCommand):
                about = command.round_id, command.micro_batch, command.attempt, command.backward
                reply = control.PassReply(*about, 0, audit=command.audit)
                self._run.node.link.queue(reply)
        self._commands = deque(each for each in self._commands if each[0].round_id >= round_id)

    def forget_commands(self) -> None:
        self._commands.clear()

    # --- states -----------------------------------------------------------------------------------

    def _rebuild(self, message: control.RebuildCommand) -> None:
        beside, self._beside = self._beside, {}
        node, model = self._run.node, self._run.model
        rebuilt, extra = self._rebuilder.make(message.round_id, beside, message.is_last)
        if extra is not None:
            model.extra.load(dict(extra))
        if rebuilt.source:
            # Objects of the script that checkpoints save, such as a scheduler, now belong to this
            # round.
            is_saved = rebuilt.source == "checkpoint"
            node.note_loaded(message.round_id, rebuilt.step if is_saved else message.round_id)
            rebuilt = replace(rebuilt, state=model.plan_state().digest())
        node.link.queue(rebuilt)

    def recut(self, parts: Sequence[SavedStage]) -> Recut:
        return load_recut(self._placed, self.optimizer, parts, self._run.model.extra.check)
