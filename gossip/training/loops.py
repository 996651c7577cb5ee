"""Implements the script's loops over the batches, steps or epochs of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gossip.errors import ConfigError
from gossip.ipc import StartRoundCommand

from .collectives import after_epoch, before_epoch
from .peer_run import PeerRun
from .rounds import ScriptRounds
from .script_steps import ScriptSteps

GIVEN_UP_SHOWN = 16


@dataclass
class TrainingLoop:
    """Loop of the script over batches, steps or epochs. It ends after the same step on all peers.

    Attributes:
        rounds: Tracks the batches that the script received.
        steps: Makes the steps, and takes part in rounds for which the script makes no step.
        is_left: Whether the script has begun a loop and not completed it.
        goal: Last step of the run up to which the script has completed a loop.
    """

    run: PeerRun
    rounds: ScriptRounds
    steps: ScriptSteps
    is_left: bool = False
    goal: int = 0

    # --- for the loader ---------------------------------------------------------------------------

    def next_round(self, epoch_steps: int = 0) -> StartRoundCommand | None:
        """Wait for the next round of this peer.

        Args:
            epoch_steps: Number of steps of an epoch, if this is called within an epoch. After the
                last step of an epoch the script may still evaluate, so the work that follows that
                step is done in the next call.
        Returns: Round to compute, with this peer's samples; None if the run is over.
        Raises: ConfigError: ``prepare`` was not called, or the session is closed.
        """
        self.steps.check_prepared("a loop of peer (steps, epochs or shard)")
        run, rounds = self.run, self.rounds
        rounds.undo_local_steps()
        rounds.undo_dropped()
        if not epoch_steps or run.rounds_made % epoch_steps:
            self.steps.follow_step()
        try:
            go = None if run.is_over else rounds.next_go()
        except SystemExit:
            if not run.is_over:
                raise
            go = None
        self.run.answers.reached(2 * run.step)
        if go is None:
            return None
        self.rounds.batches.reading = go
        run.membership.notify()
        self.steps.begin_computing("step")
        return None if run.is_out_of_rounds else go

    def hand_out(self, samples: int, batch: int = 0, content: object = None) -> None:
        """Record that the training loop receives a batch.

        Args:
            samples: Number of samples of the round's batches up to this one; 0 if they do not
                count.
            batch: Number of the batch in its round, from 0.
            content: The batch.
        """
        self.rounds.batches.hand_out(samples, batch, content)
        self.steps.unprepared.begin_batch()

    def end_pass(self, epoch: int | None = None) -> None:
        """Record the end of a loader's pass.

        Args:
            epoch: Epoch of the pass. The run may already be in a later epoch.
        Raises: ConfigError: The pass was an evaluation.
        """
        if epoch is not None:
            self.run.answers.reached(after_epoch(epoch))
        self.rounds.batches.end_pass()
        self.steps.seed("after epoch")

    # --- steps and epochs -------------------------------------------------------------------------

    def report_plan(self, steps: int | None = None) -> None:
        """Report the number of steps and the checkpoints of the script to observers of the run."""
        saver = self.rounds.checkpoints.saver
        folder, every = ("", None) if saver is None else (str(saver.folder), saver.every)
        of_round = self.run.config.steps_per_round  # observers count in rounds
        steps = None if steps is None else -(-steps // of_round)
        every = None if every is None else -(-every // of_round)
        self.run.node.plan(steps, folder, every)

    def run_steps(self, total: int) -> Iterator[int]:
        """Yield the numbers of the steps that remain (``Session.steps``)."""
        run = self.run
        self._check_goal(f"steps({total})", total)
        self.report_plan(total)
        if total and self.next_round() is None:
            return
        run.in_loop = self.is_left = True
        try:
            while (step := run.step) < total and not run.is_over:
                self.run.answers.reached(2 * step)
                run.membership.notify()
                self.steps.seed("pass")  # so that earlier random numbers have no effect
                self.steps.begin_pass()
                yield step
                self.steps.coordinator.check_gathered()
                if run.step == step and self.rounds.dropped is None and not run.is_over:
                    # Take part without an update if the script made no step in this pass.
                    self.steps.pass_round()
                self.steps.follow_step()
                if run.step >= total:
                    self.rounds.drain()
        finally:
            run.in_loop = False
        self.run.answers.reached(2 * run.step)
        if run.step < total:
            self._notify_of_end(f"step {total}")
        self._end(total)

    def _check_goal(self, loop: str, goal: int) -> None:
        """Raise ConfigError if an earlier loop was completed up to step ``goal`` of the run."""
        if 0 < goal <= self.goal:
            raise ConfigError(
                f"peer.{loop} ends at step {goal} of the run, but an earlier loop of this script "
                f"has ended at step {self.goal}: this loop would do nothing",
                "the number counts from the start of the run: add that of the earlier loop, or "
                "write one loop with a condition on its number",
            )

    def _notify_of_end(self, goal: str) -> None:
        self.run.notify(f"the run ended before {goal}: this peer has the state of {self.run.step}")

    def run_epochs(
        self, total: int, steps: int, given_up_now: Callable[[], list[int]]
    ) -> Iterator[int]:
        """Yield the numbers of the epochs that remain (``Session.epochs``).

        Args:
            steps: Steps of an epoch.
            given_up_now: Function that returns the indices of samples that were discarded in the
                last epoch.
        """
        run, goal = self.run, total * steps * self.run.config.steps_per_round
        self._check_goal(f"epochs({total})", goal)
        self.report_plan(goal)
        run.in_loop = self.is_left = True
        try:
            go = self.next_round()
            while go is not None and go.epoch < total:
                self.run.answers.reached(before_epoch(go.epoch))
                run.epoch = epoch = go.epoch
                self.run.model.extra.begin_epoch(epoch)
                self.steps.seed("epoch")
                yield epoch
                while (go := self.next_round()) is not None and go.epoch == epoch:
                    self.steps.pass_round()
        finally:
            run.in_loop, run.epoch = False, -1
        if go is None and not run.is_out_of_rounds:
            self._notify_of_end(f"epoch {total}")
        given_up = given_up_now()
        if given_up and self.run.node.view.main == self.run.peer:
            more = ", ..." if len(given_up) > GIVEN_UP_SHOWN else ""
            self.run.notify(
                f"the last epoch ended without {len(given_up)} of its samples, as no step could "
                f"use them (loader.given_up): {str(given_up[:GIVEN_UP_SHOWN])[1:-1]}{more}"
            )
        self._end(goal)

    def run_own_epochs(self, total: int, has_loader: bool) -> Iterator[int]:
        """Yield the numbers of this peer's own epochs. Other peers may be in other epochs."""
        for epoch in range(total):
            if has_loader and self.next_round() is None:
                return
            yield epoch
        if not has_loader or self.next_round() is not None:
            self._end()

    def _end(self, goal: int = 0) -> None:
        """End the training: wait for other peers' confirmations of the final state, and save it."""
        self.is_left, self.goal = False, max(self.goal, goal)
        self.rounds.undo_local_steps()
        self.rounds.drain()
        self.run.stepper.return_to_anchor()
        self.run.model.extra.follow_steps(over=True)
        self.rounds.confirm()
        self.run.node.note_end()
        self.rounds.checkpoints.save_last(in_hurry=False, leaves_early=False)
