"""Notices that a script trains and exchanges nothing, which is not an error anywhere: the losses
fall, each peer on its own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

STEPS = 50


class UnexchangedWarning:
    """Counts the steps of all optimizers of this process until gradients are
    exchanged, and warns once."""

    def __init__(self) -> None:
        self._steps, self._paused = 0, False
        self._prepared: list[str] = []
        self._handle: Any = register_optimizer_step_post_hook(self._stepped)

    def prepared(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """These exchange when they step."""
        self._prepared = [type(optimizer).__name__ for optimizer in optimizers]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Steps within it are not of the training."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def over(self) -> None:
        """Something is exchanged, or there will be no steps any more."""
        self._handle.remove()

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._steps += not self._paused
        if self._paused or self._steps < STEPS:
            return
        self.over()
        stepped, kind = (
            f"optimizer.step() ran {STEPS} times and nothing was exchanged",
            type(optimizer).__name__,
        )
        if self._prepared:
            known = " and ".join(dict.fromkeys(self._prepared))
            why = (
                f"peer.prepare() was given another optimizer ({known}) than the optimizer that "
                f"steps here ({kind})"
            )
        else:
            why = "peer.prepare() was not called"
        hint = (
            "write model, optimizer = peer.prepare(model, optimizer) after the optimizer is "
            "built, and step that one"
        )
        warnings.warn(f"{stepped}: {why}. {hint}", stacklevel=3)
