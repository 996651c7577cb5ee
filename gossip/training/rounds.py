"""Takes part in rounds for the script, with and without updates."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gossip.core import is_further
from gossip.ipc import StartRoundCommand

from .batches import BatchTracker
from .checkpointing import RunCheckpoints
from .collectives import RunOver
from .peer_run import PeerRun
from .stepping import StepsTaken


class ScriptRounds:
    """Participation of the script in rounds.

    With overlap the script computes its next update while a round is in flight. The result of the
    round is applied when this update is ready.

    Attributes:
        batches: Tracks the batches of the sharded loader, if there is one.
        checkpoints: Checkpoints that the script requests.
        loss: Loss that the script has logged since its last update.
        computing_since: Time of the last call of ``begin_computing``.
        dropped: Extra state (``ExtraState``) before a dropped step. It is {} if a state of other
            peers has replaced it, and None if no step was dropped.
    """

    def __init__(self, run: PeerRun, checkpoints: RunCheckpoints) -> None:
        self._run, self._config = run, run.config
        self._node, self._exchange = run.node, run.exchange
        self.checkpoints, self.batches, self._extra = checkpoints, BatchTracker(), run.model.extra
        self.loss: float | None = None
        self.computing_since, self._seen = time.monotonic(), (0, 0, 0)
        self.dropped: dict[str, Any] | None = None
        self._has_undone = False  # Whether undone local steps were reported to the user.
        self._samples = 0  # Number of samples of the update in the last step of the run.
        self._overtakes = 0  # ``model.overtakes`` at the last step of the run.

    # --- updates ----------------------------------------------------------------------------------

    def run(self, loss: float | None, steps: StepsTaken) -> bool:
        """Take part in a round with the gradients of ``steps``. Return whether the gradients were
        offered to the round."""
        with self._run.waiting_in_loop():
            if not self._offer(loss, steps):
                return False
        if self._drain_is_due:
            self.drain()
        return True

    def _offer(self, loss: float | None, steps: StepsTaken) -> bool:
        """Offer the gradients to the next round. Without overlap, wait until the round is applied.
        Return False if the gradients are outdated, so that they were not offered."""
        exchange, model = self._exchange, self._run.model
        self._run.hooks.computed(self.computing_since)  # before waiting for the round
        if self._config.overlap and not self._is_of_use():
            return False
        loss, self.loss = self.loss if loss is None else loss, None
        outdated = False
        if is_further(steps.kind):
            exchange.wait_go()  # may apply missed rounds
            outdated = self._seen != self._progress or model.overtakes != self._overtakes
        else:
            self._samples, self._overtakes = self.batches.end_round(steps.taken), model.overtakes
        used = 0 if steps.is_useless or outdated else self._samples
        exchange.contribute(used, loss, steps)
        if exchange.in_flight:
            model.stepper.continue_before_result()
        else:
            model.stepper.mark_exchanged(model.exchanged)
            model.stepper.resume_after_round()
        return True

    @property
    def _progress(self) -> tuple[int, int, int]:
        """Number of rounds that have changed the parameters, number of rounds of the first step on
        a batch, and number of restored states."""
        applied = self._run.applied
        return self._run.model.steps, applied.step, applied.restores

    def begin_computing(self) -> None:
        """Record that the script begins to compute its next update, with the present parameters."""
        self.computing_since, self._seen = time.monotonic(), self._progress

    def undo_local_steps(self) -> None:
        """Undo the local steps of an incomplete round."""
        stepper, of_round = self._run.stepper, self._config.steps_per_round
        undone = stepper.undo_steps()
        if not undone:
            return
        self.batches.drop()
        self._extra.restore(stepper.anchor_extra or {})
        if self._run.is_asked_to_stop:
            self._run.notify(
                f"stopped within a round: the {undone} of {of_round} local steps that this peer "
                "has taken are lost"
            )
        elif self._run.is_closed or not self._has_undone:
            self._has_undone = True
            self._run.notify(
                f"{undone} local steps were undone, because no round followed them: a round needs "
                f"{of_round} consecutive steps, each on the next batches of the loader"
            )

    # --- overlap ----------------------------------------------------------------------------------

    def _is_of_use(self) -> bool:
        """Wait for the round in flight, and apply it. Return whether the update that was computed
        meanwhile can be offered: its parameters lack at most one round, and its samples are those
        of this peer in the next round."""
        step = self._run.step
        self._exchange.settle()
        go = self._exchange.wait_go()  # may apply missed rounds
        _, steps, restores = self._seen
        restored = self._run.applied.restores > restores
        # These rounds have called the functions of ``each_step``, but have stepped no scheduler.
        self._extra.in_flight = {} if restored else self._extra.before_round(step)
        if restored or self._run.applied.step > steps + 1:
            return False
        return not go.sharded or self.batches.belong_to(go)

    def drop_step(self) -> None:
        """Drop an outdated step. It does not count as a step, and the script's changes after it
        will be undone."""
        self._node.log_line(skipped="overlap")
        self.dropped = self._extra.in_flight
        stepper, batches = self._run.stepper, self.batches
        stepper.discard_steps()
        stepper.resume_after_round()
        batches.drop()
        batches.is_outdated = False
        self.begin_computing()

    def undo_dropped(self) -> None:
        """Undo the script's changes after a dropped step, such as the step of a scheduler."""
        states, self.dropped = self.dropped, None
        if states:  # {} if a state of other peers has replaced it
            self._extra.restore(states)

    @property
    def _drain_is_due(self) -> bool:
        """Whether the round in flight must be applied before the next step: after the last step,
        before a checkpoint, or if this peer must stop."""
        if not self._exchange.in_flight:
            return False
        rounds, run = self._config.rounds, self._run
        last = rounds is not None and run.rounds_made >= rounds
        saves = self.checkpoints.is_due(run.step)
        return last or saves or self._run.is_asked_to_stop

    def drain(self, expired: Callable[[], bool] = lambda: False) -> None:
        """Wait for the round in flight, if there is one, but only until ``expired`` returns
        True."""
        if self._exchange.in_flight:
            with self._run.waiting_in_loop(), self._run.stepper.at_anchor():
                self._exchange.settle(expired)

    # --- rounds without an update -----------------------------------------------------------------

    def next_go(self) -> StartRoundCommand:
        """Return the round to compute. If a round is in flight, this is the predicted next round,
        provided that it belongs to the epoch that the script is reading."""
        guess, reading = self._exchange.guess, self.batches.reading
        if guess is not None and reading is not None and guess.epoch == reading.epoch:
            return guess
        self.drain()
        with self._run.stepper.at_anchor():
            return self._exchange.wait_go()

    def pass_by(self, skipped: bool) -> None:
        """Take part in a round without an update. ``skipped``: whether the script has received the
        samples of the round, so that they are not read again."""
        self.drain()
        with self._run.waiting_in_loop(), self._run.stepper.at_anchor():
            steps = StepsTaken(is_skipped=skipped and self._has_read_slice())
            self._exchange.contribute(0, None, steps)

    def _has_read_slice(self) -> bool:
        """Whether the current batches belong to the round, not to a predicted one."""
        batches = self.batches
        outdated, batches.is_outdated = batches.is_outdated, False
        return batches.belong_to(self._exchange.wait_go()) and not outdated

    def run_collective(self, data: bytes) -> bool:
        """Contribute ``data`` to a collective operation in the next round. Return whether other
        peers made a training step in this round.

        Raises: RunOver: There is no further round.
        """
        node = self._node
        before, steps = node.go, self._run.model.steps
        if node.halted is not None and node.halted.exit_code == 0:
            raise RunOver
        try:
            with self._run.waiting(), self._run.stepper.at_anchor():
                self._exchange.run_collective(data, commits=self._config.is_rolling)
        except SystemExit as end:
            if not (self._run.is_asked_to_stop or end.code):
                raise RunOver from end
            raise
        if not self._config.overlap:
            self.batches.note_collective(before, node.go)
        if self._run.is_asked_to_stop and not self.checkpoints.has_new_step:
            self._run.termination.stop()
        return self._run.model.steps > steps

    def confirm(self, expired: Callable[[], object] | None = None) -> None:
        """Request confirmations of the final state from other peers, because no later round would
        detect a forged result of the last round."""
        if self._config.f and self._config.is_rolling:
            with self._run.stepper.at_anchor():
                self._node.confirm(expired)
