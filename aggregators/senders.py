"""Steps that an honest peer applies to its update before it sends it: worker momentum,
clipping, normalisation.

    sender = load("momentum:beta=0.9+clip:10")
    sent, memory = sender(update, memory)            memory is None in the first round

A sender is a pure function of the update and of a memory, and returns the new memory. The peer
stores the memory and saves it in checkpoints. If its process ends, changes since the last
checkpoint are lost. Steps are applied from left to right. The same spec yields the same sender on
every peer.

If peers have equal data, momentum is the most effective single defence. It averages the noise of a
peer's gradients over rounds, so that honest updates become similar. Byzantine updates that the
noise would hide then stand out (Karimireddy, He, Jaggi 2021, arXiv:2012.10333). If peers have
different data, momentum reduces the noise but not the difference, so honest peers also stand out.
With labels by Dirichlet(0.1) and the attack ``sign_flip``, the accuracy with ``suspicion`` was 62 %
without momentum and 20 % with it.

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
    """Register a function ``(update, memory, *, options) -> (update, memory)`` under its name. The
    function must not change its arguments in place."""
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
        beta: Weight of the past, in [0, 1). 0.9 averages about ten rounds; 0.99 is too slow for
            runs of a few hundred rounds.
        form: ``mean`` (default): m = beta m + (1 - beta) g. m is about as long as an update, so
            learning rates and clipping radii keep their meaning; in the first round it is shorter,
            (1 - beta) g. ``sum``: m = beta m + g, as in SGD with momentum; this is 1 / (1 - beta)
            times as long.
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
    # Here squares or the factor may exceed the range of the dtype. After division by the largest
    # element they do not.
    within = update.to(torch.float64) / float(update.abs().max())
    return (within * (length / _norm(within))).to(update.dtype)


_ORDINARY = 1e30  # this and its inverse are well within the range of float32
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

        A non-finite update is returned unchanged, and its receivers drop it. The memory changes
        only if both the update and the result of the steps are finite, because an infinite sum
        would remain infinite.

        Args:
            update: ``(d,)``. It is not changed in place, and may be the result.
            memory: Memory of the last round; None before the first.
        Raises: ConfigError: The memory belongs to another sender, or to vectors of another size.
        """
        import torch

        before = memory if memory is not None else (None,) * len(self.steps)
        if len(before) != len(self.steps) or any(
            kept is not None and kept.shape != update.shape for kept in before
        ):
            raise ConfigError(
                f"the memory does not belong to the sender {self.spec!r} for updates of "
                f"{len(update)} elements"
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
    """Return the sender that ``spec`` describes, such as ``momentum`` or
    ``momentum:beta=0.9+clip:10``. An empty ``spec`` means that updates are sent unchanged.

    A step's options follow a colon, separated by commas. The name of the first option may be left
    out.

    Raises: UnknownName: There is no such step or option. ConfigError: A value is missing, cannot be
        read or is out of range.
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
            f"sender {whole!r}: a step is missing at '+'", "write momentum:beta=0.9+clip:10"
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
