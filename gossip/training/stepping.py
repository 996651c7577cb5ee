"""Puts the exchange into ``optimizer.step()``, leaving the optimizer what it is to everybody else."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from gossip.errors import ConfigError, UnsupportedModel

Exchange = Callable[[float | None], None]
"""Called in place of a step, with the loss if it is known."""


def check_optimizer(optimizer: object) -> torch.optim.Optimizer:
    """The optimizer itself. Raises UnsupportedModel when its step cannot be split in gradient and update."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"prepare takes a torch.optim.Optimizer, got {type(optimizer).__name__}", "write peer.prepare(model, optimizer)"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedModel(
            "LBFGS evaluates the loss several times within a step, so there is no one gradient to exchange",
            "use SGD, Adam or another first-order optimizer",
        )
    return optimizer


def replace_step(optimizer: torch.optim.Optimizer, exchange: Exchange) -> Callable[[], object]:
    """Makes ``optimizer.step()`` call ``exchange``. Returns the step as it was.

    Only this instance changes: its class, its state and its parameter groups stay, and so do the hooks and schedulers that were
    registered before and those that come after. A copy of it is an ordinary optimizer.
    """
    inner = optimizer.step

    def step(self: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Exchanges the gradients, then steps with what the swarm made of them.

        Args:
            closure: Evaluates the loss and its gradients; called once.
        Returns: what ``closure`` returned.
        """
        if closure is None:
            exchange(None)
            return None
        with torch.enable_grad():
            loss = closure()
        exchange(float(loss))
        return loss

    def add_param_group(self: torch.optim.Optimizer, group: dict[str, Any]) -> None:
        raise UnsupportedModel(
            "the parameters are fixed once they are exchanged: add_param_group came after prepare",
            "add all groups first; those of frozen parameters do no harm",
        )

    # Schedulers put a wrapper around step that notes each call and carry this mark; one made before us has done so.
    if hasattr(inner, "_wrapped_by_lr_sched"):
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    optimizer.add_param_group = types.MethodType(add_param_group, optimizer)  # type: ignore[method-assign]
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        # Otherwise a GradScaler would leave the gradients scaled, by a factor that no two peers share.
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    return inner
