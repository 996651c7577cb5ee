"""Several steps of a peer's own between two rounds (local SGD, DiLoCo).

A round begins at the *anchor*: the parameters that all peers share. Each peer takes its own steps
from there. Its update is the model difference, anchor - parameters. It goes back to the anchor, and
what the rounds decide is applied there, by the outer optimizer. So rules, attacks, encodings,
states and checkpoints see what they see of gradients: parameters that are the same on all peers,
and the memory of the optimizer that steps them.

With overlap a peer goes on while its round runs. Its next steps begin where the outer step would
lead if its own difference were the aggregate. When the round is applied, at the end of these steps,
the aggregate takes the place of the own difference (Kale et al. 2025, arXiv:2502.12996).

The state of the user's own optimizers is each peer's own. A peer that joins begins with an empty
one. Only their settings, such as the learning rate, are part of the state that is handed over.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gossip.aggregators import outer as outer_steps

from .layout import Layout
from .state import StateMismatch

STATE = "gossip.local_steps"
"""Of the state beside the model: the step of what is kept, and the settings of the user's
optimizers."""


class LocalSteps:
    """Where a peer is between two rounds.

    Attributes:
        total: Steps of a round.
        taken: Of them, those that lie behind.
        good: Of these, those that were not skipped.
        ended: The round is over with those that were taken.
        outer: The optimizer that steps with the aggregate of the model differences.
    """

    def __init__(
        self,
        layout: Layout,
        inner_step: Callable[[], object],
        total: int,
        outer: outer_steps.OuterStep,
    ) -> None:
        """``inner_step``: of the user's optimizers, without an exchange."""
        self.total, self.taken, self.good, self.ended = total, 0, 0, False
        self._outer_step, self.outer = outer, outer.optimizer(layout.parameters)
        self._layout, self._inner_step = layout, inner_step
        self._anchor: list[Tensor] = []
        # where this peer's steps began: the anchor, or a step with its own difference from there
        self._start: list[Tensor] = []
        self._is_ahead = False  # they did so there
        self._kept: dict[str, Any] = {}
        self._at_anchor = False  # steps were taken, and the parameters are the shared ones

    @property
    def is_complete(self) -> bool:
        """Whether a round follows."""
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
        if not self._is_ahead:
            self._note_anchor()
            self._start = self._anchor
        self._kept = copy.deepcopy(extra())

    def _note_anchor(self) -> None:
        if self._anchor:
            now = _values(self._layout)
            torch._foreach_copy_(self._anchor, now)  # pyright: ignore[reportPrivateImportUsage]
        else:
            self._anchor = self._layout.copy_parameters()

    def put_difference(self) -> bool:
        """Goes back to the anchor. The gradients are the model difference now; a parameter that has
        no gradient and that no step has moved still has none. Returns whether any step was taken.
        """
        for parameter, value, start in self._triples():
            gradient = parameter.grad
            if gradient is not None and not (gradient.requires_grad or gradient.is_sparse):
                torch.sub(start, value, out=gradient)
            elif not torch.equal(start, value):
                parameter.grad = start - value
        moved = self.good > 0
        self._layout.set_parameters(self._anchor)
        self._forget_steps()
        self._is_ahead = False
        return moved

    def go_ahead(self) -> None:
        """The gradients, the own model difference, were offered, and their round is not applied:
        the next steps begin behind an outer step with that difference. The memory of the outer step
        is as it was before."""
        self._note_anchor()
        with torch.no_grad():
            for parameter in self._layout.parameters:
                if parameter.grad is not None:
                    memory = self.outer.state[parameter].get("momentum_buffer")
                    parameter.sub_(self._outer_step.move(parameter.grad, memory)[0])
        self._start, self._is_ahead = self._layout.copy_parameters(), True

    def rewind(self) -> int:
        """Goes back to where the steps began. Returns how many steps that undoes."""
        if self.taken and not self._at_anchor:
            self._layout.set_parameters(self._start)
        return self._forget_steps()

    def abandon(self) -> None:
        """Undoes the steps, and the outer step with the own difference below them."""
        self.rewind()
        if self._is_ahead and not self._at_anchor:
            self._layout.set_parameters(self._anchor)
        self._is_ahead = False

    def _forget_steps(self) -> int:
        undone, self.taken, self.good, self.ended = self.taken, 0, 0, False
        return undone

    @contextmanager
    def at_anchor(self) -> Iterator[None]:
        """Within it the parameters are those that all peers share, and may be replaced: no round
        is in flight at its end. Afterwards this peer's steps are on top of them again."""
        if not (self.taken or self._is_ahead):
            yield
            return
        own = self._layout.copy_parameters()
        self._layout.set_parameters(self._anchor)
        self._at_anchor = True
        try:
            yield
        finally:
            self._at_anchor = self._is_ahead = False
            if self.taken:  # else they were undone meanwhile
                self._put_back(own)

    def _put_back(self, own: list[Tensor]) -> None:
        with torch.no_grad():
            for (_, shared, start), mine in zip(self._triples(), own, strict=True):
                if not torch.equal(shared, start):
                    mine.add_(shared - start)
        self._note_anchor()
        self._start = self._anchor
        self._layout.set_parameters(own)

    def _triples(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of each parameter: itself, its values, and those where the steps began."""
        values = _values(self._layout)
        return zip(self._layout.parameters, values, self._start, strict=True)

    def extra_state(self, now: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What belongs to the anchor beside the model: as it was when the round began, or as it is
        ``now`` where none has begun."""
        return self._kept if self.taken or self._kept else now()

    def replaced(self, states: dict[str, Any]) -> None:
        """A state of others was taken over, with what belongs to it."""
        self._kept = copy.deepcopy(states) if self.taken else {}

    def boundary_is_over(self) -> None:
        """What the script does behind a round has been done: what is kept belongs to the parameters
        as they are."""
        if not self.taken:
            self._kept = {}


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The settings of each parameter group, such as its learning rate."""
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def settings_of(optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    """What of the user's optimizers goes with a state, in which ``step`` is the next step."""
    return {"step": step, "groups": groups_of(optimizer)}


def read_settings(said: Any, optimizer: torch.optim.Optimizer) -> tuple[int, list[dict[str, Any]]]:
    """What ``settings_of`` gave; those of ``optimizer`` as they are where nothing was said.

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
