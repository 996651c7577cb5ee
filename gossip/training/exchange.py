"""Contributes updates of the trainer to rounds, and waits until the rounds are applied."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gossip.core import events, is_further
from gossip.ipc import messages as control

from .applier import is_operation
from .serving import NodeService
from .stepping import StepsTaken

logger = logging.getLogger(__name__)

BRIEF_S = 0.05  # after a shorter step, the receipt of a round is sent together with the next update
PASSED_MAX = 32
"""A waiting update is dropped after this number of consecutive rounds with other kinds of steps."""


@dataclass(frozen=True)
class _Offer:
    """Update that was offered to a round, and the ``StartRoundCommand`` that requested it.

    Attributes:
        changes: Value of ``LocalModel.changes`` when the update was offered.
    """

    go: control.StartRoundCommand
    message: control.Contribute
    changes: int


class Exchange:
    """Exchange of updates with the node. Each round takes one update."""

    def __init__(self, node: NodeService, overlaps: bool) -> None:
        """``overlaps``: whether the trainer computes its next update before it waits for the round
        of its last update."""
        self._node, self._applied, self._model = node, node.applied, node.model
        self._overlaps = overlaps
        self._in_flight: _Offer | None = None
        # Whether steps are short, and the time of the last return to the user's code.
        self._brief, self._left_at = False, 0.0
        self._lasted_s = 0.0  # seconds from that return to the last offer

    @property
    def in_flight(self) -> int:
        """Number of offered updates that wait for the step of their round: 0 or 1."""
        pending = self._in_flight
        if pending is None or self._model.changes != pending.changes:
            return 0
        # The step that the round makes, unless it becomes a collective operation.
        return int(self._applied.step <= pending.go.round_id - pending.go.collectives)

    def wait_go(self) -> control.StartRoundCommand:
        """Wait for the next round for which this peer must compute. Apply rounds that were
        committed without this peer."""
        if not self._node.may_go:
            self._node.serve(lambda: self._node.may_go, self._brief)
        self._left_at = time.monotonic()
        assert self._node.go is not None
        return self._node.go

    @property
    def guess(self) -> control.StartRoundCommand | None:
        """Predicted round after the round in flight; None if there is no round in flight, or no
        prediction."""
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
        """Time limit of the round's local steps; 0 means no limit."""
        return 0.0 if self._node.go is None else self._node.go.deadline_us / 1e6

    def late_s(self, since: float) -> float:
        """Return the delay, in seconds, with which this peer began to compute for the round.
        ``since``: time at which this peer began. A peer is delayed if it was still in an earlier
        round or was restoring a state. Work of the script between two rounds is no delay, because
        it takes the same time on all peers."""
        go = self._node.go
        if go is None or not 0.0 < go.began_at < self._applied.offered_at:
            return 0.0
        return max(0.0, since - go.began_at)

    def contribute(self, samples: int, loss: float | None, steps: StepsTaken) -> None:
        """Offer the gradients to the next round, and wait until the round is applied. If
        ``samples`` is 0, no gradients are offered. With overlap, return as soon as the gradients
        are offered; a later call of ``settle`` applies the round.

        If the round becomes a collective operation, the same update is offered to the next round.
        A round may make another kind of step, because most peers are at another point of their
        loop. Then this peer contributes no update to that round, and waits for a round with its own
        kind of step.

        If the run has no sharded loader, also wait for the next ``StartRoundCommand``, so that the
        caller computes its next gradient on current parameters. A sharded loader waits for this
        command itself.

        Args:
            steps: Steps that the update covers.
        """
        self._lasted_s = time.monotonic() - self._left_at
        self._brief = self._lasted_s < BRIEF_S
        self._applied.begin_step(steps.kind)
        go = self.wait_go()
        self._model.extra.load_objects()  # a state that has just arrived; it is compared below
        self._model.exchanged = ()
        with self._applied.stepping(samples > 0):
            if samples:
                self._model.fill_update(go)
            check = None if is_further(steps.kind) else self._applied.replicas
            offer = self._offer(
                go,
                control.Contribute(
                    go.round_id,
                    go.slot,
                    samples,
                    loss if loss is not None and math.isfinite(loss) else None,
                    rates=self._model.rates if samples else (),
                    skipped=steps.is_skipped,
                    steps=(steps.taken, steps.total),
                    lasted_us=round(1e6 * steps.lasted_s),
                    replica=b""
                    if check is None
                    else check.compare(self._applied.step, go.compares),
                    kind=steps.kind,
                ),
            )
            if self._overlaps and samples:
                self._in_flight = offer
                self._node.send_snapshot()  # with overlap no wait follows
            else:
                self._settle(offer)
        if self._in_flight is None and not self._node.is_sharded and self._node.halted is None:
            # If the node has halted, do not wait: this call is complete, and the next call handles
            # the halt.
            self._node.serve_until_go(self._brief)
        self._left_at = time.monotonic()

    def settle(self, expired: Callable[[], bool] = lambda: False) -> None:
        """Wait until the round of the update in flight, if there is one, is applied. The user's
        gradients do not change.

        Args:
            expired: Function that is polled about twice a second. The wait ends when it returns
                True.
        """
        if self._in_flight is None:
            return
        self._brief = time.monotonic() - self._left_at < BRIEF_S
        try:
            self._settle(self._in_flight, expired)
        finally:
            self._in_flight = None
        self._model.stepper.mark_exchanged(self._model.exchanged)

    def abandon(self) -> None:
        """Drop the update in flight without waiting for its round."""
        self._in_flight = None

    def run_collective(self, data: bytes, commits: bool) -> None:
        """Contribute ``data`` to a collective operation. Wait until the operation is over and the
        next round may be computed. ``applied.on_collected`` receives the collected data.

        Args:
            commits: Whether the commit of the next round contains the data. In runs without commits
                this is False, and the operation uses no round.
        """
        self.settle()
        go = self.wait_go()
        offer = self._offer(go, control.Contribute(go.round_id, go.slot, 0, collective=data))
        if commits:
            self._settle(offer)
        self._node.serve_until_go(self._brief)

    def _offer(self, go: control.StartRoundCommand, message: control.Contribute) -> _Offer:
        """Reply to ``go``: the update is in the slot of the shared memory that ``go`` names."""
        if go.want_parameters:
            self._model.flatten_parameters(go.slot)
        self._node.claim_go(go.round_id)
        self._applied.note_offer(go.round_id, message.kind)
        self._node.link.send(
            replace(
                message,
                round_id=go.round_id,
                slot=go.slot,
                parameters=go.want_parameters,
                finite=message.samples > 0 and self._model.is_finite,
            )
        )
        return _Offer(go, message, self._model.changes)

    def _settle(self, offer: _Offer, expired: Callable[[], bool] = lambda: False) -> None:
        """Serve the node until the round of the offer is over. If the round did not use an update,
        offer it to the next round. Data for a collective operation are offered to one round
        only."""
        node, restores, passed = self._node, self._applied.restores, 0

        def is_settled() -> bool:
            return self._is_over(offer) or expired()

        while True:
            node.serve(lambda: is_settled() or node.may_go, self._brief)
            replaced = self._applied.restores != restores
            if replaced or node.go is None or is_settled():
                return
            passed += offer.message.kind > 0
            if passed > PASSED_MAX:
                logger.warning(
                    "%d rounds have stepped other optimizers than the one of this step(), which is "
                    "left out: do all peers run the same script?",
                    PASSED_MAX,
                )
                return
            # The update was not used: the node was restarted, or the round became a collective
            # operation or another kind of step. The update is still valid if the parameters have
            # not changed.
            offer = self._offer_again(offer, node.go)

    def _is_over(self, offer: _Offer) -> bool:
        """Whether the round of the offer is over."""
        if offer.message.collective:
            return self._applied.round_id > offer.go.round_id
        return self._applied.answered >= offer.go.round_id

    def _offer_again(self, offer: _Offer, go: control.StartRoundCommand) -> _Offer:
        """Repeat the offer to the round ``go``. If the parameters have changed, or this peer's
        samples for the round, the new offer has no update."""
        before, message = offer.go, offer.message
        if self._model.changes != offer.changes:  # changed by a step of another kind
            self._model.exchanged = ()
            message = replace(message, samples=0, rates=(), replica=b"")
        uses = (message.samples or message.skipped) and not is_further(message.kind)
        if uses and before.samples != go.samples:
            self._node.log_line(skipped="slice")
            self._model.exchanged = ()
            message = replace(message, samples=0, skipped=False, rates=())
        if message.samples and go.slot != before.slot:
            self._model.move_update(before.slot, go.slot)
        if message.samples and go.round_id > before.round_id:
            self._model.encode_again(go)
            if not message.lasted_us:  # computed before this round began
                message = replace(message, lasted_us=round(1e6 * self._lasted_s))
        return self._offer(go, message)

    # --- between two local steps ------------------------------------------------------------------

    def is_asked_for_state(self) -> bool:
        """Whether the node requests a copy of the state for another peer. Other messages that have
        arrived are deferred to the end of the round."""
        self._poll_node()
        waits = self._in_flight is not None or bool(self._node.link.put_off)
        return self._applied.snapshots_due > 0 and not waits

    def is_decided(self) -> bool:
        """Whether the round of the current local steps is over, so that their update would not be
        used. A collective operation does not end the round."""
        self._poll_node()
        return any(
            isinstance(message, control.RestoreCommand)
            or (isinstance(message, control.ApplyCommand) and message.is_step)
            for messages, _ in self._node.link.put_off
            for message in messages
        )

    def _poll_node(self) -> None:
        """Receive messages from the node if no round is in flight and all deferred messages belong
        to collective operations."""
        if self._in_flight is not None or not all(
            _is_of_operation(message)
            for messages, _ in self._node.link.put_off
            for message in messages
        ):
            return
        messages, fds = self._node.link.poll()
        asks = all(isinstance(message, events.TakeSnapshot) for message in messages)
        if asks and not self._node.link.put_off:
            self._applied.request_snapshots(len(messages))
        elif messages:
            self._node.link.put_off.append((messages, fds))


def _is_of_operation(message: Any) -> bool:
    """Whether the message ends a collective operation, or starts a round."""
    return isinstance(message, control.StartRoundCommand) or (
        isinstance(message, control.ApplyCommand) and is_operation(message)
    )
