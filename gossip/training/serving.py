"""Handles the messages of this peer's node, and restarts a dead node.

Only the training thread calls this module, and the model changes only during these calls. Between
two calls, messages of the node wait in the channel.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, assert_never

from gossip.aggregators import Sender
from gossip.core import QUORUM_LOST, events, squeeze, stretch
from gossip.errors import LocalError
from gossip.ipc import PATH_MAX, Channel, ChannelClosed, clip, messages as control

from .applier import Applier
from .judging import JudgeService
from .local_model import LocalModel
from .node_link import NodeLink
from .node_start import NodeHandle, PeerPlace, StartNode
from .stage import OwnStage

logger = logging.getLogger(__name__)

WAKE_S = 0.5  # Maximum wait for a packet between two checks for signals.
POLL_S = 0.05  # Maximum wait for a packet in ``serve_while``.
HURRIED_S = 2.0  # Time for a node to leave without serving other peers.
CONFIRM_S = 45.0  # Time for a majority to confirm the last round, or to send another state.


class NodeService:
    """Service for the node of this peer.

    Attributes:
        link: Channel to the node.
        applied: Applies results and states to the model, and counts the rounds that the model
            contains.
        model: Model of this peer.
        stage: This peer's stage of a pipeline; None if there is no pipeline.
        go: Command to compute for a round; None until it arrives.
        view: Last ``StartRoundCommand``, which describes the roster. Before the first command, the
            roster has only this peer.
        has_begun: Whether the first ``StartRoundCommand`` has arrived.
        interrupt: Function that is called about twice a second in every wait. It may raise.
        leave_state: Function that writes the state to disk when the run has lost its quorum. The
            function gets the reason, and returns a line with the path.
        is_prepared: Whether the node has the model.
        halted: Message in which the node announces its end, or None.
    """

    def __init__(
        self,
        start: StartNode,
        connection: tuple[Channel, NodeHandle],
        place: PeerPlace,
        sender: Sender | None = None,
    ) -> None:
        """
        Args:
            start: Function that starts another node if the node of ``connection`` dies. The new
                node's incarnation is one higher.
            sender: Function that transforms an update before it is sent.
        """
        self.link = NodeLink(start, connection, place)
        self.model = LocalModel(place.config, sender)
        self.applied = Applier(self.model, self.link)
        self.stage: OwnStage | None = None
        self.interrupt: Callable[[], None] = lambda: None
        self.leave_state: Callable[[str], str] = lambda reason: ""
        self.go: control.StartRoundCommand | None = None
        self.view = control.StartRoundCommand(0, 0, False, 0, (), False, 1, 1, roster=(place.peer,))
        self.has_begun = self.is_prepared = self._puts_off_rounds = False
        self.halted: events.Halt | None = None
        self._judging = JudgeService()
        self._overlap = place.config.overlap
        self._shard: events.DataConfigured | None = None
        # Step and round of the last request for confirmation, and the reply to it.
        self._asked_about: tuple[int, int] | None = None
        self._confirmation: events.StateConfirmed | None = None
        self._loaded = b""  # Ledger of a loaded checkpoint, until the first round.
        self._ledger: events.LedgerReply | None = None  # Reply to the last request.

    # --- the model --------------------------------------------------------------------------------

    def prepare(self, judging: JudgeService) -> None:
        """Describe the attached model to the node. Wait until the swarm has begun.

        Rounds that other peers have run without this peer are not applied here, but by the next
        call that waits. Until then the script can register the functions to call after each step.

        Args:
            judging: Service that answers the node's questions about losses.
        """
        self._judging = judging
        self.model.open_arena()
        self.is_prepared = True
        self._introduce()
        self._puts_off_rounds = True
        self.serve(lambda: self.go is not None or bool(self.link.put_off))
        self._puts_off_rounds = False

    def _introduce(self) -> None:
        trained, state = self.model.trained, self.model.plan_state()
        part = trained.parts[0]
        about = control.Prepare(
            part.elements,
            trained.layout.digest,
            state.digest(),
            state.nbytes,
            self.applied.round_id,
            self._loaded,
            self.applied.collectives,
            part.marks,
            trained.wire.packed_shapes,
            (0, 0) if self.stage is None else self.stage.activation_bytes,
        )
        self.link.queue(about, os.dup(self.model.arena.fd))
        if self._shard is not None:
            self.link.send(self._shard)

    def shard(self, samples_total: int, batch: int, ahead: int = 0, extended: int = 0) -> None:
        """Request rounds with samples from now on, and predictions of the samples of the next
        ``ahead`` rounds. May be called before ``prepare``. ``extended``: number of epochs after
        which further rounds read the samples that are still unread."""
        ahead += self._overlap  # with overlap, also predict the round that is computed ahead
        self._shard = events.DataConfigured(samples_total, batch, ahead, extended)
        self.go = None
        if self.is_prepared:
            self.link.send(self._shard)

    def load(self, step: int, round_id: int, ledger: bytes) -> None:
        """Record that the model was loaded from the checkpoint of ``step`` and continues with round
        ``round_id``. Called before ``prepare``."""
        self.applied.start_at(step, round_id)
        self._loaded = squeeze(ledger)

    def ledger(self, expired: Callable[[], bool]) -> bytes:
        """Return the ledger, the node's part of a checkpoint of the present state. Return b"" if
        the node does not send it before ``expired`` returns True. ``expired`` is polled about twice
        a second."""
        self._ledger = None
        self.link.send(events.LedgerRequest())
        self.serve(lambda: self._ledger is not None or self.halted is not None or expired())
        said = self._ledger
        if said is None or said.round_id != self.applied.round_id or not said.ledger:
            return b""
        return stretch(said.ledger)

    def note_loaded(self, round_id: int, restored_at: int) -> None:
        """Record that another state was loaded (``Applier.note_loaded``)."""
        self.applied.note_loaded(round_id, restored_at)
        self.go = None

    # --- the loop ---------------------------------------------------------------------------------

    @property
    def is_sharded(self) -> bool:
        """Whether the script has a sharded loader, so that rounds assign samples."""
        return self._shard is not None

    @property
    def may_go(self) -> bool:
        """Whether this peer can compute for a round now."""
        # If the node has not received DataConfigured yet, its StartRoundCommand has no samples.
        # Another command with samples follows.
        return self.go is not None and (self.go.sharded or not self.is_sharded)

    def claim_go(self, round_id: int) -> bool:
        """Whether this peer can compute for the round. If so, the round's command is consumed."""
        is_due = self.go is not None and self.go.round_id == round_id
        if is_due:
            self.go = None
        return is_due

    def serve(self, done: Callable[[], bool], brief: bool = False) -> None:
        """Serve the node's requests until ``done`` returns True. If the node dies, start another
        node. ``brief``: whether the next update will follow soon."""
        while not done():
            self.interrupt()
            if self.halted is not None:
                raise self._error_of(self.halted)
            if self.is_prepared:
                # A peer that waits for the swarm counts as making progress. Otherwise, in a slow
                # round, all peers would consider each other hung.
                self.applied.note_progress()
                self._queue_snapshots_at_leisure()
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
        # If the next round can already be computed, send the receipt of the last round together
        # with the next update. The receipt only frees a result slot, so it may be late. This saves
        # a packet and a wake-up of the node.
        current = (
            brief
            and self.go is not None
            and self.may_go
            and self.go.round_id >= self.applied.round_id
        )
        if not self.link.may_wait(1 if current else 0):
            self.link.flush()

    def serve_until_go(self, brief: bool = False) -> None:
        """Serve until a round may be computed, or the run has ended."""
        self.serve(lambda: self.may_go or self.halted is not None, brief)

    def serve_while(self, busy: Callable[[], bool]) -> None:
        """Serve the node as long as it runs and ``busy`` returns True. ``busy`` is polled at least
        twice a second."""
        while busy() and self.halted is None:
            self.send_snapshot()
            try:
                self._process_packet(*self.link.receive(POLL_S))
            except ChannelClosed:
                return

    def send_snapshot(self) -> None:
        """Send the requested copies of the state to the node."""
        self.applied.queue_snapshots()
        self.link.flush()

    def _queue_snapshots_at_leisure(self) -> None:
        if not self.may_go:
            self.applied.queue_snapshots()

    def _error_of(self, halted: events.Halt) -> BaseException:
        """Return the error of a run that has ended. If the run has lost its quorum, write the state
        to disk, because this peer may be the last that has the state."""
        if halted.exit_code == QUORUM_LOST and (left := self.leave_state(halted.reason)):
            return control.error_of(replace(halted, reason=f"{halted.reason}; {left}"))
        return control.error_of(halted)

    def _start_node_again(self) -> None:
        """Start another node, and describe the model and its present round to the new node.

        Raises: NodeLost: The node has died too often.
        """
        self.go = None
        self._ledger = events.LedgerReply(-1, b"")  # the dead node sends no reply
        self._judging.forget()
        if self.stage is not None:
            self.stage.forget_commands()
        self.link.revive(self.applied.round_id)
        if self.is_prepared:
            self.model.renew_arena()
            self._introduce()

    # --- messages of the node ---------------------------------------------------------------------

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
                self.applied.apply(message)
            case control.StartRoundCommand():
                self._begin_round(message)
            case control.JudgeCommand():
                self.link.queue(self._judging.answer(message, fds, self.model.learning_rate))
            case events.TakeSnapshot():
                self.applied.request_snapshots()
                self._queue_snapshots_at_leisure()
            case control.RestoreCommand():
                self._restore(message, fds.popleft())
            case events.StateConfirmed():
                self._confirmation = message
            case events.LedgerReply():
                self._ledger = message
            case events.Halt():
                self.halted = message
            case (
                control.PassCommand()
                | events.DropForward()
                | events.ResetSum()
                | control.CollectCommand()
                | control.BesideCommand()
                | control.RebuildCommand()
            ):
                assert self.stage is not None, "only a stage of a pipeline gets these"
                self.stage.handle(message, fds)
            case _ as never:
                assert_never(never)

    def _restore(self, message: control.RestoreCommand, fd: int) -> None:
        if self.applied.restore(message, fd):
            self.go = None

    def _begin_round(self, go: control.StartRoundCommand) -> None:
        self.applied.begin_round(go.round_id, go.collectives)
        self.go = self.view = go
        self.has_begun, self._loaded = True, b""
        if self.stage is not None:
            self.stage.drop_commands(go.round_id)

    # --- sending ----------------------------------------------------------------------------------

    def log(self, metrics: str) -> None:
        """Queue a line for metrics.jsonl. The line is sent with the next packet, or at once if many
        lines are queued or the last packet was sent long ago."""
        self.link.queue(control.Log(metrics))
        if self.link.log_is_due:
            self.link.flush()

    def log_line(self, **what: str) -> None:
        """Queue a line about this round for metrics.jsonl, such as why this peer has no update
        (``skipped``). Any thread may call this, because nothing is sent."""
        self.link.queue(control.Log(json.dumps({"round": self.applied.round_id, **what})))

    def plan(self, steps: int | None, folder: str, every: int | None) -> None:
        """Queue the script's plan for the next packet: number of steps, and folder and interval of
        checkpoints."""
        self.link.queue(control.ScriptPlan(steps, clip(folder, PATH_MAX), every))

    # --- ends -------------------------------------------------------------------------------------

    def confirm(self, expired: Callable[[], object] | None = None) -> None:
        """After the last round of the script, wait until enough other peers have confirmed that
        they hold the same parameters. If this peer received another result of the last round than
        they did, load their state. The wait takes at most ``CONFIRM_S``. After a confirmation,
        further calls do not wait.

        Args:
            expired: Function that is polled about twice a second, and may raise. The wait ends when
                it returns True. By default ``interrupt`` is used, as in every other wait.
        """
        expired, position = expired or self.interrupt, self.applied
        until = time.monotonic() + CONFIRM_S
        known = self._confirmation == events.StateConfirmed(position.round_id, True)
        if not self.is_prepared or self.halted is not None or known:
            return
        self._confirmation, self._asked_about = None, (position.step, position.round_id)
        self.link.queue(events.ConfirmState(position.round_id))

        def waits() -> bool:
            position.note_progress()
            return self._confirmation is None and time.monotonic() < until and not expired()

        self.serve_while(waits)
        self.link.flush()

    @property
    def confirmed(self) -> bool | None:
        """Whether enough other peers have confirmed the parameters of this step; None if no
        confirmation was requested."""
        if self._asked_about is None:
            return None
        step, round_id = self._asked_about
        said = self._confirmation == events.StateConfirmed(round_id, True)
        return said and step == self.applied.step

    def note_end(self) -> None:
        """Record the digest of the replica at the end of training (``Applier.note_end``)."""
        if self.is_prepared:
            self.applied.note_end()

    def close(
        self,
        reason: str,
        within_s: float,
        hurry: Callable[[], bool] = lambda: False,
        not_saved: str = "",
    ) -> None:
        """Leave the run. The node may serve peers that are behind for at most ``within_s`` seconds,
        and then ends.

        Args:
            hurry: Function that is polled about twice a second. When it returns True, the node
                stops serving other peers.
            not_saved: Reason why the last checkpoint is missing, for the records.
        """
        until = time.monotonic() + within_s
        try:
            ended = reason == "finished" and self.is_prepared
            digest = self.applied.final_digest() if ended else b""
            goodbye = control.Close(reason, self.applied.round_id, digest, clip(not_saved))
            hurried = False
            self.link.send(goodbye)
            while self.halted is None and time.monotonic() < until:
                messages, fds = self.link.receive(max(0.0, min(WAKE_S, until - time.monotonic())))
                if not hurried and hurry():
                    hurried, until = True, min(until, time.monotonic() + HURRIED_S)
                    self.link.queue(goodbye)  # a second Close makes the node end at once
                self._process_closing_packet(messages, fds)
        except (ChannelClosed, LocalError) as error:
            logger.debug("the node was gone before we were: %s", error)
        self.link.close(max(2.0, until - time.monotonic()) if self.halted is not None else 0.5)
        if self.is_prepared:
            self.model.close()
        self._judging.forget()

    def _process_closing_packet(self, messages: list[Any], fds: list[int]) -> None:
        """Handle messages of the node while this peer leaves: send the state if it is requested. No
        round is applied any more, because the script has ended its training."""
        for fd in fds:
            os.close(fd)
        for message in messages:
            match message:
                case events.TakeSnapshot():
                    self.applied.request_snapshots()
                case control.JudgeCommand():
                    self.link.queue(
                        control.JudgeReply(message.ticket, (), (), "this peer is leaving")
                    )
                case control.RestoreCommand():
                    self.link.queue(events.Restored(message.round_id, "this peer is leaving"))
                case events.Halt():
                    self.halted = message
        self.send_snapshot()
