"""Puts the exchange into ``optimizer.step()``,
leaving the optimizer what it is to everybody else."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from gossip.errors import ConfigError, UnsupportedModel

_READERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)

Exchange = Callable[[float | None, bool], None]
"""Called in place of a step: with the loss if it is known, and whether the gradients are to be left
out (they overflowed)."""


def check_optimizers(given: object) -> list[torch.optim.Optimizer]:
    """The optimizers that ``prepare`` was given. Raises UnsupportedModel: A step cannot be split in
    gradient and update."""
    optimizers: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    if not optimizers:
        raise ConfigError("prepare was given no optimizer", "write peer.prepare(model, optimizer)")
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                "prepare takes a torch.optim.Optimizer or a list of them, got "
                f"{type(optimizer).__name__}",
                "write peer.prepare(model, optimizer)",
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UnsupportedModel(
                "LBFGS evaluates the loss several times within a step, so there is no one "
                "gradient to exchange",
                "use SGD, Adam or another first-order optimizer",
            )
    if len({id(optimizer) for optimizer in optimizers}) < len(optimizers):
        raise ConfigError("prepare was given the same optimizer twice")
    return optimizers


def only_reads_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step leaves the gradients as they are. Others may not: what steps all tensors at
    once adds to them in place, and a hook can do anything."""
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    )
    return (
        type(optimizer) in _READERS
        and not any(hooks)
        and not any(group["foreach"] or group["differentiable"] for group in optimizer.param_groups)
    )


class StepCoordinator:
    """The steps of the prepared optimizers: once each has been asked for one, their gradients are
    exchanged and all step.

    Only these instances change: their classes, states and parameter groups stay, and so do the
    hooks and schedulers that were registered before and those that come after. A copy of one is an
    ordinary optimizer.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], exchange: Exchange) -> None:
        self._optimizers, self._exchange = list(optimizers), exchange
        self._inner = [_replace(optimizer, at, self) for at, optimizer in enumerate(optimizers)]
        # optimizer -> its gradients when it was asked to step
        self._waiting: dict[int, list[_SeenGradient]] = {}
        self._overflow = self._warned = False
        self._loss: float | None = None

    def inner(self) -> None:
        """All optimizers' own steps, in their order, without an exchange."""
        for step in self._inner:
            step()

    def asked(self, at: int, loss: float | None) -> None:
        """Optimizer ``at`` was asked to step."""
        optimizer: Any = self._optimizers[at]
        if at in self._waiting:
            raise ConfigError(
                f"optimizer {at} of {len(self._optimizers)} was stepped twice before all others "
                "were stepped",
                "a round is one step of each; one whose parameters have no gradient changes "
                "nothing",
            )
        self._overflow |= _unscale(optimizer)
        self._loss = loss if loss is not None else self._loss
        if len(self._waiting) + 1 < len(self._optimizers):
            # Another loss may be propagated before the last one steps,
            # through these parameters, too.
            self._waiting[at] = [_SeenGradient(parameter) for parameter in _parameters(optimizer)]
            return
        waiting, self._waiting = self._waiting, {}
        overflow, self._overflow = self._overflow, False
        loss, self._loss = self._loss, None
        for other, seen in waiting.items():
            self._put_back(other, seen)
        self._exchange(loss, overflow)

    def _put_back(self, at: int, seen: list[_SeenGradient]) -> None:
        if not self._warned and any(each.changed for each in seen):
            self._warned = True
            warnings.warn(
                f"a loss was propagated after optimizer {at} was asked to step and before the "
                "last one was: gossip steps all optimizers of a round together, so that loss was "
                "taken before the step, not after it",
                stacklevel=5,
            )
        for each in seen:
            each.parameter.grad = each.gradient


def version_of(tensor: Tensor) -> int:
    """How often it was changed in place, as autograd counts."""
    return tensor._version


class _SeenGradient:
    """A parameter's gradient as it is."""

    def __init__(self, parameter: Tensor) -> None:
        self.parameter, self._at = parameter, parameter.grad
        self._version = version_of(parameter.grad) if parameter.grad is not None else 0
        self.gradient = parameter.grad.detach().clone() if parameter.grad is not None else None

    @property
    def changed(self) -> bool:
        """Whether there is another one since."""
        gradient = self.parameter.grad
        return gradient is not None and (
            gradient is not self._at or version_of(gradient) != self._version
        )


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _replace(
    optimizer: torch.optim.Optimizer, at: int, steps: StepCoordinator
) -> Callable[[], object]:
    """Makes ``optimizer.step()`` ask ``steps``. Returns the step as it was."""
    inner = optimizer.step

    def step(self: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Exchanges the gradients, then steps with what the swarm made of them.

        Args:
            closure: Evaluates the loss and its gradients; called once.
        Returns: what ``closure`` returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Schedulers warn where no step came before theirs; one whose round is in flight is one.
        self._opt_called = True  # type: ignore[attr-defined]
        steps.asked(
            at, None if loss is None else float(loss.detach() if isinstance(loss, Tensor) else loss)
        )
        return loss

    def add_param_group(self: torch.optim.Optimizer, group: dict[str, Any]) -> None:
        raise UnsupportedModel(
            "the parameters are fixed once they are exchanged: add_param_group came after prepare",
            "add all groups first, and freeze what is not to be trained yet after prepare",
        )

    # Schedulers put a wrapper around step that notes each call and carry this mark;
    # one made before us has done so.
    if hasattr(inner, "_wrapped_by_lr_sched"):
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    adds = types.MethodType(add_param_group, optimizer)
    optimizer.add_param_group = adds  # type: ignore[method-assign]
    # With this mark a GradScaler leaves the unscaling and the skipping of a step to the optimizer,
    # and hence to us: it calls step although the gradients overflowed, and the swarm is told that
    # this peer contributes nothing to the round.
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    return inner


def _unscale(optimizer: Any) -> bool:
    """What a ``GradScaler`` has left to the optimizer, if one calls.
    Returns whether gradients overflowed."""
    found, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    if found is None:
        return False
    # Fused optimizers look at these, too, and would unscale the aggregate once more. The scaler
    # deletes them afterwards.
    optimizer.found_inf = optimizer.grad_scale = None
    if float(found):
        return True
    if scale is not None:  # otherwise the user has called unscale_, to clip
        # as GradScaler.unscale_ does, so that the result is the same
        inverse = scale.double().reciprocal().float()
        for parameter in _parameters(optimizer):
            if parameter.grad is not None:
                parameter.grad.mul_(inverse.to(parameter.grad.device))
    return False
