"""Detects optimizers that step without having been passed to ``prepare``. Their gradients are not
exchanged. No other check finds this mistake, because each peer's loss decreases, although it trains
alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gossip.errors import ConfigError, TrainingWarning

STEPS = 50
_PREPARE = (
    "write model, optimizer = peer.prepare(model, optimizer) after the optimizer is built, and "
    "step that one"
)


class UnpreparedOptimizers:
    """Observer of the steps of all optimizers in this process. It warns at most once."""

    def __init__(self) -> None:
        self._prepared: Sequence[torch.optim.Optimizer] = ()
        self._parameters: set[int] = set()
        self._applied: torch.optim.Optimizer | None = None
        self._alone = True
        self._exchanges = self._steps = 0  # prepared steps, and other steps since
        self._paused = self._warned = False
        self._began: dict[int, int] = {}  # ``_exchanges`` at a step's start, by optimizer
        self._stepped: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._intruder = ""  # class that stepped prepared parameters since the last exchange
        self._handles: list[Any] = [
            register_optimizer_step_pre_hook(self._begin),
            register_optimizer_step_post_hook(self._end),
        ]

    def prepared(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        applied: torch.optim.Optimizer,
        *,
        alone: bool,
    ) -> None:
        """Register the prepared ``optimizers``, and ``applied``, the optimizer that steps with the
        aggregate. ``alone``: whether there is no other peer."""
        self._prepared, self._applied, self._alone = optimizers, applied, alone
        self._parameters = {id(p) for each in optimizers for p in parameters_of(each)}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore steps in the ``with`` block, because they are not part of the training or are the
        same on all peers."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def exchanged(self) -> None:
        """Record that a prepared optimizer steps."""
        self._exchanges += 1
        self._steps, self._intruder = 0, ""
        self._began.clear()  # also entries of steps that raised an exception

    def begin_batch(self) -> None:
        """Drop the record of steps before this batch."""
        self._intruder = ""

    def check_passed(self) -> None:
        """Check a batch on which no prepared optimizer has stepped. Raises ConfigError: Another
        optimizer has stepped the prepared parameters."""
        if self._intruder:
            raise ConfigError(
                f"{self._intruder} steps the parameters of peer.prepare, but was not passed to it: "
                "nothing is exchanged",
                "change the settings of the prepared optimizer (optimizer.param_groups) instead "
                "of making a new one",
            )

    def over(self) -> None:
        """Stop observing steps."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._began[id(optimizer)] = self._exchanges

    def _end(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        began = self._began.pop(id(optimizer), None)
        # An optimizer around or inside a prepared optimizer counts as prepared.
        inside = any(id(each) in self._began for each in self._prepared)
        known = optimizer is self._applied or optimizer in self._prepared
        if self._paused or inside or known or began != self._exchanges:
            return
        kind, parameters = type(optimizer).__name__, parameters_of(optimizer)
        if any(id(parameter) in self._parameters for parameter in parameters):
            self._intruder = kind
        elif self._exchanges and self._stepped.setdefault(optimizer, began) != began:
            self._warn(
                f"{kind} steps, but was not passed to peer.prepare: each peer trains its "
                "parameters alone",
                "pass everything that is trained to peer.prepare: "
                "prepare(ModuleList([model, criterion]), [optimizer, other])",
                unless=self._alone,
            )
        self._steps += bool(self._intruder) or not self._exchanges
        if self._steps == STEPS:
            why = "peer.prepare() was not called"
            if self._prepared:
                given = " and ".join(dict.fromkeys(type(each).__name__ for each in self._prepared))
                why = (
                    f"peer.prepare() received a different optimizer ({given}) from the one that "
                    f"steps here ({kind})"
                )
            self._warn(
                f"optimizer.step() ran {STEPS} times and nothing was exchanged: {why}", _PREPARE
            )

    def _warn(self, what: str, hint: str, *, unless: bool = False) -> None:
        if not (self._warned or unless):
            self._warned = True
            warnings.warn(f"{what}. {hint}", TrainingWarning, stacklevel=4)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
