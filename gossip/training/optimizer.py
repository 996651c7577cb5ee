"""Makes ``optimizer.step()`` exchange gradients. Otherwise the optimizer is unchanged."""

from __future__ import annotations

import inspect
import types
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from gossip.errors import ConfigError, UnsupportedModel

from .several import parts_of
from .unprepared import UnpreparedOptimizers, parameters_of

_READERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)

Exchange = Callable[[float | None, bool, frozenset[int]], None]
"""Function that is called in place of ``optimizer.step()``. Its arguments are the loss, if known,
whether the gradients overflowed, and the numbers of the optimizers that step."""


def check_optimizers(given: object) -> list[torch.optim.Optimizer]:
    """Return the optimizers that were passed to ``prepare``, as a list. Raises UnsupportedModel if
    an optimizer's step cannot be split into gradient and update."""
    optimizers: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    if not optimizers:
        raise ConfigError("prepare received no optimizer", "write peer.prepare(model, optimizer)")
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                "prepare takes a torch.optim.Optimizer or a list of them, got "
                f"{type(optimizer).__name__}",
                "write peer.prepare(model, optimizer)",
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UnsupportedModel(
                "LBFGS evaluates the loss several times within a step, so there is no single "
                "gradient to exchange",
                "use SGD, Adam or another first-order optimizer",
            )
    if len({id(optimizer) for optimizer in optimizers}) < len(optimizers):
        raise ConfigError("prepare received the same optimizer twice")
    owned = [id(p) for optimizer in optimizers for p in parameters_of(optimizer)]
    if twice := len(owned) - len(set(owned)):
        raise UnsupportedModel(
            f"{twice} parameter{'s are' if twice > 1 else ' is'} in two optimizers, which "
            "exchange their gradients separately",
            "put each parameter into one optimizer",
        )
    return [find_stepped(optimizer) for optimizer in optimizers]


def find_stepped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer that applies the gradient in its ``step``.

    If ``optimizer`` wraps an inner optimizer, this is the inner optimizer in two cases: the outer
    ``step`` needs a closure, or another method of ``optimizer`` steps the inner optimizer (SAM's
    ``second_step``). Otherwise it is ``optimizer`` itself. Gradients are exchanged when the inner
    optimizer steps, so a first gradient that only moves the weights temporarily (SAM's ascent)
    stays on this peer.
    """
    for name, held in vars(optimizer).items():
        if not isinstance(held, torch.optim.Optimizer):
            continue
        if {id(p) for p in parameters_of(held)} != {id(p) for p in parameters_of(optimizer)}:
            continue
        if _needs_closure(optimizer) or any(
            {name, "step"} <= set(method.__code__.co_names)
            for kind in type(optimizer).__mro__
            if kind is not torch.optim.Optimizer
            for method in map(inspect.unwrap, filter(inspect.isfunction, vars(kind).values()))
            if method.__name__ not in ("step", "__init__")
        ):
            return held
    return optimizer


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def only_reads_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step certainly neither changes gradients nor uses random numbers. Optimizers with
    ``foreach`` change gradients in place. Hooks of the script, and a ``step`` that the script has
    replaced, may do anything."""
    hooks = (*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values())
    if not all(isinstance(getattr(each, "__self__", None), UnpreparedOptimizers) for each in hooks):
        return False
    for each in parts_of(optimizer):
        own_hooks = each._optimizer_step_pre_hooks or each._optimizer_step_post_hooks
        if own_hooks or type(each) not in _READERS or not getattr(each.step, "is_of_class", True):
            return False
        for group in each.param_groups:
            if group["foreach"] or group["differentiable"]:
                return False
    return True


class _UnknownLoss(Tensor):
    """Loss that an optimizer receives if it calls the closure within its step. Each peer has
    another loss, so computing with it raises UnsupportedModel."""

    @classmethod
    def __torch_function__(cls, *_: object, **__: object) -> Any:
        raise UnsupportedModel(
            "the optimizer computes with the loss of step(closure), which differs between peers",
            "use an optimizer that computes with gradients only",
        )


def _closure_of(optimizer: torch.optim.Optimizer) -> Callable[..., Tensor]:
    """Return a closure for the step with the aggregate. It keeps the gradients, so it raises
    UnsupportedModel if the weights or gradients have changed: the optimizer needs other gradients
    (SAM), or has set them to zero."""
    values, gradients = _values_of(optimizer), _gradients_of(optimizer)

    def keep_gradients(*_: object, **__: object) -> Tensor:
        if _gradients_of(optimizer) != gradients or not _are_unchanged(values):
            raise UnsupportedModel(
                f"{type(optimizer).__name__} changes weights or gradients, then calls its closure",
                "use an optimizer that needs one gradient for a step; SAM works if it steps an "
                "inner optimizer",
            )
        # A meta tensor has no value. torch reads values of some arguments, such as ``alpha``,
        # without ``__torch_function__``.
        return torch.empty((), device="meta").as_subclass(_UnknownLoss)

    return keep_gradients


def _gradients_of(optimizer: torch.optim.Optimizer) -> list[tuple[int, int]]:
    """Return the id and version of each gradient, which change if the gradient changes."""
    gradients = [p.grad for p in parameters_of(optimizer)]
    return [(id(each), -1 if each is None else version_of(each)) for each in gradients]


def _values_of(optimizer: torch.optim.Optimizer) -> list[tuple[Tensor, Tensor]]:
    return [(p, p.detach().clone()) for p in parameters_of(optimizer)]


def _are_unchanged(values: Sequence[tuple[Tensor, Tensor]]) -> bool:
    return all(torch.equal(parameter.detach(), before) for parameter, before in values)


FREEZE = (
    "add all groups first; after prepare freeze those that are not trained by requires_grad_(False)"
)


class StepCoordinator:
    """Steps of the prepared optimizers. By default each optimizer exchanges its gradients in its
    own round.

    Steps during a backward pass, such as in hooks of parameters, share one round at the end of the
    pass. With ``together`` all optimizers share one round. Only the methods ``step`` and
    ``add_param_group`` of the prepared instances are replaced. Classes, states, hooks and
    schedulers of these optimizers work as before. A copy of a prepared optimizer is an ordinary
    optimizer.

    Attributes:
        stepped: Numbers of the optimizers that stepped in the last ``step``.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        exchange: Exchange,
        together: bool = False,
        given: object = (),
    ) -> None:
        """``given``: the script's argument to ``prepare``, an optimizer or a sequence of them."""
        self._optimizers, self._exchange = list(optimizers), exchange
        self._given = given if isinstance(given, Sequence) else [given]
        self._together = together and len(optimizers) > 1
        self._inner = [_replace(optimizer, at, self) for at, optimizer in enumerate(optimizers)]
        # Numbers of the optimizers whose steps need a closure, and of those, other than torch's, to
        # which the script passes one.
        self._closures = {at for at, each in enumerate(optimizers) if _needs_closure(each)}
        self._all = frozenset(range(len(optimizers)))
        self._owned = [{*map(id, parameters_of(each))} for each in optimizers]
        self.stepped: frozenset[int] = frozenset()
        # Gradients of an optimizer when its step was requested, until the step is made; the key is
        # the optimizer's number.
        self._gathered: dict[int, list[Tensor | None]] = {}
        # Parameters of these optimizers, and their values when the step was requested.
        self._values: list[tuple[Tensor, Tensor]] = []
        self._overflow = self._is_gathered = False
        self._loss: float | None = None
        # Weak reference to the callback of the current backward pass. Autograd keeps the callback
        # alive and calls it at the end of the pass.
        self._callback: Callable[[], Callable[[], None] | None] = lambda: None

    def step(self) -> None:
        """Step every optimizer that has a gradient, in order, without an exchange."""
        with_gradients = self._all
        if len(with_gradients) > 1:
            with_gradients = frozenset(
                [
                    at
                    for at, each in enumerate(self._optimizers)
                    if any(p.grad is not None for p in parameters_of(each))
                ]
            )
        self.stepped = with_gradients
        for at in sorted(with_gradients):
            optimizer = self._optimizers[at]
            closures = [_closure_of(optimizer)] if at in self._closures else []
            with in_train_mode(optimizer):
                self._inner[at](*closures)

    def find(self, optimizer: object) -> int:
        """Return the number of a prepared optimizer. Raises ConfigError: The optimizer is not
        prepared."""
        for known in (self._optimizers, self._given):
            for at, each in enumerate(known):
                if each is optimizer:
                    return at
        raise ConfigError("each_step after an optimizer that was not passed to peer.prepare")

    def kind_of(self, which: frozenset[int]) -> int:
        """Return the kind number (``gossip.core.is_further``) of a round that makes the first step
        on a batch. ``which``: numbers of the optimizers that step."""
        # Steps in hooks count as steps of all optimizers: peers may step different optimizers,
        # because their batches may use different layers.
        is_whole = self._is_gathered or len(which) == len(self._optimizers)
        return 0 if is_whole else kind_of(which)

    def check_gathered(self) -> None:
        """Raise UnsupportedModel if only some of the optimizers that step together have requested a
        step."""
        if self._gathered and self._together:
            missing = [at for at in range(len(self._optimizers)) if at not in self._gathered]
            raise UnsupportedModel(
                f"together=True, and optimizer {missing[0]} did not step with the others",
                "leave out together=True: then each optimizer steps on its own",
            )

    def request_step(self, at: int, loss: float | None) -> None:
        """Exchange the gradients of optimizer ``at``, either now or later together with those of
        others."""
        optimizer = self._optimizers[at]
        if {*map(id, parameters_of(optimizer))} != self._owned[at]:
            raise UnsupportedModel(
                "the parameters are fixed by prepare: param_groups has other ones now", FREEZE
            )
        if loss is not None and not type(optimizer).__module__.startswith("torch.optim"):
            self._closures.add(at)
        overflow = _unscale(optimizer)
        in_backward = torch._C._current_graph_task_id() >= 0
        if not (in_backward or self._together):
            self._exchange_of({at}, loss, overflow)
            return
        if self._gathered and not self._together and self._callback() is None:
            self._drop_gathered()  # the backward pass has raised an error
        if at in self._gathered:
            self.check_gathered()
            raise UnsupportedModel(
                f"optimizer {at} was stepped twice within one backward pass",
                "step it once, after loss.backward() or in one hook",
            )
        self._loss = loss if loss is not None else self._loss
        if in_backward and not (self._gathered or self._together):
            self._queue_step()
        self._overflow |= overflow
        own = parameters_of(optimizer)
        self._gathered[at] = [None if p.grad is None else p.grad.detach().clone() for p in own]
        self._values += _values_of(optimizer)
        if self._together and len(self._gathered) == len(self._optimizers):
            self._step_gathered()

    def _queue_step(self) -> None:
        def step() -> None:
            self._step_gathered()

        self._callback = weakref.ref(step)
        torch.autograd.Variable._execution_engine.queue_callback(step)

    def _drop_gathered(self) -> None:
        self._gathered, self._values = {}, []
        self._overflow, self._loss = False, None

    def _step_gathered(self) -> None:
        """Exchange the gathered gradients of all optimizers that have requested a step, in one
        round."""
        gathered, values = self._gathered, self._values
        overflow, loss = self._overflow, self._loss
        self._drop_gathered()
        if not _are_unchanged(values):
            raise ConfigError(
                "weights were changed after optimizer.step() but before the step was made: gossip "
                "makes the steps of one backward pass, or of optimizers that step together, at the "
                "end",
                "change them in a function passed to peer.each_step",
            )
        with without_gradients([p for p, _ in values]):
            for at, gradients in gathered.items():
                own = parameters_of(self._optimizers[at])
                for parameter, gradient in zip(own, gradients, strict=True):
                    parameter.grad = gradient
            self._is_gathered = True
            try:
                self._exchange_of(gathered.keys(), loss, overflow)
            finally:
                self._is_gathered = False

    def _exchange_of(self, which: Collection[int], loss: float | None, overflow: bool) -> None:
        """Exchange the gradients of the optimizers ``which``. Gradients of other optimizers do not
        change."""
        others = [
            p for at, o in enumerate(self._optimizers) if at not in which for p in parameters_of(o)
        ]
        with without_gradients(others):
            self._exchange(loss, overflow, frozenset(which))


@contextmanager
def without_gradients(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Set the gradients of ``parameters`` to None in the ``with`` block. Restore them
    afterwards."""
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient


def kind_of(which: Collection[int]) -> int:
    """Return the kind number of a round that makes the first step on a batch. ``which``: numbers of
    the optimizers that step, not all of them."""
    return 2 + 2 * zlib.crc32(repr(sorted(which)).encode())


@contextmanager
def staying_in_mode(optimizer: Any) -> Iterator[None]:
    """Restore the mode (train or eval) of a schedule-free optimizer after the block. The block
    loads a state, which may have been saved in the other mode."""
    modes = [(each, _is_in_mode(each, True)) for each in parts_of(optimizer)]
    yield
    for each, trains in modes:
        if _is_in_mode(each, not trains):
            (each.train if trains else each.eval)()  # type: ignore[attr-defined]


def _is_in_mode(optimizer: torch.optim.Optimizer, train: bool) -> bool:
    return train in [group.get("train_mode") for group in optimizer.param_groups]


@contextmanager
def in_train_mode(optimizer: Any) -> Iterator[None]:
    """Load the trained weights of a schedule-free optimizer into the model for the ``with`` block.
    Outside of this block the script may have switched to the averaged weights, for an
    evaluation."""
    evaluates: list[Any] = [each for each in parts_of(optimizer) if _is_in_mode(each, False)]
    for each in evaluates:
        each.train()
    try:
        yield
    finally:
        for each in evaluates:
            each.eval()


def make_modes_exact(optimizer: Any) -> None:
    """Make ``train()`` restore the weights that ``eval()`` has replaced, bit for bit.

    A schedule-free optimizer recomputes these weights with rounding errors. Peers may evaluate
    after different steps, so their weights would differ. A state that was loaded between ``eval()``
    and ``train()`` is not overwritten, nor are weights that were changed in place. Changes through
    ``.data`` are overwritten.
    """
    trained: list[tuple[Tensor, Tensor, int]] = []
    state = optimizer.state

    def make_exact(switch: Callable[..., object]) -> Callable[..., None]:
        def switch_mode(*mode: bool) -> None:
            nonlocal state
            before = _is_in_mode(optimizer, True)
            values = [(p, p.detach().clone()) for p in parameters_of(optimizer) if before]
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
    """Return autograd's count of in-place changes of a tensor."""
    return tensor._version


def _replace(
    optimizer: torch.optim.Optimizer, at: int, steps: StepCoordinator
) -> Callable[..., object]:
    """Make ``optimizer.step()`` call ``steps.request_step``. Return the original step."""
    inner = optimizer.step

    def step(self: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Exchange the gradients, then step with the aggregate.

        Args:
            closure: Function that computes the loss and its gradients. It is called once.
        Returns: Result of ``closure``.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Schedulers warn if they step before the optimizer. A step in flight counts as a step of
        # the optimizer.
        self._opt_called = True  # type: ignore[attr-defined]
        steps.request_step(
            at, None if loss is None else float(loss.detach() if isinstance(loss, Tensor) else loss)
        )
        return loss

    def add_param_group(self: torch.optim.Optimizer, group: dict[str, Any]) -> None:
        raise UnsupportedModel(
            "the parameters are fixed by prepare: add_param_group was called after it", FREEZE
        )

    # A scheduler wraps ``step`` to record calls, and marks it as wrapped. Keep the mark of an
    # earlier scheduler.
    own: Any = getattr(inner, "__func__", inner)
    if hasattr(inner, "_wrapped_by_lr_sched"):
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        own = own.__wrapped__
    step.is_of_class = own is type(optimizer).step  # type: ignore[attr-defined]
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    adds = types.MethodType(add_param_group, optimizer)
    optimizer.add_param_group = adds  # type: ignore[method-assign]
    # This attribute makes a GradScaler call ``step`` even if gradients overflowed. The optimizer
    # unscales the gradients itself, and this peer can report that it has no update for the round.
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    return inner


def _unscale(optimizer: Any) -> bool:
    """Unscale the gradients, if a ``GradScaler`` has left that to the optimizer.
    Return whether gradients overflowed."""
    found, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    if found is None:
        return False
    # A fused optimizer also reads these attributes, and would unscale the aggregate. They are set
    # to None, not deleted, because the scaler deletes them afterwards.
    optimizer.found_inf = optimizer.grad_scale = None
    if float(found):
        return True
    if scale is not None:  # None if the user has called unscale_.
        # This is the computation of GradScaler.unscale_, so the results are equal bit for bit.
        inverse = scale.double().reciprocal().float()
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None:
                parameter.grad.mul_(inverse.to(parameter.grad.device))
    return False
