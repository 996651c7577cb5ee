"""Several local steps of a peer between two rounds (local SGD, DiLoCo).

A round begins at the *anchor*: the parameters that all peers share. Each peer takes local steps
from the anchor. Its update is the model difference, anchor - parameters. Then the peer returns to
the anchor, where the outer optimizer applies the result of the round. All other code treats the
model difference like a gradient. The anchor and the memory of the outer optimizer are the same on
all peers.

With overlap a peer takes its next steps while the round runs. It predicts the result of the outer
step from its own difference, and starts from this prediction. After these steps the round is
applied, and the aggregate replaces the prediction (Kale et al. 2025, arXiv:2502.12996).

With fragments a round exchanges one fragment of the model (Streaming DiLoCo, Douillard et al. 2025,
arXiv:2501.18512). The exchanged parameters continue from the result of the round, all other
parameters from this peer's local steps. While a peer waits for a round, its model holds the anchor:
the outer optimizer steps the anchor, and state transfers and checkpoints contain it. Afterwards the
local parameters are restored.

With fragments and overlap, a peer takes its next steps from its own parameters of the fragment.
When the round is applied, these become alpha * own + (1 - alpha) * shared, where alpha is
``_mixing``.

The state of the user's optimizers is per-peer state, and is empty on a peer that joins. Only the
settings of these optimizers, such as the learning rate, are part of the shared state.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gossip.aggregators import outer as outer_steps

from .layout import Layout
from .local_model import TrainedModel
from .peer_run import PeerRun
from .state import StateMismatch
from .stepping import EveryStep, StepsTaken

STATE = "gossip.local_steps"
"""Key in the extra state. The value has the step of the state, and the settings of the user's
optimizers."""
IN_TIME = 0.9
"""Fraction of the deadline. A peer that began late, or cannot take all its steps in time, ends its
steps within this fraction. The deadline is slightly above the time that most peers need. One
omitted step matters less than a delay of all other peers."""


class StepClock:
    """Clock of this peer's local steps.

    The mean duration of a step excludes the longest step of the round, because the script may have
    evaluated in it, or waited for a reason that does not affect later steps. If this peer began the
    round late, the time of all its steps is counted.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since = self._began_at = self._late_s = 0.0
        self._lasted_s: list[float] = []
        self._step_s = 0.0  # mean duration of a step; 0 if unknown

    def begin_round(self, since: float, late_s: float = 0.0) -> None:
        """Begin a round. ``since``: start of the first step. ``late_s``: delay of this peer's start
        relative to the other peers, 0.0 if there is none."""
        self._since = self._began_at = since
        self._late_s, self._lasted_s = late_s, []

    @property
    def lasted_s(self) -> float:
        """Time from the start of this round's first step on this peer to the end of its last step
        so far."""
        return self._since - self._began_at

    def record_step(self) -> None:
        now = self._now()
        self._lasted_s.append(now - self._since)
        self._since = now
        if len(self._lasted_s) > 1:
            self._step_s = (sum(self._lasted_s) - max(self._lasted_s)) / (len(self._lasted_s) - 1)

    def is_late(self, deadline_s: float, left: int) -> bool:
        """Whether one more step would end too late. False while the duration of a step is unknown.

        Args:
            deadline_s: Deadline, in seconds after the start of the round; 0.0 if there is none.
            left: Remaining steps of the round.
        """
        if not self._step_s or deadline_s <= 0:
            return False
        taken_s = len(self._lasted_s) * self._step_s
        if self._late_s:
            taken_s = self._late_s + self.lasted_s
        takes_all = not self._late_s and taken_s + left * self._step_s <= deadline_s
        return taken_s + self._step_s > (1.0 if takes_all else IN_TIME) * deadline_s


class LocalSteps(EveryStep):
    """Strategy with several steps of this peer between two rounds.

    Attributes:
        outer: Optimizer that steps with the aggregate of the model differences.
    """

    def __init__(self, trained: TrainedModel, run: PeerRun) -> None:
        """
        Args:
            trained: Model with the user's optimizers.
        """
        config = run.config
        super().__init__(config.steps_per_round)
        self.own_optimizer, self._inner_step = trained.optimizer, trained.inner_step
        self._run, self._clock = run, StepClock()
        self._layout = layout = trained.layout
        self._outer_step = outer_steps.load(config.outer_step)
        self.outer = self._outer_step.optimizer(layout.parameters)
        self._anchor: list[Tensor] = []
        # Parameters before the first step since the last round: the anchor, the prediction of the
        # outer step, or the local parameters.
        self._start_point: list[Tensor] = []
        self._is_predicted = False  # ``_start_point`` is a prediction.
        self._fragments, self._mixing = config.fragments > 1, config.own_share or 0.0
        self._exchanged: set[int] = set()  # Ids of parameters exchanged since the last rebase.
        self._is_apart = False  # The model has the local parameters.
        self._own_parameters: list[Tensor] = []  # Local parameters while the model has the anchor.
        self._abandoned: list[
            Tensor
        ] = []  # Local parameters that ``return_to_anchor`` has replaced.
        self._anchor_extra: dict[str, Any] = {}
        # Whether the program is in a block of ``at_anchor``.
        self._at_anchor = False

    @property
    def is_round_due(self) -> bool:
        return self.ends_early or self.taken == self.total

    def step(self, skipped: bool = False, since: float = 0.0) -> bool:
        if self.taken == 0:
            self._clock.begin_round(since, self._run.exchange.late_s(since))
            self._begin()
        self.taken += 1  # Counted first, so that ``undo_steps`` undoes an interrupted step.
        if not skipped:
            self._inner_step()
            self.good += 1
        self._run.hooks.computed(since)
        self._clock.record_step()
        exchange = self._run.exchange
        late = self._clock.is_late(exchange.deadline_s, self.total - self.taken)
        self.ends_early = self._run.config.shortens_rounds and (late or exchange.is_decided())
        return skipped

    def _begin(self) -> None:
        if not (self._is_predicted or self._is_apart):
            self._note_anchor()
            self._start_point = self._anchor
        elif self._is_apart:
            self._start_point = self._layout.copy_parameters()
        self._abandoned = []
        self._anchor_extra = copy.deepcopy(self._run.model.extra.latest())

    def _note_anchor(self) -> None:
        if self._anchor:
            now = _values(self._layout)
            torch._foreach_copy_(self._anchor, now)  # pyright: ignore[reportPrivateImportUsage]
        else:
            self._anchor = self._layout.copy_parameters()

    def load_update(self, overflow: bool, kind: int = 0) -> StepsTaken:
        """Store the model difference in the gradients, and return to the anchor. If the optimizer
        has made no step since the last round, the update is marked as skipped.

        A parameter that did not change and has no gradient gets no gradient. With fragments, the
        difference of a parameter contains all steps since its fragment was last exchanged.
        """
        for parameter, value, start in self._triples(self._difference_origin):
            gradient = parameter.grad
            if gradient is not None and not (gradient.requires_grad or gradient.is_sparse):
                torch.sub(start, value, out=gradient)
            elif not torch.equal(start, value):
                parameter.grad = start - value
        steps = StepsTaken(self.taken, self.total, self._clock.lasted_s, kind, not self.good)
        self._own_parameters = self._layout.copy_parameters() if self._fragments else []
        self._layout.set_parameters(self._anchor)
        self._reset_count()
        self._is_predicted = self._is_apart = False
        return steps

    @property
    def _difference_origin(self) -> list[Tensor]:
        """Parameters from which the local parameters are subtracted to compute the update."""
        return self._anchor if self._fragments else self._start_point

    def mark_exchanged(self, exchanged: Sequence[Tensor]) -> None:
        """Record that a round with the parameters ``exchanged`` was applied."""
        if self._fragments:
            self._exchanged.update(map(id, exchanged))

    def resume_after_round(self) -> None:
        """Restore the local parameters after a round, except for those that the round has
        exchanged."""
        if not self._own_parameters:
            self._exchanged.clear()
            return  # The round has exchanged all parameters, or another peer's state was loaded.
        with torch.no_grad():
            for own, (parameter, now, before) in zip(
                self._own_parameters, self._triples(self._anchor), strict=True
            ):
                self._rebase_own(parameter, now, before, own)
        if all(bool(own.isfinite().all()) for own in self._own_parameters):
            self._leave_anchor()
        else:  # The local parameters are not finite, so the next steps begin at the anchor.
            self._own_parameters = []
            self._exchanged.clear()

    def _rebase_own(self, parameter: Tensor, now: Tensor, before: Tensor, own: Tensor) -> None:
        """Move ``own`` like the anchor, by ``now - before``. If the parameter was exchanged, mix
        ``own`` with ``now``, or replace it."""
        if id(parameter) not in self._exchanged:
            if not torch.equal(now, before):
                own.add_(now - before)
        elif self._mixing:
            own.lerp_(now, 1.0 - self._mixing)
        else:
            own.copy_(now)

    def discard_steps(self) -> None:
        """Discard the steps of the last update. With fragments, the local parameters become those
        before these steps."""
        if self._own_parameters:
            self._own_parameters = [start.clone() for start in self._start_point]

    def _leave_anchor(self) -> None:
        """Load the local parameters into the model, in place of the anchor."""
        self._note_anchor()
        self._layout.set_parameters(self._own_parameters)
        self._own_parameters, self._is_apart = [], True
        self._exchanged.clear()

    @property
    def own_parameters(self) -> list[Tensor]:
        """Copy of the local parameters between two rounds, for a checkpoint. After
        ``return_to_anchor``, the local parameters that it replaced. Empty if the local parameters
        equal the shared parameters."""
        return self._layout.copy_parameters() if self._is_apart else self._abandoned

    def load_own(self, own: Sequence[Tensor]) -> None:
        """Load the local parameters. The model must have loaded the shared parameters before.

        Raises: StateMismatch: The parameters belong to another model.
        """
        here = [(value.shape, value.dtype) for value in self._layout.parameters]
        if own and [(value.shape, value.dtype) for value in own] != here:
            raise StateMismatch("its own parameters belong to another model")
        self._note_anchor()
        self._own_parameters = [value.to(self._layout.device, copy=True) for value in own]

    def continue_before_result(self) -> None:
        """Predict the result of the outer step from the local difference that was just offered. The
        momentum of the outer optimizer does not change. With fragments, restore the local
        parameters instead."""
        if self._fragments:
            self.resume_after_round()
            return
        self._note_anchor()
        gradients = [p.grad for p in self._layout.parameters if p.grad is not None]
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            return  # The next steps begin at the anchor.
        with torch.no_grad():
            for parameter in self._layout.parameters:
                if parameter.grad is not None:
                    memory = self.outer.state[parameter].get("momentum_buffer")
                    parameter.sub_(self._outer_step.move(parameter.grad, memory)[0])
        self._start_point, self._is_predicted = self._layout.copy_parameters(), True

    def undo_steps(self) -> int:
        """Restore the parameters before the steps of this round. Return the number of undone
        steps."""
        if self.taken and self._at_anchor:
            self._is_apart = False  # So that ``at_anchor`` restores nothing.
        elif self.taken:
            self._layout.set_parameters(self._start_point)
        return self._reset_count()

    def return_to_anchor(self) -> None:
        """Restore the shared parameters. This undoes the steps of this round, a prediction of the
        outer step, and steps of earlier rounds that were not exchanged."""
        self.undo_steps()
        if self._is_apart and not self._at_anchor:
            self._abandoned = self._layout.copy_parameters()
        if (self._is_predicted or self._is_apart) and not self._at_anchor:
            self._layout.set_parameters(self._anchor)
        self._is_predicted = self._is_apart = False
        self._own_parameters = []

    def _reset_count(self) -> int:
        undone, self.taken, self.good, self.ends_early = self.taken, 0, 0, False
        return undone

    @contextmanager
    def at_anchor(self) -> Iterator[None]:
        """Load the anchor into the model for the ``with`` block. The block may change or replace
        the parameters. Afterwards the local steps are applied again. No round may be in flight at
        that time."""
        if self._at_anchor or not (self.taken or self._is_predicted or self._is_apart):
            yield
            if not (self._at_anchor or self._own_parameters):
                self._exchanged.clear()
            return
        own = self._layout.copy_parameters()
        self._layout.set_parameters(self._anchor)
        self._at_anchor = True
        try:
            yield
        finally:
            self._at_anchor = self._is_predicted = False
            if self.taken or self._is_apart:  # unless the block has undone the steps
                self._restore_own(own)
            self._exchanged.clear()

    def _restore_own(self, own: list[Tensor]) -> None:
        starts = self._start_point if self.taken and self._is_apart else []
        with torch.no_grad():
            for at, (parameter, shared, base) in enumerate(self._triples(self._difference_origin)):
                for each in (own[at], *starts[at : at + 1]):
                    self._rebase_own(parameter, shared, base, each)
        self._exchanged.clear()
        self._note_anchor()
        if not self._is_apart:
            self._start_point = self._anchor
        self._layout.set_parameters(own)

    def _triples(self, base: list[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield each parameter, its values, and the values in ``base``."""
        return zip(self._layout.parameters, _values(self._layout), base, strict=True)

    @property
    def anchor_extra(self) -> dict[str, Any] | None:
        """Extra state at the start of the round; None before the first round."""
        return self._anchor_extra if self.taken or self._anchor_extra else None

    def on_state_loaded(self, states: dict[str, Any]) -> None:
        """Record that another peer's state was loaded, with the extra state ``states``."""
        self._anchor_extra = copy.deepcopy(states) if self.taken else {}
        self._own_parameters = []
        self._exchanged.clear()
        if not self.taken:
            self._is_apart = False

    def note_script_ready(self) -> None:
        """Record that the script has completed its work after a round, so that its extra state now
        belongs to the present parameters."""
        if not self.taken:
            self._anchor_extra = {}


def choose_stepper(trained: TrainedModel, run: PeerRun) -> tuple[EveryStep, TrainedModel]:
    """Return the stepper of a run, and the model with the optimizer that steps with aggregates. In
    a run with local steps, this is the outer optimizer."""
    if not run.config.has_local_steps:
        return EveryStep(), trained
    local = LocalSteps(trained, run)
    return local, replace(trained, optimizer=local.outer, inner_step=local.outer.step)


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the settings of each parameter group, such as its learning rate."""
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def settings_of(optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    """Return the settings of the user's optimizers, and the next step, for the extra state."""
    return {"step": step, "groups": groups_of(optimizer)}


def read_settings(saved: Any, optimizer: torch.optim.Optimizer) -> tuple[int, list[dict[str, Any]]]:
    """Return the step and the parameter groups that ``settings_of`` has saved. If nothing was
    saved, return -1 and the present groups of ``optimizer``.

    Raises: StateMismatch: ``saved`` has another form, or belongs to another optimizer.
    """
    own = groups_of(optimizer)
    if saved is None:
        return -1, own
    given = saved if isinstance(saved, dict) else {"step": 0}
    step, groups = given.get("step"), given.get("groups")
    if type(step) is not int or not isinstance(groups, list) or len(groups) != len(own):
        raise StateMismatch(
            f"the state has no settings of {len(own)} parameter groups of an optimizer",
            "all peers must build the same optimizer",
        )
    for theirs in groups:
        # Keys that a scheduler adds may be missing, because the scheduler may not exist yet on one
        # of the peers.
        if not isinstance(theirs, dict) or not optimizer.defaults.keys() <= theirs.keys():
            raise StateMismatch(
                "a parameter group of the state has other settings than the local one",
                "all peers must build the same optimizer",
            )
        theirs.pop("params", None)
    return step, groups


def _values(layout: Layout) -> list[Tensor]:
    return [parameter.detach() for parameter in layout.parameters]
