"""Several steps of a peer's own between two rounds (local SGD, DiLoCo).

A round begins at the *anchor*: the parameters that all peers share. Each peer takes its own steps
from there. Its update is the model difference, anchor - parameters. It goes back to the anchor, and
what the rounds decide is applied there, by the outer optimizer. So rules, attacks, encodings,
states and checkpoints see what they see of gradients: parameters that are the same on all peers,
and the memory of the optimizer that steps them.

With overlap a peer goes on while its round runs. Its next steps begin where the outer step would
lead if its own difference were the aggregate. When the round is applied, at the end of these steps,
the aggregate takes the place of the own difference (Kale et al. 2025, arXiv:2502.12996).

With fragments (Streaming DiLoCo, Douillard et al. 2025, arXiv:2501.18512) a round is on one of them
alone. Its parameters go on from what the round has made of them, and those of the others from where
this peer's steps have led. While a peer waits for others all its parameters are the anchor, so that
it can hand over, save and step what all share; the own ones are on top again when it goes on.

With fragments and overlap it goes on while the round of a fragment runs, with its own parameters of
that fragment. When the round is applied, they become alpha own + (1 - alpha) shared, where alpha is
``mixing``.

The state of the user's own optimizers is each peer's own. A peer that joins begins with an empty
one. Only their settings, such as the learning rate, are part of the state that is handed over.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gossip.aggregators import outer as outer_steps

from .layout import Layout
from .state import StateMismatch
from .stepping import EveryStep, StepsTaken

STATE = "gossip.local_steps"
"""Key in the state beside the model, for the step of that state and the settings of the user's
optimizers."""


class LocalSteps(EveryStep):
    """Several steps of this peer between two rounds.

    Attributes:
        outer: The optimizer that steps with the aggregate of the model differences.
    """

    def __init__(
        self,
        layout: Layout,
        inner_step: Callable[[], object],
        total: int,
        outer: outer_steps.OuterStep,
        mixing: float | None = None,
    ) -> None:
        """
        Args:
            layout: Of the whole model.
            inner_step: Of the user's optimizers, without an exchange.
            mixing: A round exchanges a part of the model, of which a peer keeps this share of its
                own parameters, from 0 to below 1; None: a round is on all parameters.
        """
        super().__init__(total)
        self._outer_step, self.outer = outer, outer.optimizer(layout.parameters)
        self._layout, self._inner_step = layout, inner_step
        self._anchor: list[Tensor] = []
        # where this peer's steps began: the anchor, or a step with its own difference from there
        self._start: list[Tensor] = []
        self._is_ahead = False  # they did so there
        self._fragments, self._mixing = mixing is not None, mixing or 0.0
        self._settled: set[int] = set()  # parameters of rounds that were applied since it was apart
        self._is_apart = False  # between two rounds own steps are on top of the anchor
        self._own: list[Tensor] = []  # the own parameters, while those of the model are the anchor
        self._left: list[Tensor] = []  # the own parameters, where the shared ones took their place
        self._kept: dict[str, Any] = {}
        # the parameters are the shared ones, and own ones will be on top of them again
        self._at_anchor = False

    is_local = True

    @property
    def is_complete(self) -> bool:
        return self.ended or self.taken == self.total

    def step(self, extra: Callable[[], dict[str, Any]], skipped: bool = False) -> None:
        """Takes one step. With ``skipped`` it only counts.

        Args:
            extra: What belongs to the state beside the model, which is copied where a round begins:
                it goes with the anchor.
        """
        if self.taken == 0:
            self._begin(extra)
        self.taken += 1  # before the step, which may be interrupted: it is undone, then
        if not skipped:
            self._inner_step()
            self.good += 1

    def _begin(self, extra: Callable[[], dict[str, Any]]) -> None:
        if not (self._is_ahead or self._is_apart):
            self._note_anchor()
            self._start = self._anchor
        elif self._is_apart:
            self._start = self._layout.copy_parameters()
        self._left = []
        self._kept = copy.deepcopy(extra())

    def _note_anchor(self) -> None:
        if self._anchor:
            now = _values(self._layout)
            torch._foreach_copy_(self._anchor, now)  # pyright: ignore[reportPrivateImportUsage]
        else:
            self._anchor = self._layout.copy_parameters()

    def put_update(self, overflow: bool) -> bool:
        """Return to the anchor, with the model difference as the gradients.

        A parameter that has no gradient and that no step has moved still has none. With fragments
        the difference has the steps since the last round of each fragment, and ``go_on`` ends the
        round, after ``drop`` if the difference is of no use. It is if no step was taken.
        """
        for parameter, value, start in self._triples(self._base):
            gradient = parameter.grad
            if gradient is not None and not (gradient.requires_grad or gradient.is_sparse):
                torch.sub(start, value, out=gradient)
            elif not torch.equal(start, value):
                parameter.grad = start - value
        still = not self.good
        self._own = self._layout.copy_parameters() if self._fragments else []
        self._layout.set_parameters(self._anchor)
        self._forget_steps()
        self._is_ahead = self._is_apart = False
        return still

    def count(self, kind: int, lasted_s: float) -> StepsTaken:
        return StepsTaken(self.taken, self.total, lasted_s, kind)

    @property
    def _base(self) -> list[Tensor]:
        """Parameters at which the steps began that are not exchanged yet."""
        return self._anchor if self._fragments else self._start

    def settled(self, exchanged: Sequence[Tensor]) -> None:
        """A round was applied whose update was of the parameters ``exchanged``."""
        if self._fragments:
            self._settled.update(map(id, exchanged))

    def go_on(self) -> None:
        """Behind a round: own steps are on top of the shared parameters again, but for those that
        ``settled`` has named."""
        if not self._own:
            self._settled.clear()
            return  # a round is on all parameters, or a state of others has taken their place
        with torch.no_grad():
            for own, (parameter, now, before) in zip(
                self._own, self._triples(self._anchor), strict=True
            ):
                self._put_on_top(parameter, now, before, own)
        if all(bool(own.isfinite().all()) for own in self._own):
            self._go_apart()
        else:  # nothing would come of them any more: begins anew from what all share
            self._own = []
            self._settled.clear()

    def _put_on_top(self, parameter: Tensor, now: Tensor, before: Tensor, own: Tensor) -> None:
        """``own`` parameters were on top of the shared ones ``before``, and are on top of those of
        ``now``."""
        if id(parameter) not in self._settled:
            if not torch.equal(now, before):
                own.add_(now - before)
        elif self._mixing:
            own.lerp_(now, 1.0 - self._mixing)
        else:
            own.copy_(now)

    def drop(self) -> None:
        """The steps that ``put_update`` has gone back from count for nothing."""
        if self._own:
            self._own = [start.clone() for start in self._start]

    def _go_apart(self) -> None:
        """Move from the anchor, where the parameters are, to the own ones."""
        self._note_anchor()
        self._layout.set_parameters(self._own)
        self._own, self._is_apart = [], True
        self._settled.clear()

    @property
    def own_parameters(self) -> list[Tensor]:
        """Between two rounds, for a checkpoint: a copy of them, also when they have just been
        abandoned. Empty where they are those that all share."""
        return self._layout.copy_parameters() if self._is_apart else self._left

    def load_own(self, own: Sequence[Tensor]) -> None:
        """The model was loaded, and ``go_on`` puts these own parameters on top of it.

        Raises: StateMismatch: They are of another model.
        """
        here = [(value.shape, value.dtype) for value in self._layout.parameters]
        if own and [(value.shape, value.dtype) for value in own] != here:
            raise StateMismatch("its own parameters are of another model")
        self._note_anchor()
        self._own = [value.to(self._layout.device, copy=True) for value in own]

    def go_ahead(self) -> None:
        """The gradients, the own model difference, were offered, and their round is not applied:
        the next steps begin behind an outer step with that difference. The memory of the outer step
        is as it was before. With fragments they begin where the last ones have ended."""
        if self._fragments:
            self.go_on()
            return
        self._note_anchor()
        gradients = [p.grad for p in self._layout.parameters if p.grad is not None]
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            return  # begins anew from what all share
        with torch.no_grad():
            for parameter in self._layout.parameters:
                if parameter.grad is not None:
                    memory = self.outer.state[parameter].get("momentum_buffer")
                    parameter.sub_(self._outer_step.move(parameter.grad, memory)[0])
        self._start, self._is_ahead = self._layout.copy_parameters(), True

    def rewind(self) -> int:
        """Goes back to where the steps began. Returns how many steps that undoes."""
        if self.taken and self._at_anchor:
            self._is_apart = False  # what this peer had before them is not known any more
        elif self.taken:
            self._layout.set_parameters(self._start)
        return self._forget_steps()

    def abandon(self) -> None:
        """Undoes the steps, and what is below them: the outer step with the own difference, or
        steps of earlier rounds that were not exchanged. The parameters are the shared ones."""
        self.rewind()
        if self._is_apart and not self._at_anchor:
            self._left = self._layout.copy_parameters()
        if (self._is_ahead or self._is_apart) and not self._at_anchor:
            self._layout.set_parameters(self._anchor)
        self._is_ahead = self._is_apart = False
        self._own = []

    def _forget_steps(self) -> int:
        undone, self.taken, self.good, self.ended = self.taken, 0, 0, False
        return undone

    @contextmanager
    def at_anchor(self) -> Iterator[None]:
        """Within it the parameters are those that all peers share, and may be replaced: no round
        is in flight at its end. Afterwards this peer's steps are on top of them again."""
        if self._at_anchor or not (self.taken or self._is_ahead or self._is_apart):
            yield
            if not (self._at_anchor or self._own):
                self._settled.clear()
            return
        own = self._layout.copy_parameters()
        self._layout.set_parameters(self._anchor)
        self._at_anchor = True
        try:
            yield
        finally:
            self._at_anchor = self._is_ahead = False
            if self.taken or self._is_apart:  # else they were undone meanwhile
                self._put_back(own)
            self._settled.clear()

    def _put_back(self, own: list[Tensor]) -> None:
        starts = self._start if self.taken and self._is_apart else []
        with torch.no_grad():
            for at, (parameter, shared, base) in enumerate(self._triples(self._base)):
                for each in (own[at], *starts[at : at + 1]):
                    self._put_on_top(parameter, shared, base, each)
        self._settled.clear()
        self._note_anchor()
        if not self._is_apart:
            self._start = self._anchor
        self._layout.set_parameters(own)

    def _triples(self, base: list[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield each parameter, its values, and those of ``base``."""
        return zip(self._layout.parameters, _values(self._layout), base, strict=True)

    def extra_state(self, now: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what belongs to the anchor beside the model: as it was when the round began, or as
        it is ``now`` where none has begun."""
        return self._kept if self.taken or self._kept else now()

    def replaced(self, states: dict[str, Any]) -> None:
        """A state of others was taken over, with what belongs to it."""
        self._kept = copy.deepcopy(states) if self.taken else {}
        self._own = []
        self._settled.clear()
        if not self.taken:
            self._is_apart = False

    def boundary_is_over(self) -> None:
        """Note that the script has done what it does behind a round: what is kept belongs to the
        parameters as they are."""
        if not self.taken:
            self._kept = {}


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The settings of each parameter group, such as its learning rate."""
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def settings_of(optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    """Return the settings of the user's optimizers that go with a state whose next step is
    ``step``."""
    return {"step": step, "groups": groups_of(optimizer)}


def read_settings(said: Any, optimizer: torch.optim.Optimizer) -> tuple[int, list[dict[str, Any]]]:
    """Return what ``settings_of`` gave; those of ``optimizer`` as they are where nothing was given.

    Raises: StateMismatch: It is something else, or of another optimizer.
    """
    own = groups_of(optimizer)
    if said is None:
        return -1, own
    step, groups = (said.get("step"), said.get("groups")) if isinstance(said, dict) else (0, None)
    if type(step) is not int or not isinstance(groups, list) or len(groups) != len(own):
        raise StateMismatch(
            f"the state has no settings of {len(own)} parameter groups of an optimizer",
            "all peers must build the same optimizer",
        )
    for theirs in groups:
        # A scheduler adds some, which one side may not have made yet.
        if not isinstance(theirs, dict) or not optimizer.defaults.keys() <= theirs.keys():
            raise StateMismatch(
                "a parameter group of the state has other settings than ours",
                "all peers must build the same optimizer",
            )
        theirs.pop("params", None)
    return step, groups


def _values(layout: Layout) -> list[Tensor]:
    return [parameter.detach() for parameter in layout.parameters]
