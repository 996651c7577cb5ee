"""Applies results of rounds, and states of other peers, to the model. Counts the rounds that the
model contains."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gossip.core import events, is_further
from gossip.errors import GossipError
from gossip.ipc import clip, messages as control

from .local_model import LocalModel
from .node_link import NodeLink
from .optimizer import in_train_mode
from .replicas import ReplicaCheck, digest_tensors

logger = logging.getLogger(__name__)


class Applier:
    """Applier of round results and of other peers' states to the model. The applier reports to the
    node what it has applied.

    Attributes:
        model: The model, and the operations that change it.
        replicas: Check that compares the replicas of peers; None if they are not compared.
        on_step: Function to call after each applied round that has stepped an optimizer.
        on_collected: Function to call with the data of the peers after each round that was a
            collective operation.
        round_id: Number of the next round, which starts from the present parameters.
        collectives: Number of earlier rounds that were not steps.
        lost: Number of rounds that should have stepped the optimizer but changed nothing.
        restores: Number of times that a state of other peers has replaced the local state.
        restored_at: Round of the last restored state; -1 means none.
        state_step: Step that follows the last restored state; 0 if no state was restored.
        answered: Number of the last round that made a step of the current kind.
        offered_at: Time at which this peer last offered an update to a round; infinite if it has
            offered none since its parameters were replaced.
        snapshots_due: Number of copies of the state that the node has requested and that are not
            made yet. A copy is not made while this peer can compute for a round.
    """

    replicas: ReplicaCheck | None = None

    def __init__(self, model: LocalModel, link: NodeLink) -> None:
        self.model, self._link = model, link
        self.on_step: Callable[[control.ApplyCommand], None] = lambda applied: None
        self.on_collected: Callable[[Sequence[tuple[int, bytes]]], None] = lambda given: None
        self.round_id = self.collectives = self.lost = self.restores = self.snapshots_due = 0
        self.restored_at = self.answered = -1
        self.state_step = 0
        self.offered_at = math.inf
        self._offered = -1  # Round of the last offer.
        self._kind = 0  # Kind of the current or last step; 0 means any.
        self._in_step = False
        # ``LocalModel.changes``, and the digest of the replica, when training ended.
        self._ended_at, self._digest = -1, b""

    @property
    def step(self) -> int:
        """Number of steps that the parameters contain: applied rounds, except collective operations
        and steps of further optimizers."""
        return self.round_id - self.collectives

    # --- position ---------------------------------------------------------------------------------

    def start_at(self, step: int, round_id: int) -> None:
        """Record that the model was loaded from the checkpoint of ``step``, and that ``round_id``
        is next."""
        self.round_id = self.restored_at = round_id
        self.collectives, self.state_step = round_id - step, step

    def begin_round(self, round_id: int, collectives: int) -> None:
        """Record the round for which this peer computes next."""
        if round_id > self.round_id:  # this peer missed the rounds in between
            self.answered = round_id - 1
        self.round_id, self.collectives = round_id, collectives

    def begin_step(self, kind: int) -> None:
        """Record that a step of this kind has begun."""
        self._kind = kind
        self.model.has_kinds = self.model.has_kinds or kind > 0

    def note_offer(self, round_id: int, kind: int) -> None:
        """Record that this peer offers an update to a round."""
        self._offered, self._kind, self.offered_at = round_id, kind, time.monotonic()
        self.note_progress()

    @contextmanager
    def stepping(self, has_update: bool = True) -> Iterator[None]:
        """Mark a step in the ``with`` block. ``has_update``: whether the update is complete, so
        that the script's gradients may be overwritten."""
        self._in_step = has_update
        try:
            yield
        finally:
            self._in_step = False

    def note_progress(self) -> None:
        """Record in the shared memory that the trainer is making progress."""
        self.model.arena.note_progress(self.round_id)

    # --- results ----------------------------------------------------------------------------------

    def apply(self, message: control.ApplyCommand) -> None:
        """Apply the result of a round."""
        self.queue_snapshots()
        # A restarted node may repeat messages of the dead node.
        is_new = message.round_id >= self.round_id
        if message.slot >= 0 and is_new:
            self.model.apply(message, message.kind == self._kind, self._in_step)
        if is_new:
            self.collectives += not message.is_step
            self.lost += message.is_step and message.slot < 0
        if is_operation(message):
            self.on_collected(message.collected)
        elif self.model.encoder is not None:
            self.model.encoder.settle(message.round_id, message.taken)
        self.round_id = max(self.round_id, message.round_id + 1)
        if is_new and not is_operation(message):
            self._note_step(message)
        if message.replica and self.replicas is not None and self._offered == message.round_id:
            self.replicas.note_difference(message.round_id, message.replica)
        self.note_progress()
        self._link.queue(control.AppliedReply(message.round_id, message.slot))

    def _note_step(self, message: control.ApplyCommand) -> None:
        # A lost round is counted, too. Otherwise two groups of peers that make different kinds of
        # steps, and are both too few, would block each other forever. A round of kind 0 counts for
        # every kind.
        kind = self._kind
        same = message.kind == 0 or message.kind >> 1 == kind >> 1  # first and further steps
        if same if kind else message.is_step:
            self.answered = message.round_id
        if message.slot >= 0:
            self.on_step(message)
        if self.replicas is not None:
            is_own = message.round_id == self._offered == self.answered
            self.replicas.follow_step(self.step, is_own)

    # --- states -----------------------------------------------------------------------------------

    def request_snapshots(self, number: int = 1) -> None:
        """Record that the node requests ``number`` copies of the state."""
        self.snapshots_due += number

    def queue_snapshots(self) -> None:
        """Make the copies of the state that the node has requested. A schedule-free optimizer is in
        train mode for this, because all peers share the trained weights."""
        while self.snapshots_due:
            self.snapshots_due -= 1
            with in_train_mode(self.model.trained.optimizer):
                copied = self.model.copy_state(self.round_id)
            self._link.queue(*copied)

    def restore(self, message: control.RestoreCommand, fd: int) -> bool:
        """Load a state that other peers sent. Return whether it fits the model."""
        error = ""
        try:
            self.model.restore(message, fd)
        except GossipError as failure:
            error = clip(str(failure))
            logger.warning("cannot take over the swarm's state: %s", failure)
        else:
            self.collectives = message.collectives
            self.note_loaded(message.round_id, message.round_id)
        self._link.queue(events.Restored(message.round_id, error))
        return not error

    def note_loaded(self, round_id: int, restored_at: int) -> None:
        """Record that a state was loaded. Its parameters are those before ``round_id``, its kept
        objects those before ``restored_at``."""
        self.model.note_replaced()
        self.restores += 1
        if self.replicas is not None:
            self.replicas.note_replaced()
        self.offered_at = math.inf
        self.round_id, self.restored_at = round_id, restored_at
        self.state_step = restored_at - self.collectives
        self.answered = max(self.answered, round_id - 1)
        self.note_progress()

    def note_end(self) -> None:
        """Record the digest of the replica at the end of training. So later changes by the script,
        such as restoring the best weights on one peer, do not count as divergence."""
        self._ended_at, check = self.model.changes, self.replicas
        trained = self.model.trained
        with in_train_mode(trained.optimizer):
            # This includes parameters that no optimizer has: no round makes them equal.
            self._digest = check.digest() if check else digest_tensors(trained.model.parameters())

    def final_digest(self) -> bytes:
        """Return the digest of the replica at the end of the training."""
        if self._ended_at != self.model.changes:
            self.note_end()
        return self._digest


def is_operation(applied: control.ApplyCommand) -> bool:
    """Whether the round was a collective operation."""
    return not (applied.is_step or is_further(applied.kind))
