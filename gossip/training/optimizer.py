"""Puts the exchange into ``optimizer.step()``,
leaving the optimizer what it is to everybody else."""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from gossip.errors import ConfigError, UnsupportedModel

from .several import parts_of

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
    return [find_stepped(optimizer) for optimizer in optimizers]


def find_stepped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer whose step applies a gradient: the optimizer itself, or the one that it
    holds, if ``step`` needs a closure or another method steps the held one (SAM's ``second_step``).

    Gradients are exchanged where the held one steps, so a first gradient that only moves the
    weights away and back (SAM's ascent) stays with this peer.
    """
    for name, held in vars(optimizer).items():
        if not isinstance(held, torch.optim.Optimizer):
            continue
        if {id(p) for p in _parameters(held)} != {id(p) for p in _parameters(optimizer)}:
            continue
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        needs_closure = closure is not None and closure.default is inspect.Parameter.empty
        if needs_closure or any(
            {name, "step"} <= set(method.__code__.co_names)
            for kind in type(optimizer).__mro__
            if kind is not torch.optim.Optimizer
            for method in map(inspect.unwrap, filter(inspect.isfunction, vars(kind).values()))
            if method.__name__ not in ("step", "__init__")
        ):
            return held
    return optimizer


def only_reads_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step leaves the gradients as they are, and draws no random numbers. Others may not:
    what steps all tensors at once adds to gradients in place, and a hook or a step that the script
    has put in place of the class's can do anything."""
    if _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        return False
    return all(
        type(each) in _READERS
        and getattr(each.step, "is_of_class", True)
        and not each._optimizer_step_pre_hooks
        and not each._optimizer_step_post_hooks
        and not any(group["foreach"] or group["differentiable"] for group in each.param_groups)
        for each in parts_of(optimizer)
    )


class StepCoordinator:
    """The steps of the prepared optimizers: once each has been asked for one, their gradients are
    exchanged and all step.

    Only these instances change: their classes, states and parameter groups stay, and so do the
    hooks and schedulers that were registered before and those that come after. A copy of one is an
    ordinary optimizer.

    Args:
        direct: Called before the first optimizer of a round steps; then each steps with its own
            gradients when it is asked to, and the exchange changes nothing: this peer is alone.
            Returns whether there is such a round. None: gradients are exchanged.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        exchange: Exchange,
        direct: Callable[[], bool] | None = None,
    ) -> None:
        self._optimizers, self._exchange, self._direct = list(optimizers), exchange, direct
        self._inner = [_replace(optimizer, at, self) for at, optimizer in enumerate(optimizers)]
        for optimizer in optimizers if direct is None else ():
            _make_modes_exact(optimizer)
        # optimizer -> its gradients when it was asked to step
        self._waiting: dict[int, list[_SeenGradient]] = {}
        self._overflow = self._warned = False
        self._loss: float | None = None

    def inner(self) -> None:
        """Step every optimizer that has a gradient, in their order, without an exchange."""
        for optimizer, step in zip(self._optimizers, self._inner, strict=True):
            if len(self._inner) == 1 or any(p.grad is not None for p in _parameters(optimizer)):
                with in_train_mode(optimizer):
                    step()

    def request_step(self, at: int, loss: float | None) -> None:
        """Record that optimizer ``at`` was asked to step; exchange when it was the last one.

        An optimizer that is asked again before all others were asked begins another round: the
        others do not step in the one that this closes.
        """
        if at in self._waiting:
            self.close_round()
        optimizer = self._optimizers[at]
        overflow = _unscale(optimizer)
        self._loss = loss if loss is not None else self._loss
        if self._direct is not None:
            if not (self._waiting or self._direct()):
                return
            if not overflow:
                self._inner[at]()
            self._waiting[at] = []
        else:
            self._overflow |= overflow
            # Another loss may be propagated before the last one steps,
            # through these parameters, too.
            is_last = len(self._waiting) + 1 == len(self._optimizers)
            self._waiting[at] = [] if is_last else self._seen(at)
        if len(self._waiting) == len(self._optimizers):
            self.close_round()

    def close_round(self) -> bool:
        """Exchange the gradients of the optimizers that were asked to step. The others do not
        step, and their gradients stay as they are. Returns whether any was asked to."""
        if not self._waiting:
            return False
        waiting, self._waiting = self._waiting, {}
        overflow, self._overflow = self._overflow, False
        loss, self._loss = self._loss, None
        put_by: list[tuple[Tensor, Tensor | None]] = []
        if self._direct is None:
            for at in range(len(self._optimizers)):
                put_by += self._replace_gradients(waiting.get(at), at)
        try:
            self._exchange(loss, overflow)
        finally:
            for parameter, gradient in put_by:
                parameter.grad = gradient
        return True

    def _seen(self, at: int) -> list[_SeenGradient]:
        return [_SeenGradient(parameter) for parameter in _parameters(self._optimizers[at])]

    def _replace_gradients(
        self, seen: list[_SeenGradient] | None, at: int
    ) -> list[tuple[Tensor, Tensor | None]]:
        """Set the gradients of optimizer ``at`` to those of when it was asked to step; to none if
        it was not (``seen`` is None). Returns what was replaced."""
        if seen is None:
            found = [(p, p.grad) for p in _parameters(self._optimizers[at])]
            for parameter, _ in found:
                parameter.grad = None
            return found
        if any(each.was_moved for each in seen):
            raise ConfigError(
                f"weights of optimizer {at} were changed after its step() and before the last "
                "optimizer's: gossip steps all optimizers of a round together, so that step is "
                "yet to come",
                "change them in a function that is given to peer.each_step",
            )
        changed = [each for each in seen if each.has_changed]
        if not self._warned and any(each.has_grown for each in changed):
            self._warned = True
            warnings.warn(
                f"a loss was propagated after optimizer {at} was asked to step and before the "
                "last one was: gossip steps all optimizers of a round together, so that loss was "
                "taken before the step, not after it",
                stacklevel=5,
            )
        found = [(each.parameter, each.parameter.grad) for each in changed]
        for each in changed:
            each.parameter.grad = each.gradient
        return found


@contextmanager
def staying_in_mode(optimizer: Any) -> Iterator[None]:
    """Keep the mode of a schedule-free optimizer while the block loads a state, which may have the
    other one."""
    modes = [(each, _is_in_mode(each, True)) for each in parts_of(optimizer)]
    yield
    for each, trains in modes:
        if _is_in_mode(each, not trains):
            (each.train if trains else each.eval)()  # type: ignore[attr-defined]


def _is_in_mode(optimizer: torch.optim.Optimizer, train: bool) -> bool:
    return train in [group.get("train_mode") for group in optimizer.param_groups]


def in_train_mode(optimizer: Any) -> AbstractContextManager[None]:
    """Put the weights that a schedule-free optimizer trains into the model for the block, which
    steps or reads them: the script may be evaluating the averaged ones."""
    evaluates = [each for each in parts_of(optimizer) if _is_in_mode(each, False)]
    return _switched(evaluates) if evaluates else nullcontext()


@contextmanager
def _switched(optimizers: Sequence[Any]) -> Iterator[None]:
    for each in optimizers:
        each.train()
    try:
        yield
    finally:
        for each in optimizers:
            each.eval()


def _make_modes_exact(optimizer: Any) -> None:
    """Make ``train()`` restore the weights that ``eval()`` has replaced, bit for bit.

    A schedule-free optimizer computes them back, which rounds, and peers evaluate after different
    steps. A state that was loaded in between is not undone, nor are weights that were written in
    place; those that were written by way of ``.data`` are.
    """
    trained: list[tuple[Tensor, Tensor, int]] = []
    state = optimizer.state

    def make_exact(switch: Callable[..., object]) -> Callable[..., None]:
        def switch_mode(*mode: bool) -> None:
            nonlocal state
            before = _is_in_mode(optimizer, True)
            values = [(p, p.detach().clone()) for p in _parameters(optimizer) if before]
            if state is optimizer.state:
                kept = [(p, value) for p, value, version in trained if version_of(p) == version]
            else:
                kept = []
            switch(*mode)
            if before and _is_in_mode(optimizer, False):
                state = optimizer.state
                trained[:] = [(p, value, version_of(p)) for p, value in values]
            elif not before and _is_in_mode(optimizer, True):
                trained.clear()
                for parameter, value in kept:
                    parameter.data.copy_(value)

        return switch_mode

    if any("train_mode" in group for group in optimizer.param_groups):
        optimizer.eval, optimizer.train = make_exact(optimizer.eval), make_exact(optimizer.train)


def version_of(tensor: Tensor) -> int:
    """How often it was changed in place, as autograd counts."""
    return tensor._version


class _SeenGradient:
    """A parameter with its gradient as it is."""

    def __init__(self, parameter: Tensor) -> None:
        self.parameter, self._at = parameter, parameter.grad
        self.gradient = parameter.grad.detach().clone() if parameter.grad is not None else None
        self._value = parameter.detach().clone()

    @property
    def was_moved(self) -> bool:
        """Whether the parameter has another value since."""
        return not torch.equal(self._value, self.parameter.detach())

    @property
    def has_changed(self) -> bool:
        """Whether the gradient was replaced or written to since, also by way of ``.data``."""
        gradient = self.parameter.grad
        return gradient is not self._at or (
            gradient is not None
            and self.gradient is not None
            and not torch.equal(gradient, self.gradient)
        )

    @property
    def has_grown(self) -> bool:
        """Whether it has changed to anything but zeros: a loss was propagated."""
        gradient = self.parameter.grad
        return gradient is not None and self.has_changed and bool(gradient.any())


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
        steps.request_step(
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
    own = getattr(inner, "__func__", inner)
    if hasattr(inner, "_wrapped_by_lr_sched"):
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        own = own.__wrapped__
    step.is_of_class = own is type(optimizer).step  # type: ignore[attr-defined]
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
