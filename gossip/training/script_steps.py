"""Makes the steps of the script's optimizers, and takes part in the rounds of these steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from gossip.core import is_further
from gossip.errors import ConfigError, TrainingWarning, UnsupportedModel
from gossip.ipc import messages
from gossip.topologies import draw

from .differing import compared
from .judging import JudgeService
from .optimizer import StepCoordinator
from .peer_run import ALONE, PeerRun
from .reference import JudgeReference
from .rounds import ScriptRounds
from .seeding import drawing_from, seed_generators
from .stepping import StepsTaken
from .unprepared import UnpreparedOptimizers

NO_GRADIENT = (
    "the first optimizer.step() finds no gradient, or only zeros, and learns nothing: call "
    "loss.backward() between optimizer.zero_grad() and optimizer.step(), on the model that "
    "peer.prepare returned"
)
OWN_STATISTICS = (
    "each peer has its own running statistics of BatchNorm, so equal models evaluate differently: "
    "before evaluating, call torch.optim.swa_utils.update_bn(DataLoader(dataset, batch_size=256), "
    "model) on the same data (docs/training_loop.md)"
)


@dataclass
class ScriptSteps:
    """Steps that the script requests from its optimizers.

    The first step on a batch is a step of the run. Other optimizers may then step on the same
    batch, each in a further round.

    Attributes:
        unprepared: Detector of optimizers that step but were not prepared.
        coordinator: Coordinator of the prepared optimizers, set by ``prepare``.
        judging: Service that judges updates of other peers, set by ``prepare``.
        are_begun: Whether the script has made a step.
        advanced: Number of steps, with lost steps, that the last ``optimizer.step()`` has added.
    """

    _run: PeerRun
    _rounds: ScriptRounds
    _reference: JudgeReference
    unprepared: UnpreparedOptimizers = field(default_factory=UnpreparedOptimizers)
    coordinator: StepCoordinator = field(init=False)
    judging: JudgeService = field(init=False)
    are_begun: bool = False
    advanced: int = 0
    _has_warned: bool = False
    _seeded: tuple[object, int] = None, 0  # Last seeding of the generators, and the seed.
    _have_stepped: frozenset[int] = frozenset()  # Optimizers that stepped on the last batch.
    # Functions of ``each_step``, and the optimizers that they follow; None: the run's steps.
    _functions: tuple[tuple[Callable[[], object], int | None], ...] = ()

    def join(self) -> None:
        """Join the swarm with the prepared model."""
        run = self._run
        with compared(run.run_dir, run.peer, run.model.trained.layout):
            run.node.prepare(self.judging)
        run.stepper.resume_after_round()  # a checkpoint may have loaded local parameters
        run.membership.notify()
        self.seed()
        is_shared = run.config.peers_max > 1 and self._rounds.batches.has_statistics
        if is_shared and run.node.view.main == run.peer:
            warnings.warn(OWN_STATISTICS, stacklevel=3)

    def check_prepared(self, operation: str) -> None:
        """Raise ConfigError if ``operation`` cannot be used now."""
        self._run.check_prepared(operation)
        self.coordinator.check_gathered()

    def begin_pass(self) -> None:
        """Record that the next step is a step of the run, not a further step on the last batch."""
        self._have_stepped = frozenset()

    def step(self, loss: float | None, overflow: bool, which: frozenset[int]) -> None:
        """Make a step of the optimizers ``which``. With ``overflow`` this peer takes part without
        an update, because its gradients are not finite."""
        run, trained = self._run, self._run.model.steps
        before, own = run.step, run.model.trained.layout.parameters
        expects = not (self.are_begun or overflow) and run.node.view.main == run.peer
        if expects and not any(p.grad is not None and p.grad.norm() for p in own):
            warnings.warn(NO_GRADIENT, TrainingWarning, stacklevel=5)
        self.are_begun, kind = True, self.coordinator.kind_of(which)
        is_new = self._rounds.batches.unused
        if is_new or not self._have_stepped or which & self._have_stepped:
            self._warn_of_further_steps(bool(self._have_stepped) and not is_new)
            self._have_stepped = which
        else:
            self._have_stepped |= which
            kind += 1
        try:
            (self._make_further_step if is_further(kind) else self._make_step)(loss, overflow, kind)
        finally:
            self.advanced = run.model.steps - trained if is_further(kind) else run.step - before
            if run.applied.replicas is not None:
                run.applied.replicas.warn_of_changes()

    def _warn_of_further_steps(self, here: bool) -> None:
        """Warn once, if ``here``, that a pass of ``peer.steps`` makes several steps of the run."""
        run = self._run
        if not here or self._has_warned or not run.in_loop or run.epoch >= 0:
            return
        self._has_warned = True
        warnings.warn(
            "optimizer.step() runs several times in one pass of peer.steps(N): N counts steps, so "
            "there are fewer passes than N. Write peer.steps(passes * steps in each)",
            TrainingWarning,
            stacklevel=5,
        )

    def _check_step(self, operation: str) -> None:
        self._run.check_joined()
        self._run.check_no_pipeline(operation)

    def _begin_step(self) -> bool:
        """Save a due checkpoint, and stop if a signal requests it. Return False if the run is over:
        then the step changes nothing, and the loop ends after it."""
        self.unprepared.exchanged()
        self._rounds.batches.check_step()
        self.follow_step()
        finished = self._run.is_over
        if finished and not self._run.in_loop:
            raise SystemExit(0)
        return not finished

    def _make_step(self, loss: float | None, overflow: bool, kind: int) -> None:
        self._check_step("optimizer.step()")
        if not self._begin_step():
            return
        run, stepper, rounds = self._run, self._run.stepper, self._rounds
        self._reference.check()  # before the first round
        if overflow:
            run.node.log_line(skipped="overflow")
        rounds.batches.check_batches(stepper.good + 1)
        self._step_directly(overflow)
        if stepper.step(overflow, rounds.computing_since):
            rounds.batches.skip(stepper.good)
        if stepper.taken:
            rounds.begin_computing()
        if stepper.good == 1 and not run.model.steps:
            # raise UnsupportedModel before the first checkpoint
            run.model.plan_own()
        if stepper.is_round_due:
            self._end_round(loss, overflow, kind)
        else:
            self.end_local_step()

    def _make_further_step(self, loss: float | None, overflow: bool, kind: int) -> None:
        """Take part in the round of a step that another optimizer makes on the batch of the
        previous step."""
        self._check_step("optimizer.step()")
        config, encoder = self._run.config, self._run.model.encoder
        unable = {
            "local steps": config.has_local_steps,
            "overlap": config.overlap > 0,
            "rounds without a server": not config.is_rolling,
            f"--sender {config.sender}": bool(config.sender),
            "an encoding that stores its error": encoder is not None and encoder.keeps_lost,
        }
        for what, here in unable.items():
            if here:
                raise UnsupportedModel(
                    f"several optimizers step on one batch, each in its own round, and {what} "
                    "cannot be used with that",
                    "peer.prepare(..., together=True) if they step in sequence and no "
                    "code between their steps needs the new weights",
                )
        self._step_directly(overflow)
        self._rounds.run(loss, StepsTaken(kind=kind, is_useless=overflow))
        if self._run.is_out_of_rounds:
            self._rounds.confirm()
        self._rounds.begin_computing()

    def _step_directly(self, overflow: bool) -> None:
        if self._run.model.steps_directly and not overflow:
            self.coordinator.step()

    def _end_round(self, loss: float | None, overflow: bool, kind: int = 0) -> None:
        """Take part in the round of the step that this peer has made, or of its local steps."""
        run = self._run
        # After this round the position of the script is the same on all peers, regardless of local
        # steps.
        position = 2 * (run.rounds_made + 1) * run.config.steps_per_round - 1
        if self._rounds.run(loss, run.stepper.load_update(overflow, kind)):
            run.answers.reached(position)
            self.end_step()
        else:
            self._rounds.drop_step()
            self.stop_if_asked()

    def step_with(self, run_round: Callable[[], None]) -> None:
        """Make a step. ``run_round`` takes part in the round of the step. A stage of a pipeline
        calls this method."""
        self._run.check_joined()
        if self._begin_step():
            with self._run.waiting_in_loop():
                run_round()
            self.end_step()

    def pass_round(self, skipped: bool = False) -> None:
        """Take part in the current round without an update.

        Args:
            skipped: Whether the script received the samples of this round and continued without a
                step. If so, the samples are not read again. Otherwise they return to the swarm.
        """
        self._check_step("a step without pipe.step(x, y)")
        self.coordinator.check_gathered()
        self.unprepared.check_passed()
        if skipped and self._run.stepper.taken:
            self._end_round(None, False)
            return
        self._rounds.undo_local_steps()
        self._rounds.batches.drop_unused()
        self._rounds.pass_by(skipped)

    # --- after a step, and before the next one ----------------------------------------------------

    def end_step(self) -> None:
        """Record a complete step. The next work of the script belongs to this step."""
        run, extra, checkpoints = self._run, self._run.model.extra, self._rounds.checkpoints
        if run.applied.round_id > run.applied.restored_at:
            extra.load_all()
        extra.note_step()
        if run.is_out_of_rounds:
            self._rounds.confirm()
        if checkpoints.saver is not None:
            checkpoints.has_new_step = True
        elif run.is_asked_to_stop:
            run.termination.stop()
        if not (run.in_loop or self._rounds.batches.expected):
            run.membership.notify()  # without a loop of gossip, the next step has no visible start
        self.begin_computing()

    def end_local_step(self) -> None:
        """Record the end of a local step that is not followed by a round."""
        run = self._run
        run.applied.note_progress()
        if run.exchange.is_asked_for_state():
            # A state that is sent only after the round would be too late for the next round.
            with run.stepper.at_anchor():
                run.node.send_snapshot()
        run.answers.reached(2 * run.step - 1)
        run.model.extra.note_step()
        self.stop_if_asked()
        self.seed()

    def follow_step(self) -> None:
        """Do the work that is due before the next step.

        The script has finished its work after the last step, such as stepping a scheduler. So the
        state of that step is complete, and can be saved if a checkpoint is due.
        """
        extra, checkpoints = self._run.model.extra, self._rounds.checkpoints
        self._rounds.undo_dropped()
        extra.load_all()
        extra.follow_steps()
        self._run.stepper.note_script_ready()
        if checkpoints.has_new_step:
            checkpoints.has_new_step = False
            self.stop_if_asked()
            checkpoints.save_due()

    def stop_if_asked(self) -> None:
        """End the script if a signal requests it, after the round in flight if that ends in
        time."""
        if self._run.is_asked_to_stop:
            self._rounds.undo_local_steps()
            self._rounds.drain()
            self._run.termination.stop()

    def begin_computing(self, moment: str = "after step") -> None:
        """Record that the script begins to compute its next update. ``moment``: as in ``seed``."""
        self.seed(moment)
        self._rounds.begin_computing()

    def seed(self, moment: str = "after step") -> None:
        """Seed the generators, with the same seed in a resumed run, but not in a script that was
        started alone. ``moment``: position of the script, such as "step" at a batch and
        "after step" after it. The numbers that it draws at two positions differ, such as the noise
        of two optimizers."""
        run = self._run
        if run.config.name == ALONE:
            return
        at = moment, run.config.seed, run.peer, run.step
        if at != self._seeded[0]:  # the same step keeps its seed
            self._seeded = at, draw(*at)
        seed_generators(self._seeded[1])

    # --- functions that follow steps --------------------------------------------------------------

    def add_function(
        self, function: Callable[[], object], after: torch.optim.Optimizer | None = None
    ) -> None:
        """Register a function that is called after each later step (``Session.each_step``)."""
        if self._run.config.has_local_steps:
            raise ConfigError(
                "each_step with local_steps: between two rounds each peer makes its own steps",
                "leave out --local-steps, or do it after the run",
            )
        missed = self._run.model.steps
        if missed and not self.are_begun:
            raise ConfigError(
                f"each_step after {missed} rounds were applied that this peer has missed: "
                "the function has not run for them",
                "call peer.each_step right after peer.prepare, before you read "
                "peer.roster_peers, peer.alive_peers or peer.is_main",
            )
        at = None if after is None else self.coordinator.find(after)
        self._functions += ((function, at),)
        self._run.applied.on_step = self._call_functions

    def _call_functions(self, applied: messages.ApplyCommand) -> None:
        """Call the registered functions after a round that has stepped an optimizer."""
        # First load states that arrived during this step, because the functions need kept objects
        # that match the parameters. Schedulers load their states only after the script's work.
        self._run.model.extra.load_objects()
        seed = draw("each_step", self._run.config.seed, self._run.step, applied.kind)
        device = self._run.model.trained.layout.device
        draws = nullcontext() if self._run.trains_alone else drawing_from(seed, device)
        with torch.no_grad(), draws, self.unprepared.paused():
            for function, after in self._functions:
                if applied.is_step if after is None else after in self.coordinator.stepped:
                    function()
