"""The trainer's side of the channel to its node: it contributes updates, applies the results of
rounds, and restarts a dead node.

Only the training thread calls this module, and the model changes only within these calls. Between
the calls the node's messages wait in the channel.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from gossip.aggregators import Sender
from gossip.core import QUORUM_LOST, events, is_further, squeeze, stretch
from gossip.errors import GossipError, LocalError
from gossip.ipc import PATH_MAX, Channel, ChannelClosed, clip, map_received, messages as control

from .judging import JudgeService
from .local_model import LocalModel
from .node_link import NodeLink
from .node_start import NodeHandle, PeerPlace, StartNode
from .optimizer import in_train_mode
from .replicas import ReplicaCheck
from .stage import OwnStage, StageWork
from .stepping import StepsTaken

logger = logging.getLogger(__name__)

WAKE_S = 0.5  # longest wait for the node between two checks for signals
BRIEF_S = 0.05  # longest step whose update carries the receipt of the step before
HURRIED_S = 2.0  # for a node to leave that helps no other peer
CONFIRM_S = 45.0  # for a majority to confirm the last round, or for another state
PASSED_MAX = 32
"""Consecutive rounds of other kinds of steps for which an update waits before it is left out."""


_ONE_STEP = StepsTaken()


@dataclass(frozen=True)
class _UnsettledUpdate:
    """An offered update in a round for which the trainer has not waited yet, and the command that
    it answers."""

    go: control.StartRoundCommand
    offer: control.Contribute
    changes: int  # of the parameters, until it was offered

    @property
    def step(self) -> int:
        """Step that the round makes if it makes one."""
        return self.go.round_id - self.go.collectives


def _is_of_operation(message: Any) -> bool:
    """Whether the message ends a collective operation, or starts a round."""
    return isinstance(message, control.StartRoundCommand) or (
        isinstance(message, control.ApplyCommand) and _is_operation(message)
    )


def _is_operation(applied: control.ApplyCommand) -> bool:
    """Whether the round was a collective operation."""
    return not (applied.is_step or is_further(applied.kind))


class Exchange:
    """Rounds of one trainer, which offers updates to its node and applies results.

    Attributes:
        model: The model, and the operations that change it.
        link: The channel to the node.
        go: Command of the round to compute; None until it comes.
        round_id: The next round to run on the present parameters.
        step: Number of steps in the parameters: all rounds except collective operations and further
            steps of other optimizers.
        main: Peer for work that is done once per run, by the last ``StartRoundCommand``.
        replicas: Compares replicas; None: they are not compared.
        leave_state: Writes the state to disk when the run has lost its quorum. Takes the reason,
            and returns a line about the place.
        on_step: Called after each round that is a step of the run, or a further one, once it is
            applied.
        on_collected: Called with the data of peers in a collective operation, once per round.
        is_prepared: Whether the node has the model.
        halted: The node's message that it ends; None before.
        has_begun: Whether any ``StartRoundCommand`` has come; it describes the other peers.
        alive: Number of alive peers of the roster, by that command.
        roster: Peers of the round, ascending, by that command; before, this peer alone.
        left: Peers that have announced their leave, by that command.
        restores: Number of times that a state of other peers replaced this peer's.
        lost: Rounds that were to step the optimizer and did not.
    """

    _offered_kind = 0  # kind of the present or last step; 0: any kind
    _answered = -1  # last round that answered a step of that kind
    _puts_off_rounds = False
    replicas: ReplicaCheck | None = None
    _ended_at, _digest = -1, b""  # of the replica as training ended: its changes until then

    def __init__(
        self,
        start: StartNode,
        connection: tuple[Channel, NodeHandle],
        place: PeerPlace,
        interrupt: Callable[[], None],
        sender: Sender | None = None,
    ) -> None:
        """Create the exchange with the node of ``connection``.

        Args:
            start: Starts the next node if this one dies; its incarnation is one higher.
            interrupt: Called about twice a second in every wait, and may raise.
            sender: Transforms an update before it is sent.
        """
        self.model = LocalModel(place.config, sender)
        self.link = NodeLink(start, connection, place)
        # an update's round is awaited only once the next update is computed
        self._overlaps = place.config.overlap > 0
        self._in_flight: _UnsettledUpdate | None = None
        self.leave_state: Callable[[str], str] = lambda reason: ""
        self.interrupt = interrupt
        self.go: control.StartRoundCommand | None = None
        self.round_id = 0
        self.lost = 0
        self.restored_at = -1  # round of the last restored state
        self.collectives = 0  # number of earlier rounds that were no steps
        self.main = 0
        self.on_collected: Callable[[Sequence[tuple[int, bytes]]], None] = lambda given: None
        self.on_step: Callable[[control.ApplyCommand], None] = lambda applied: None
        self.alive, self.has_begun = 1, False
        self.roster: tuple[int, ...] = (place.peer,)
        self.left: tuple[int, ...] = ()
        self._judging = JudgeService()
        self._shard: events.DataConfigured | None = None
        self.halted: events.Halt | None = None
        # step and round of the last request for confirmation, and its answer
        self._asked_about: tuple[int, int] | None = None
        self._confirmation: events.StateConfirmed | None = None
        # time of the last offer; infinite: none since the parameters were replaced
        self._offered_at = math.inf
        self.restores = 0
        self._in_step = False
        # whether steps are short; the last return to the user's code
        self._brief, self._left_at = False, 0.0
        self._lasted_s = 0.0  # duration from that return to the offer
        self.is_prepared = False
        self._filled: int | None = None  # update slot of the last offer
        self._offered = -1  # round of the last offer
        self._loaded: tuple[int, bytes] | None = None  # of a checkpoint, until the first round
        self._ledger: events.LedgerReply | None = None  # reply to the last request
        # requested while a round could be computed: they are made in the next wait
        self._snapshots_due = 0
        self._stage_commands: deque[tuple[control.StageCommand, memoryview | None]] = deque()
        self.stage: OwnStage | None = None  # in a pipeline
        self._beside: dict[int, memoryview] = {}  # states of other stages, for a rebuilt one

    # --- the model --------------------------------------------------------------------------------

    def prepare(self, judging: JudgeService) -> None:
        """Describe the attached model to the node, and wait until the swarm has begun.

        Rounds that other peers have run without this one are applied by the next call that waits.
        Until then the script can define what belongs to a step.

        Args:
            judging: Answers the node's requests for the loss.
        """
        self._judging = judging
        self.model.open_arena()
        self.is_prepared = True
        self._introduce()
        self._puts_off_rounds = True
        self._serve(lambda: self.go is not None or bool(self.link.put_off))
        self._puts_off_rounds = False

    def _introduce(self) -> None:
        state = self.model.plan_state()
        model = (
            self.model.trained.parts[0].elements,
            self.model.trained.layout.digest,
            state.digest(),
            state.nbytes,
        )
        about = control.Prepare(
            *model,
            self.round_id,
            b"" if self._loaded is None else self._loaded[1],
            self.collectives,
            self.model.trained.parts[0].marks,
            self.model.trained.wire.packed_shapes,
            (0, 0) if self.stage is None else self.stage.work.activation_bytes,
        )
        self.link.queue(about, os.dup(self.model.arena.fd))
        if self._shard is not None:
            self.link.send(self._shard)

    def shard(self, samples_total: int, batch: int, ahead: int = 0, extended: int = 0) -> None:
        """Request rounds with samples from now on, and predictions of the samples of the next
        ``ahead`` rounds. May be called before ``prepare``. ``extended``: number of epochs with a
        remainder that is read in further rounds."""
        ahead += self._overlaps  # with overlap one more round is read in advance
        self._shard = events.DataConfigured(samples_total, batch, ahead, extended)
        self.go = None
        if self.is_prepared:
            self.link.send(self._shard)

    def note_progress(self) -> None:
        """Record in the arena that the trainer is making progress."""
        self.model.arena.note_progress(self.round_id)

    def is_asked_for_state(self) -> bool:
        """Whether the node requests a copy of the state for another peer; polled between two local
        steps. Messages before it or with it are deferred to the end of the round."""
        self._poll_node()
        return self._in_flight is None and self._snapshots_due > 0 and not self.link.put_off

    def is_decided(self) -> bool:
        """Whether the round of the present local steps is over, so that their update no longer
        counts; polled between two of them. A collective operation does not end the round."""
        self._poll_node()
        return any(
            isinstance(message, control.RestoreCommand)
            or (isinstance(message, control.ApplyCommand) and message.is_step)
            for messages, _ in self.link.put_off
            for message in messages
        )

    def _poll_node(self) -> None:
        """Receive the node's messages, if no round is in flight and all deferred messages belong to
        collective operations."""
        if self._in_flight is not None or not all(
            _is_of_operation(message) for messages, _ in self.link.put_off for message in messages
        ):
            return
        messages, fds = self.link.poll()
        asks = all(isinstance(message, events.TakeSnapshot) for message in messages)
        if asks and not self.link.put_off:
            self._snapshots_due += len(messages)
        elif messages:
            self.link.put_off.append((messages, fds))

    def send_snapshot(self) -> None:
        """Send the requested copies of the state to the node. The parameters are those that all
        peers share."""
        self._snapshot()
        self.link.flush()

    @property
    def step(self) -> int:
        return self.round_id - self.collectives

    @property
    def in_flight(self) -> int:
        """Number of offered updates without an applied step: 0 or 1."""
        pending = self._in_flight
        if pending is None or self.model.changes != pending.changes:
            return 0
        return int(self.step <= pending.step)

    @property
    def state_step(self) -> int:
        """Next step of the last restored state; 0 without any."""
        return max(0, self.restored_at - self.collectives)

    def load(self, step: int, round_id: int, ledger: bytes) -> None:
        """Record that the model was loaded from the checkpoint of ``step`` and continues with round
        ``round_id``. Called before ``prepare``."""
        self.round_id, self._loaded = round_id, (round_id, squeeze(ledger))
        self.restored_at = round_id
        self.collectives = round_id - step

    def ledger(self, expired: Callable[[], bool]) -> bytes:
        """Return the node's part of a checkpoint of the present state; empty if there is none. Wait
        for it until ``expired``, polled about twice a second."""
        self._ledger = None
        self.link.send(events.LedgerRequest())
        self._serve(lambda: self._ledger is not None or self.halted is not None or expired())
        said = self._ledger
        if said is None or said.round_id != self.round_id or not said.ledger:
            return b""
        return stretch(said.ledger)

    def serve_while(self, busy: Callable[[], bool]) -> None:
        """Serve the node while it lives and ``busy``, polled at least about twice a second, is
        true. Every round that is applied shows in ``round_id``."""
        while busy() and self.halted is None:
            self.send_snapshot()
            try:
                self._process_packet(*self.link.receive(BRIEF_S))
            except ChannelClosed:
                return

    # --- rounds -----------------------------------------------------------------------------------

    def wait_go(self) -> control.StartRoundCommand:
        """Wait for the next round to compute, and apply rounds that were committed without this
        peer."""
        if not self._may_go:
            self._serve(lambda: self._may_go)
        self._left_at = time.monotonic()
        assert self.go is not None
        return self.go

    @property
    def _may_go(self) -> bool:
        # A StartRoundCommand without samples was sent before the node received DataConfigured:
        # another with samples follows.
        return self.go is not None and (self._shard is None or self.go.sharded)

    @property
    def guess(self) -> control.StartRoundCommand | None:
        """Predicted next round, to compute beside the one in flight. None: there is none, or it is
        unknown."""
        if self._in_flight is None:
            return None
        go = self._in_flight.go
        following = replace(go, round_id=go.round_id + 1)
        if not go.sharded:
            return following
        if not go.coming:
            return None
        (epoch, ranges), *later = go.coming
        return replace(following, epoch=epoch, ranges=ranges, coming=tuple(later))

    @property
    def deadline_s(self) -> float:
        """Time limit of the round's local steps; 0: no limit."""
        return 0.0 if self.go is None else self.go.deadline_us / 1e6

    def late_s(self, since: float) -> float:
        """Return how late, at ``since``, this peer began to compute for the round, because it was
        still in an earlier round or had restored a state. Work of the script between two rounds is
        not lateness: it takes all peers the same time."""
        go = self.go
        if go is None or not 0.0 < go.began_at < self._offered_at:
            return 0.0
        return max(0.0, since - go.began_at)

    def contribute(
        self,
        samples: int,
        loss: float | None,
        before_send: Callable[[], None] | None = None,
        steps: StepsTaken = _ONE_STEP,
    ) -> None:
        """Offer the gradients, and wait until the round is applied (``samples == 0``: take part
        without gradients). With overlap, return as soon as they are offered; ``settle``, called
        before the next offer, applies the round.

        If the round becomes a collective operation, the same update is offered to the next round.
        If a round makes another kind of step, because most peers are elsewhere in their loop, this
        peer offers no update until a round makes this kind.

        Without a shard, also wait for the next ``StartRoundCommand``, so that the caller's next
        gradient belongs to current parameters. With a shard, the loader waits for that.

        Args:
            before_send: Called when the update is ready and not yet sent.
            steps: The steps that the update covers.
        """
        self._lasted_s = time.monotonic() - self._left_at
        self._brief = self._lasted_s < BRIEF_S
        self._offered_kind = steps.kind
        self.model.has_kinds = self.model.has_kinds or steps.kind > 0
        go = self.wait_go()
        self._in_step, self.model.exchanged = samples > 0, ()
        try:
            if samples:
                self.model.fill_update(go)
            if before_send is not None:
                before_send()
            check = None if is_further(steps.kind) else self.replicas
            offer = control.Contribute(
                go.round_id,
                go.slot,
                samples,
                loss if loss is not None and math.isfinite(loss) else None,
                rates=self.model.rates if samples else (),
                skipped=steps.is_skipped,
                steps=(steps.taken, steps.total),
                lasted_us=round(1e6 * steps.lasted_s),
                replica=b"" if check is None else check.compare(self.step, go.compares),
                kind=steps.kind,
            )
            self._offer(go, offer)
            if self._overlaps and samples:
                self._in_flight = _UnsettledUpdate(go, offer, self.model.changes)
                self.send_snapshot()  # with overlap no wait follows
            else:
                self._settle(go, offer, self.model.changes)
        finally:
            self._in_step = False
        if self._in_flight is not None:
            self._left_at = time.monotonic()
            return
        if self._shard is None and self.halted is None:
            # The next call reports a halt after the applied round: this call has done its work.
            self._serve_until_go()
        self._left_at = time.monotonic()

    def settle(self, expired: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the round of the update in flight, if any, is applied. The user's gradients
        stay as they are.

        Args:
            expired: Polled about twice a second; once it is true, the wait ends.
        Returns: whether that round is the only step since the update was offered. Otherwise the
            gradient that was computed beside the round belongs to parameters that are more than one
            step old, or that were replaced.
        """
        pending, restores = self._in_flight, self.restores
        if pending is None:
            return True
        self._brief = time.monotonic() - self._left_at < BRIEF_S
        try:
            self._settle(pending.go, pending.offer, pending.changes, expired)
        finally:
            self._in_flight = None
        self.model.stepper.mark_exchanged(self.model.exchanged)
        return self.restores == restores and self.step == pending.step + 1

    def abandon(self) -> None:
        """Drop the update in flight without a wait for its round."""
        self._in_flight = None

    def run_stage(self) -> None:
        """Run a round of a pipeline: compute the passes that the node requests, until the round is
        applied and another may be computed."""
        assert self.stage is not None
        stage = self.stage.work
        round_id = self.wait_go().round_id
        self._in_step = True
        try:
            while self.go is not None and self.go.round_id == round_id:
                # A restarted node has no record of computed passes, so the round begins again.
                self.go = None
                stage.begin()
                self._run_passes(round_id, stage)
        finally:
            self._in_step = False
        if self.halted is None:
            self._serve_until_go()

    def _run_passes(self, round_id: int, stage: StageWork) -> None:
        """Run passes until the round is applied, or until another round, or this one again, may be
        computed."""
        while True:
            self._serve(
                lambda: bool(self._stage_commands) or self.round_id > round_id or self._may_go
            )
            if self.round_id > round_id or self._may_go:
                return
            self._follow(stage, *self._stage_commands.popleft())
            self.note_progress()
            self.link.flush()

    def _follow(
        self, stage: StageWork, command: control.StageCommand, memory: memoryview | None
    ) -> None:
        match command:
            case control.PassCommand():
                self.link.queue(*stage.run(command, memory))
            case events.DropForward():
                stage.executor.drop(command.micro_batch)
            case events.ResetSum():
                stage.executor.reset()
            case control.CollectCommand():
                self._collect(stage, command)
            case _ as never:
                assert_never(never)

    def _collect(self, stage: StageWork, command: control.CollectCommand) -> None:
        executor, layout = stage.executor, self.model.trained.layout
        assert executor.done == tuple(sorted(command.micro_batches)), (
            f"asked for the update of {command.micro_batches}, and has that of {executor.done}"
        )
        if executor.samples:
            update = self.model.updates[command.slot]
            layout.flatten_gradients(update)
            update[: layout.trained] /= executor.samples
        self._filled = command.slot
        loss = executor.loss
        self.link.queue(
            control.Contribute(
                command.round_id,
                command.slot,
                executor.samples,
                loss if loss is not None and math.isfinite(loss) else None,
                rates=self.model.rates if executor.samples else (),
                micro_batches=command.micro_batches,
            )
        )

    def _forget_stale(self, round_id: int) -> None:
        """Drop commands of earlier rounds. A pass still gets a reply, because the node sends the
        next pass after that."""
        for command, _ in [each for each in self._stage_commands if each[0].round_id < round_id]:
            if isinstance(command, control.PassCommand):
                about = command.round_id, command.micro_batch, command.attempt, command.backward
                self.link.queue(control.PassReply(*about, 0, audit=command.audit))
        self._stage_commands = deque(
            each for each in self._stage_commands if each[0].round_id >= round_id
        )

    def run_collective(self, data: bytes, commits: bool) -> None:
        """Contribute ``data`` to a collective operation, and wait until it is over and a round may
        be computed. ``on_collected`` receives the collected data.

        Args:
            commits: The operation is the next round, and its commit has the data. Otherwise there
                are no commits, and the operation takes no round.
        """
        self.settle()
        go = self.wait_go()
        offer = control.Contribute(go.round_id, go.slot, 0, collective=data)
        self._offer(go, offer)
        if commits:
            self._settle(go, offer, self.model.changes)
        self._serve_until_go()

    def _offer(self, go: control.StartRoundCommand, offer: control.Contribute) -> None:
        """Send the content of the update slot of ``go`` in answer to it."""
        if go.want_parameters:
            self.model.flatten_parameters(go.slot)
        self.go, self._filled, self._offered = None, go.slot, go.round_id
        self._offered_kind = offer.kind
        self._offered_at = time.monotonic()
        self.note_progress()
        self.link.send(
            replace(
                offer,
                round_id=go.round_id,
                slot=go.slot,
                parameters=go.want_parameters,
                finite=offer.samples > 0 and self.model.is_finite,
            )
        )

    def _error_of(self, halted: events.Halt) -> BaseException:
        """Return the error of a run that has ended, and leave the state on disk: this peer may be
        the last that holds it."""
        if halted.exit_code == QUORUM_LOST and (left := self.leave_state(halted.reason)):
            return control.error_of(replace(halted, reason=f"{halted.reason}; {left}"))
        return control.error_of(halted)

    def _settle(
        self,
        go: control.StartRoundCommand,
        offer: control.Contribute,
        changes: int,
        expired: Callable[[], bool] = lambda: False,
    ) -> None:
        """Serve the node until the offer's step is over; data for a collective operation is offered
        to one round only. ``changes``: count of parameter changes at the offer."""
        restores, passed = self.restores, 0
        while True:
            self._serve_until_over(go, offer, expired)
            again = self.go
            if self.restores != restores or again is None or self._is_over(go, offer) or expired():
                return
            passed += offer.kind > 0
            if passed > PASSED_MAX:
                logger.warning(
                    "%d rounds have stepped other optimizers than the one of this step(), which is "
                    "left out: do all peers run the same script?",
                    PASSED_MAX,
                )
                return
            if self.model.changes != changes:  # by a step of another kind
                changes, self.model.exchanged = self.model.changes, ()
                offer = replace(offer, samples=0, rates=(), replica=b"")
            # A restarted node has not received the update, and a collective operation has not used
            # it. It is still valid if no parameters have changed since.
            offer = self._offer_again(go, again, offer)
            go = again

    def _is_over(self, go: control.StartRoundCommand, offer: control.Contribute) -> bool:
        """Whether the round of the offer for ``go`` is over."""
        if offer.collective:
            return self.round_id > go.round_id
        return self._answered >= go.round_id

    def _offer_again(
        self,
        before: control.StartRoundCommand,
        go: control.StartRoundCommand,
        offer: control.Contribute,
    ) -> control.Contribute:
        """Repeat the offer for ``before`` to the round ``go``, and return the new offer. If this
        peer's samples have changed, the new offer has no update."""
        uses = (offer.samples or offer.skipped) and not is_further(offer.kind)
        samples = before.sharded, before.epoch, before.ranges
        if uses and samples != (go.sharded, go.epoch, go.ranges):
            self.log_skipped("slice")
            offer, self.model.exchanged = replace(offer, samples=0, skipped=False, rates=()), ()
        if offer.samples and go.slot != before.slot:
            self.model.move_update(before.slot, go.slot)
        if offer.samples and go.round_id > before.round_id:
            self.model.encode_again(go)
            if not offer.lasted_us:  # the update was computed before this round began
                offer = replace(offer, lasted_us=round(1e6 * self._lasted_s))
        self._offer(go, offer)
        return offer

    def confirm(self, expired: Callable[[], object] | None = None) -> None:
        """Wait, after the last round of the script, until enough other peers hold the same
        parameters; restore theirs if this peer received another result of the last round. The wait
        takes ``CONFIRM_S`` at most, and is not repeated after a confirmation.

        Args:
            expired: Polled about twice a second, and may raise; once it is true, the wait ends.
                None: ``interrupt``, as in every other wait.
        """
        expired = expired or self.interrupt
        until = time.monotonic() + CONFIRM_S
        known = self._confirmation == events.StateConfirmed(self.round_id, True)
        if not self.is_prepared or self.halted is not None or known:
            return
        self._confirmation, self._asked_about = None, (self.step, self.round_id)
        self.link.queue(events.ConfirmState(self.round_id))

        def waits() -> bool:
            self.note_progress()
            return self._confirmation is None and time.monotonic() < until and not expired()

        self.serve_while(waits)
        self.link.flush()

    @property
    def confirmed(self) -> bool | None:
        """Whether enough other peers hold the parameters of this step; None: not requested."""
        if self._asked_about is None:
            return None
        step, round_id = self._asked_about
        said = self._confirmation == events.StateConfirmed(round_id, True)
        return said and step == self.step

    # --- messages of the node ---------------------------------------------------------------------

    def _serve(self, done: Callable[[], bool]) -> None:
        """Serve the node's requests until ``done``. If the node dies, start another."""
        while not done():
            self.interrupt()
            if self.halted is not None:
                raise self._error_of(self.halted)
            if self.is_prepared:
                # A peer that waits for the swarm is not stalled. Otherwise, in a slow round, all
                # peers would skip each other.
                self.note_progress()
                self._snapshot(at_leisure=True)
            self.link.flush()
            try:
                messages, fds = self.link.receive(WAKE_S)
            except ChannelClosed:
                self._start_node_again()
                continue
            if self._puts_off_rounds and any(isinstance(m, control.ApplyCommand) for m in messages):
                self.link.put_off.append((messages, fds))
            else:
                self._process_packet(messages, fds)
        # If the next round may be computed already, the receipt of this one may travel with the
        # next update. It only frees a result slot, and the delay saves a packet and a wake-up of
        # the node.
        current = (
            self._brief
            and self.go is not None
            and self._may_go
            and self.go.round_id >= self.round_id
        )
        if not self.link.may_wait(1 if current else 0):
            self.link.flush()

    def _serve_until_go(self) -> None:
        """Serve until a round may be computed, or the run has ended."""
        self._serve(lambda: self._may_go or self.halted is not None)

    def _serve_until_over(
        self,
        go: control.StartRoundCommand,
        offer: control.Contribute,
        expired: Callable[[], bool],
    ) -> None:
        """Serve until the round of the offer is over, or the offer may go to another round."""
        self._serve(lambda: self._is_over(go, offer) or self._may_go or expired())

    def _process_packet(self, messages: list[Any], descriptors: list[int]) -> None:
        fds = deque(descriptors)
        try:
            for message in messages:
                self._handle_message(message, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _handle_message(self, message: control.FromNode, fds: deque[int]) -> None:
        match message:
            case control.ApplyCommand():
                self._apply(message)
            case control.StartRoundCommand():
                self._begin_round(message)
            case (
                control.PassCommand()
                | events.DropForward()
                | events.ResetSum()
                | control.CollectCommand()
                | control.BesideCommand()
                | control.RebuildCommand()
            ):
                self._handle_stage_message(message, fds)
            case control.JudgeCommand():
                self.link.queue(self._judging.answer(message, fds, self.model.learning_rate))
            case events.TakeSnapshot():
                self._snapshots_due += 1
                self._snapshot(at_leisure=True)
            case control.RestoreCommand():
                self._restore(message, fds.popleft())
            case events.StateConfirmed():
                self._confirmation = message
            case events.LedgerReply():
                self._ledger = message
            case events.Halt():
                self.halted = message
            case _ as never:
                assert_never(never)

    def _begin_round(self, go: control.StartRoundCommand) -> None:
        if go.round_id > self.round_id:  # this peer took no part in the rounds between
            self._answered = go.round_id - 1
        self.go, self.has_begun = go, True
        self.round_id, self._loaded = go.round_id, None
        self.roster, self.left, self.alive = go.roster, go.left, go.alive
        self.collectives, self.main = go.collectives, go.main
        self._forget_stale(go.round_id)

    def _handle_stage_message(
        self,
        message: control.StageCommand | control.BesideCommand | control.RebuildCommand,
        fds: deque[int],
    ) -> None:
        match message:
            case control.BesideCommand():
                self._beside[message.stage] = map_received(fds.popleft(), message.nbytes)
            case control.RebuildCommand():
                self._make_state(message)
            case control.PassCommand(nbytes=nbytes) if nbytes:
                self._stage_commands.append((message, map_received(fds.popleft(), nbytes)))
            case _:
                self._stage_commands.append((message, None))

    def _apply(self, message: control.ApplyCommand) -> None:
        self._snapshot()
        # A restarted node may repeat messages of its predecessor.
        is_new = message.round_id >= self.round_id
        if message.slot >= 0 and is_new:
            self.model.apply(message, message.kind == self._offered_kind, self._in_step)
        if is_new:
            self.collectives += not message.is_step
            self.lost += message.is_step and message.slot < 0
        is_operation = _is_operation(message)
        if is_operation:
            self.on_collected(message.collected)
        elif self.model.encoder is not None:
            self.model.encoder.settle(message.round_id, message.taken)
        self.round_id = max(self.round_id, message.round_id + 1)
        if is_new and not is_operation:
            # A lost round counts, too: otherwise two kinds of steps, each with too few peers, would
            # block each other forever. A round of kind 0 counts for every kind.
            kind = self._offered_kind
            same = message.kind == 0 or message.kind >> 1 == kind >> 1  # first or further
            if same if kind else message.is_step:
                self._answered = message.round_id
            self.on_step(message)
            if self.replicas is not None:
                is_own = message.round_id == self._offered == self._answered
                self.replicas.follow_step(self.step, is_own)
        if message.replica and self.replicas is not None and self._offered == message.round_id:
            self.replicas.note_difference(message.round_id, message.replica)
        self.note_progress()
        self.link.queue(control.AppliedReply(message.round_id, message.slot))

    def _snapshot(self, at_leisure: bool = False) -> None:
        """Copy the state for the node, once per request; with ``at_leisure``, only while no round
        can be computed."""
        while self._snapshots_due and not (at_leisure and self._may_go):
            self._snapshots_due -= 1
            with in_train_mode(self.model.trained.optimizer):
                copied = self.model.copy_state(self.round_id)
            self.link.queue(*copied)

    def _restore(self, message: control.RestoreCommand, fd: int) -> None:
        error = ""
        try:
            self.model.restore(message, fd)
        except GossipError as failure:
            error = clip(str(failure))
            logger.warning("cannot take over the swarm's state: %s", failure)
        else:
            self._note_loaded(message.round_id, message.round_id)
        self.link.queue(events.Restored(message.round_id, error))

    def _note_loaded(self, round_id: int, restored_at: int) -> None:
        """Record that the state before ``round_id`` was loaded; its kept objects belong to the
        round ``restored_at``."""
        self.restores += 1
        if self.replicas is not None:
            self.replicas.note_replaced()
        self._offered_at = math.inf
        if self.model.encoder is not None:
            self.model.encoder.forget()
        self.round_id, self.restored_at = round_id, restored_at
        self._answered = max(self._answered, round_id - 1)
        self.go = None
        self.note_progress()

    def _make_state(self, message: control.RebuildCommand) -> None:
        assert self.stage is not None, "only a stage of a pipeline is made anew"
        beside, self._beside = self._beside, {}
        made = self.stage.rebuild(message.round_id, beside, message.is_last)
        if made.extra is not None:
            self.model.extra.load(dict(made.extra))
        about = message.round_id, made.source, made.step
        if not made.source:
            self.link.queue(events.StateRebuilt(*about, needs=made.needs))
            return
        self.model.changes += 1
        # Kept objects of the script, such as a scheduler, belong to that round.
        restored_at = made.step if made.source == "checkpoint" else message.round_id
        self._note_loaded(message.round_id, restored_at)
        self.link.queue(events.StateRebuilt(*about, self.model.plan_state().digest(), made.fresh))

    # --- sending ----------------------------------------------------------------------------------

    def log(self, metrics: str, now: bool = False) -> None:
        """Queue a line for metrics.jsonl. It is sent with the next packet, or at once (``now``, or
        if the queued lines are due)."""
        self.link.queue(control.Log(metrics))
        if now or self.link.log_is_due:
            self.link.flush()

    def log_skipped(self, why: str) -> None:
        """Log that this peer has no update for the round."""
        self.log(json.dumps({"round": self.round_id, "skipped": why}))

    def plan(self, steps: int | None, folder: str, every: int | None) -> None:
        """Queue the script's plan: number of steps, folder and interval of checkpoints. It is sent
        with the next packet."""
        self.link.queue(control.ScriptPlan(steps, clip(folder, PATH_MAX), every))

    def report_divergence(self, report: control.DivergenceReport) -> None:
        """Report to the node that replicas differ, or will."""
        self.link.send(report)

    # --- ends -------------------------------------------------------------------------------------

    def _start_node_again(self) -> None:
        """Start another node, and introduce the model at its present round.

        Raises: NodeLost: The node has died too often.
        """
        self.go = None
        self._ledger = events.LedgerReply(-1, b"")  # the dead node sends no reply
        self._judging.forget()
        self._stage_commands.clear()
        self.link.revive(self.round_id)
        if self.is_prepared:
            self.model.renew_arena(self._filled)
            self._introduce()

    def note_end(self) -> None:
        """Record the replica at the end of the training. Later changes by the script, such as to
        restore the best weights on one peer, are no divergence of replicas."""
        self._ended_at, check = self.model.changes, self.replicas
        if self.is_prepared:
            layout = self.model.trained.layout
            with in_train_mode(self.model.trained.optimizer):
                self._digest = layout.digest_parameters() if check is None else check.digest()

    def close(
        self,
        reason: str,
        within_s: float,
        hurry: Callable[[], bool] = lambda: False,
        not_saved: str = "",
    ) -> None:
        """Leave the run: the node has ``within_s`` to serve peers that are behind, and then ends in
        any case.

        Args:
            hurry: Polled about twice a second; once it is true, no peer is served any more.
            not_saved: Reason why the last checkpoint is missing, for the records.
        """
        until = time.monotonic() + within_s
        try:
            if reason == "finished" and self._ended_at != self.model.changes:
                self.note_end()
            digest = self._digest if reason == "finished" else b""
            goodbye = control.Close(reason, self.round_id, digest, clip(not_saved))
            hurried = False
            self.link.send(goodbye)
            while self.halted is None and time.monotonic() < until:
                messages, fds = self.link.receive(max(0.0, min(WAKE_S, until - time.monotonic())))
                if not hurried and hurry():
                    hurried, until = True, min(until, time.monotonic() + HURRIED_S)
                    self.link.queue(goodbye)  # a second goodbye requests an immediate end
                self._process_closing_packet(messages, fds)
        except (ChannelClosed, LocalError) as error:
            logger.debug("the node was gone before we were: %s", error)
        self.link.close(max(2.0, until - time.monotonic()) if self.halted is not None else 0.5)
        if self.is_prepared:
            self.model.close()
        self._judging.forget()

    def _process_closing_packet(self, messages: list[Any], fds: list[int]) -> None:
        """Send the state if it is requested. Apply no rounds: the model belongs to the user now."""
        for fd in fds:
            os.close(fd)
        for message in messages:
            match message:
                case events.TakeSnapshot():
                    self._snapshots_due += 1
                case control.JudgeCommand():
                    self.link.queue(
                        control.JudgeReply(message.ticket, (), (), "this peer is leaving")
                    )
                case control.RestoreCommand():
                    self.link.queue(events.Restored(message.round_id, "this peer is leaving"))
                case events.Halt():
                    self.halted = message
        self.send_snapshot()
