"""The model of this peer, and the memory for updates and results that it shares with its node."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._dynamo.callback import callback_handler  # imported by the first optimizer anyway
from torch.autograd.grad_mode import _unsafe_preserve_version_counter as keep_versions

from gossip.aggregators import Memory, Sender
from gossip.config import RunConfig
from gossip.errors import GossipError
from gossip.ipc import Arena, allocate, clip, map_bytes, map_received, messages as control
from gossip.topologies import draw
from gossip.vectors import WireFormat, fragment_of, is_finite

from .feedback import UpdateEncoder
from .layout import Layout
from .optimizer import only_reads_gradients, staying_in_mode, without_gradients
from .own_state import OwnState, plan_own, plan_whole
from .rates import learning_rate_of, rates_of, stepping_with
from .seeding import drawing_from
from .state import (
    StateBundle,
    StateFile,
    load_document,
    plan_checkpoint,
    plan_state,
    read_packed_state,
    sizes_of,
)
from .stepping import EveryStep


@dataclass(frozen=True)
class TrainedModel:
    """Model, optimizer, and the layout of the model in a flat vector.

    Attributes:
        inner_step: Original step of the optimizer, without the exchange.
        layout: Layout of the whole model.
        wire: Format of the model's updates.
        parts: Layouts of the model's fragments (``Layout.cut``), or only the layout of the whole
            model.
        clip: Maximum norm of an aggregate, under the key ``clip_norm``; empty if there is no limit.
            Peers agree on this value in the same way as on settings of parameter groups.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    inner_step: Callable[[], object]
    layout: Layout
    wire: WireFormat
    parts: tuple[Layout, ...]
    clip: dict[str, Any]


class CompileWatch:
    """Recorder of compilations by torch.compile in this process. It writes the start and end of
    each compilation to the shared memory, so that other peers can wait for a compiling peer. A peer
    that has compiled keeps its batch size, so that it does not compile again."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        callback_handler.register_start_callback(self._begins)
        callback_handler.register_end_callback(self._ends)

    def _begins(self, *about: Any) -> None:
        self._arena.note_compiling(True)

    def _ends(self, *about: Any) -> None:
        self._arena.note_compiling(False)

    def close(self) -> None:
        """Stop watching."""
        if self._begins in callback_handler.start_callbacks:  # unless torch has cleared them
            callback_handler.remove_start_callback(self._begins)
            callback_handler.remove_end_callback(self._ends)


class LocalModel:
    """The model of this peer, and the memory that it shares with its node.

    Attributes:
        trained: Model, optimizer and layout, set by ``attach``.
        extra: State in addition to model and optimizer (``ExtraState``).
        stepper: Strategy for the steps between two rounds.
        arena: The shared memory (``open_arena``).
        updates: Slots for updates in the shared memory.
        encoder: Encoder of updates; None if they are not encoded.
        sender_memory: Memory of this peer's sender, such as momentum, for one fragment after the
            other. It is not part of the state that peers share.
        exchanged: Parameters that the last update covers; empty if there is no update.
        is_finite: Whether all elements of the last update are finite.
        steps_directly: Whether the optimizers step directly with the gradients, because no peer,
            encoding or clipping would change them. True only if the script trains alone.
        has_kinds: Whether the script has several optimizers, each with its own steps.
        measure_gradients: Function to call before the optimizer steps with a result.
        changes: Number of changes of the parameters.
        steps: Number of rounds that have stepped the optimizer on this peer.
        overtakes: Number of changes of the parameters other than steps of the current kind. A
            script with several optimizers may hold an autograd graph.
    """

    trained: TrainedModel
    extra: Any
    arena: Arena

    def __init__(self, config: RunConfig, sender: Sender | None) -> None:
        """
        Args:
            sender: Function that transforms an update before it is sent.
        """
        self._sender, self._config = sender, config
        self.stepper = EveryStep()
        self._lends = config.peers_max > 1  # whether the script's .grad may be a view of a result
        self.encoder: UpdateEncoder | None = None
        self.sender_memory: Memory | None = None
        self.exchanged: tuple[torch.Tensor, ...] = ()
        self._filled: int | None = None  # slot with the last update
        self.is_finite = self.steps_directly = self.has_kinds = False
        self.measure_gradients: Callable[[], None] = lambda: None
        self.changes = self.steps = self.overtakes = 0

    # --- memory -----------------------------------------------------------------------------------

    def attach(self, trained: TrainedModel, stepper: EveryStep) -> None:
        """Attach the prepared model."""
        self.trained, self.stepper = trained, stepper
        plain, fragments = trained.wire.is_plain, len(trained.parts)
        self.encoder = None if plain else UpdateEncoder(trained.wire, fragments)

    def open_arena(self) -> None:
        """Create the memory that is shared with a node."""
        trained = self.trained
        self.arena = Arena.create(trained.parts[0].elements, trained.wire.arena_bytes)
        self._compile_watch = CompileWatch(self.arena)
        arena = self.arena
        self.updates, self._parameters, self._results, self._mixes = [
            [torch.from_numpy(vector) for vector in vectors]
            for vectors in (arena.updates, arena.parameters, arena.results, arena.mixes)
        ]
        for slots in (self.updates, self._parameters, self._results, self._mixes):
            trained.layout.lend_slots(slots)

    def renew_arena(self) -> None:
        """Create new shared memory for a restarted node, and copy the last update. The old memory
        cannot be mapped for writing again if the dead node has shared it with other peers."""
        former, updates, filled = self.arena, self.updates, self._filled
        self._compile_watch.close()
        self._forget_slots()
        self.open_arena()
        if filled is not None:
            self.updates[filled].copy_(updates[filled])
            np.copyto(self.arena.encoded[filled], former.encoded[filled])
        if former.compiled:
            self.arena.note_compiling(False)
        former.close()

    def _forget_slots(self) -> None:
        for part in self.trained.parts:
            part.forget_slots()

    def close(self) -> None:
        self._forget_slots()
        self.updates = self._parameters = self._results = self._mixes = []
        self._compile_watch.close()
        self.arena.close()

    # --- updates ----------------------------------------------------------------------------------

    @property
    def learning_rate(self) -> float:
        return learning_rate_of(self.trained.optimizer.param_groups)

    @property
    def rates(self) -> tuple[float, ...]:
        """Settings of the optimizer's next step, as numbers (``rates_of``)."""
        return rates_of(self._settings)

    @property
    def _settings(self) -> list[dict[str, Any]]:
        return [*self.trained.optimizer.param_groups, self.trained.clip]

    def _fragment_of(self, round_id: int, collectives: int) -> int:
        return fragment_of(round_id, collectives, len(self.trained.parts))

    def fill_update(self, go: control.StartRoundCommand) -> None:
        """Write this peer's update for a round into the slot of the round."""
        if self.steps_directly:
            self.is_finite = True
            return
        slot, fragment = go.slot, self._fragment_of(go.round_id, go.collectives)
        self._filled = slot
        part = self.trained.parts[fragment]
        self.exchanged = part.parameters
        self.is_finite = part.flatten_gradients(self.updates[slot])
        if self._sender:
            self._transform(self._sender, self.updates[slot][: part.trained], fragment)
        update = self.arena.updates[slot]
        if self.encoder is not None:
            self.encoder.encode(update, self.arena.encoded[slot], go.round_id, fragment)
        if self._sender or self.encoder is not None:
            self.is_finite = is_finite(update)

    def _transform(self, sender: Sender, update: torch.Tensor, fragment: int) -> None:
        steps = len(sender.steps)
        start, stop = fragment * steps, (fragment + 1) * steps
        memory = self.sender_memory or (None,) * (steps * len(self.trained.parts))
        sent, kept = sender(update, memory[start:stop])
        self.sender_memory = (*memory[:start], *kept, *memory[stop:])
        if sent is not update:
            update.copy_(sent)

    def move_update(self, before: int, slot: int) -> None:
        """Copy an update from the slot ``before`` to ``slot``."""
        self._filled = slot
        self.updates[slot].copy_(self.updates[before])
        np.copyto(self.arena.encoded[slot], self.arena.encoded[before])

    def encode_again(self, go: control.StartRoundCommand) -> None:
        """Encode the update in the slot of ``go`` again, because it was encoded for an earlier
        round."""
        if self.encoder is not None:
            update, encoded = self.arena.updates[go.slot], self.arena.encoded[go.slot]
            self.encoder.encode_again(update, encoded, go.round_id)
            self.is_finite = is_finite(update)

    def flatten_parameters(self, slot: int) -> None:
        self.trained.layout.flatten_parameters(self._parameters[slot])

    # --- results ----------------------------------------------------------------------------------

    def apply(self, message: control.ApplyCommand, is_own_kind: bool, in_step: bool) -> None:
        """Apply the result of a round to the model.

        Args:
            is_own_kind: Whether the round makes a step of the current kind on this peer.
            in_step: Whether ``optimizer.step()`` runs, so that gradients may be overwritten.
        """
        trained = self.trained
        with self.overtaking(not is_own_kind):
            self.changes += 1
            self.steps += 1
            if message.mix_scale:
                trained.layout.add_to_parameters(self._mixes[message.slot], message.mix_scale)
            if not self.steps_directly:
                # Outside of a step the script may be accumulating gradients.
                with without_gradients(() if in_step else trained.layout.parameters):
                    self._step_with(message)
            if not self.steps & (self.steps - 1):
                # Raise UnsupportedModel early: check the state after 1, 2, 4, 8, ... steps. An
                # optimizer creates its state in the first step, but may extend it later.
                plan_state(trained.model, trained.optimizer, {})

    @contextmanager
    def overtaking(self, wanted: bool) -> Iterator[None]:
        """Allow, in the ``with`` block, changes of parameters outside of a step of this peer.

        Afterwards a script with several optimizers may still propagate a loss through an old graph
        of the parameters, as a GAN does through its generator. Although the gradients are not used,
        autograd must not raise an error then. So the version counters of the tensors are restored.
        """
        if not (wanted and self.has_kinds):
            yield
            return
        self.overtakes += 1
        model = self.trained.model
        with keep_versions((*model.parameters(), *model.buffers())):
            yield

    def _step_with(self, message: control.ApplyCommand) -> None:
        """Step the optimizer with a result as the gradient, which stays in ``.grad``. A long result
        is read in place, unless the script references the tensors in ``.grad``. Other processes may
        still read this memory, so the script's ``.grad`` is a copy-on-write mapping of it.
        """
        trained, result = self.trained, self._results[message.slot]
        part = trained.parts[self._fragment_of(message.round_id, message.collectives)]
        only_reads = only_reads_gradients(trained.optimizer)
        factor = self._clip_factor(result[: part.trained], message.rates)
        lends = (
            self._lends
            and factor == 1.0
            and self.arena.lends_results
            and part.has_views
            and only_reads
            and part.release_gradients()
        )
        if lends:
            part.point_gradients(result)
        else:
            part.scatter_gradients(result)
            for parameter in part.parameters if factor < 1.0 else ():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
        if part.reclaim_gradients():
            self.arena.renew_lent_memory()
        try:
            self.measure_gradients()
            with stepping_with(self._settings, message.rates):
                if only_reads:
                    trained.inner_step()
                else:
                    step = message.round_id - message.collectives
                    seed = draw("optimizer", self._config.seed, step, message.kind)
                    with drawing_from(seed, part.device):
                        trained.inner_step()
        finally:
            if lends:
                part.lend_gradients(torch.from_numpy(self.arena.lent_result(message.slot)))

    def _clip_factor(self, numbers: torch.Tensor, rates: tuple[float, ...]) -> float:
        """Return the factor by which ``torch.nn.utils.clip_grad_norm_`` would scale an aggregate
        with the elements ``numbers``. Peers have agreed on the maximum norm."""
        if not self.trained.clip:
            return 1.0
        with stepping_with(self._settings, rates):
            norm_max = self.trained.clip["clip_norm"]
        # The factor must be the same on all peers, but the order of summation depends on the
        # processor and its threads. So the factor is computed in float64 and rounded to float32.
        # The blocks fit into the CPU cache.
        blocks = map(torch.Tensor.double, torch.split(numbers, 2**15))
        norm = math.sqrt(sum([torch.dot(block, block).item() for block in blocks]))
        return float(np.float32(min(1.0, norm_max / (norm + 1e-6))))

    # --- states -----------------------------------------------------------------------------------

    def plan_state(self) -> StateBundle:
        """Return the bundle for a peer that joins."""
        trained, extra = self.trained, self.extra
        parameters = trained.layout.parameters
        return plan_state(trained.model, trained.optimizer, extra.now(), parameters, extra.kept)

    def copy_state(self, round_id: int) -> tuple[control.Snapshot, int | None]:
        """Copy the state into new memory. Return a message about the state for the node, and the
        memory's file descriptor. If this fails, return a message with the error, and None.
        """
        try:
            plan = self.plan_state()
            fd = allocate(plan.nbytes)
        except GossipError as error:
            return control.Snapshot(round_id, 0, clip(str(error))), None
        plan.write(map_bytes(fd, plan.nbytes))
        return control.Snapshot(round_id, plan.nbytes, "", *sizes_of(plan)), fd

    def plan_checkpoint(self) -> StateBundle:
        """Return the bundle of a checkpoint."""
        trained = self.trained
        # In gossip rounds, the mean of all models replaces the whole model file.
        moved = trained.layout.parameters if self._config.is_rolling else None
        return plan_checkpoint(trained.model, trained.optimizer, self.extra.now(), moved)

    def plan_own(self) -> StateFile | None:
        """Return the file of the per-peer state, or None. In gossip rounds it has the whole
        state."""
        trained, stepper = self.trained, self.stepper
        residual = None if self.encoder is None else self.encoder.saved()
        parameters = stepper.own_parameters or None
        own = OwnState(self.sender_memory, residual, parameters, stepper.own_optimizer)
        if self._config.is_rolling:
            return plan_own(trained.model, own)
        return plan_whole(trained.model, trained.optimizer, self.extra.now(), own)

    def restore(self, message: control.RestoreCommand, fd: int) -> None:
        """Load the state of another peer from the memory file ``fd``.

        Raises: GossipError: The state does not fit the model. Nothing has changed.
        """
        packed, trained = map_received(fd, message.nbytes), self.trained
        with staying_in_mode(trained.optimizer), self.overtaking(True):
            document = read_packed_state(packed, None if message.settings else trained.optimizer)
            extra = load_document(document, trained.model, trained.optimizer, self.extra.check)
        self.extra.load(extra, message.settings)

    def note_replaced(self) -> None:
        """Record that the parameters of another state have replaced the local parameters."""
        self.changes += 1
        if self.encoder is not None:
            self.encoder.forget()
