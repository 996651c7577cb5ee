"""Steps that an honest peer applies to its update before it sends it: worker momentum,
clipping, normalisation.

    sender = load("momentum:beta=0.9+clip:10")
    sent, memory = sender(update, memory)            memory is None in the first round

A sender is a function of the update and of its memory, which it returns as data. The peer keeps the
memory, saves it with a checkpoint, and loses it when its process ends. Steps are applied from left
to right. The same text names the same sender on every peer.

If peers have equal data, momentum is the most effective single defence. It averages the noise of a
peer's gradients over rounds, so that honest updates agree with each other. Byzantine updates that
hid in their noise stand out (Karimireddy, He, Jaggi 2021, arXiv:2012.10333). If their data differ,
momentum reduces the noise but not the difference, so honest peers also stand out. With labels by
Dirichlet(0.1) under ``sign_flip``, ``suspicion`` reached 62 % without and 20 % with it.

Listing the names does not import torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gossip.errors import ConfigError, UnknownName
from gossip.specs import read_value, split_options

from .numbers import DECAY, POSITIVE, Range, read_number

if TYPE_CHECKING:
    from torch import Tensor

Memory: TypeAlias = "tuple[Tensor | None, ...]"
"""One entry for each step; None for a step without memory. Tensors are never changed in place, so
the memory may be stored without a copy."""

Step: TypeAlias = Callable[..., Any]
_STEPS: dict[str, Step] = {}


def step(function: Step) -> Step:
    """Register ``(update, memory, *, options) -> (update, memory)`` under its name. It changes
    neither argument."""
    _STEPS[function.__name__] = function
    return function


@step
def momentum(
    update: Tensor,
    memory: Tensor | None,
    *,
    beta: float = 0.9,
    form: Literal["mean", "sum"] = "mean",
) -> tuple[Tensor, Tensor]:
    """Send a running average of the peer's updates instead of the update.

    Args:
        beta: Share of the past that is kept, in [0, 1). 0.9 spans about ten rounds; 0.99 is too
            slow for runs of a few hundred.
        form: ``mean`` (default): m = beta m + (1 - beta) g, with the length of an update, so that
            learning rates and clipping radii keep their meaning. The first one is short, (1 - beta)
            g. ``sum``: m = beta m + g, as in SGD with momentum; 1 / (1 - beta) times as large.
    """
    share = 1.0 - beta if form == "mean" else 1.0
    sent = update * share if memory is None else memory * beta + update * share
    return sent, sent


@step
def clip(update: Tensor, memory: None, *, radius: float) -> tuple[Tensor, None]:
    """Shorten the update to ``radius`` (Euclidean norm) if it is longer."""
    size = _norm(update)
    return (_resized(update, radius, size) if size > radius else update), None


@step
def normalise(update: Tensor, memory: None, *, length: float = 1.0) -> tuple[Tensor, None]:
    """Scale every update to the Euclidean norm ``length``, so that only its direction counts. Zero
    stays zero."""
    return _resized(update, length, _norm(update)), None


def _norm(update: Tensor) -> float:
    import torch

    return float(torch.linalg.vector_norm(update, dtype=torch.float64))


def _resized(update: Tensor, length: float, size: float) -> Tensor:
    """Return the update, which has the norm ``size``, scaled to ``length``. Zero stays zero."""
    import torch

    if 1 / _ORDINARY < size < _ORDINARY and 1 / _ORDINARY < length / size < _ORDINARY:
        return update * (length / size)
    if not bool(update.any()):
        return update
    # The squares or the factor exceed the range of a dtype; after division by the largest number
    # they do not.
    within = update.to(torch.float64) / float(update.abs().max())
    return (within * (length / _norm(within))).to(update.dtype)


_ORDINARY = 1e30  # this and its inverse are far within the range of float32
_ALIASES = {"normalize": "normalise"}
_ALLOWED: Mapping[str, Range] = {"beta": DECAY, "radius": POSITIVE, "length": POSITIVE}


@dataclass(frozen=True, slots=True)
class Sender:
    """Steps with their options, in the order in which they are applied. Without steps updates are
    sent unchanged.

    Attributes:
        spec: Argument of ``load``.
    """

    steps: tuple[tuple[Step, Mapping[str, Any]], ...] = ()
    spec: str = ""

    def __call__(self, update: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """Return the update to send, and the memory for the next round.

        A non-finite update is returned unchanged, so that its receivers drop it, and does not
        change the memory. Nor does a non-finite result of the steps, because an infinite sum would
        remain infinite.

        Args:
            update: ``(d,)``; is not changed, and may be returned.
            memory: Memory of the last round; None before the first.
        Raises: ConfigError: The memory belongs to another sender, or to vectors of another size.
        """
        import torch

        before = memory if memory is not None else (None,) * len(self.steps)
        if len(before) != len(self.steps) or any(
            kept is not None and kept.shape != update.shape for kept in before
        ):
            raise ConfigError(
                f"the memory is not that of the sender {self.spec!r} for updates of {len(update)} "
                "elements"
            )
        if not bool(torch.isfinite(update).all()):
            return update, before
        after = []
        with torch.no_grad():
            for (function, options), kept in zip(self.steps, before, strict=True):
                update, kept = function(update, kept, **options)
                after.append(kept)
        return update, tuple(after) if not after or bool(torch.isfinite(update).all()) else before

    def __bool__(self) -> bool:
        return bool(self.steps)


def names() -> tuple[str, ...]:
    """Return the names of the steps for ``load``, ascending."""
    return tuple(sorted(_STEPS))


def load(spec: str) -> Sender:
    """Return the sender of a text: ``momentum``, ``momentum:beta=0.9+clip:10``; the empty text
    sends updates unchanged.

    A step's options follow a colon, separated by commas; the first may be given without its name.

    Raises: UnknownName: No such step or option. ConfigError: A value is missing, cannot be read or
        is out of range.
    """
    text = spec.strip()
    return Sender(
        tuple(_step_of(part.strip(), text) for part in text.split("+")) if text else (), text
    )


def _step_of(text: str, whole: str) -> tuple[Step, dict[str, Any]]:
    name, _, written = text.partition(":")
    plain = name.strip().replace("-", "_")
    plain = _ALIASES.get(plain, plain)
    if not plain:
        raise ConfigError(
            f"sender {whole!r}: a step is missing beside '+'", "write momentum:beta=0.9+clip:10"
        )
    if plain not in _STEPS:
        raise UnknownName("sender", name.strip(), _STEPS)
    function = _STEPS[plain]
    settable = {
        key: value
        for key, value in inspect.signature(function).parameters.items()
        if value.kind is value.KEYWORD_ONLY
    }
    given = split_options(f"sender {plain}", written.split(","), settable, next(iter(settable)))
    options = {key: _value(plain, key, value) for key, value in given.items()}
    for key, parameter in settable.items():
        if key not in options and parameter.default is parameter.empty:
            raise ConfigError(f"sender {plain} needs {key}", f"write {plain}:{key}=...")
    return function, options


def _value(name: str, key: str, text: str) -> Any:
    if key == "form":
        return read_value(f"sender {name}", key, text, Literal["mean", "sum"])
    return read_number(f"sender {name}", key, text, _ALLOWED[key])
