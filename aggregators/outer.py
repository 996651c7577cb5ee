"""Outer steps, for runs with several local steps between two rounds. After a round, all peers apply
the same step of an outer optimizer to the aggregate.

    load("mean")                                    local SGD: the mean of the models
    load("nesterov:lr=0.7,momentum=0.9")            DiLoCo (Douillard et al. 2023, arXiv:2311.08105)
    load("heavy_ball:lr=0.7,momentum=0.9")

An update is a peer's model difference over its local steps, delta = before - after. With the
aggregate D of the updates, momentum mu and learning rate eta:

    mean         theta <- theta - D
    heavy_ball   m <- mu m + D;  theta <- theta - eta m
    nesterov     m <- mu m + D;  theta <- theta - eta (D + mu m)

The momentum is applied after the rule: a Byzantine update that the rule accepts has an effect for
about 1 / (1 - mu) rounds. For momentum before the rule, use a sender (``senders``) and ``mean``.
Listing the names does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from gossip.errors import UnknownName
from gossip.specs import split_options

from .numbers import DECAY, POSITIVE, Range, read_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import Tensor

NESTEROV, HEAVY_BALL, MEAN = "nesterov", "heavy_ball", "mean"
NAMES = (HEAVY_BALL, MEAN, NESTEROV)
LR, MOMENTUM = 0.7, 0.9  # defaults, as in DiLoCo
_ALLOWED: Mapping[str, Range] = {"lr": POSITIVE, "momentum": DECAY}


class OuterStep(NamedTuple):
    """Outer step with its options."""

    name: str
    lr: float
    momentum: float

    @property
    def spec(self) -> str:
        """Argument of ``load`` that returns this step."""
        options = "" if self.name == MEAN else f":lr={self.lr!r},momentum={self.momentum!r}"
        return self.name + options

    def move(self, aggregate: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the vector to subtract from the parameters, ``(d,)``, and the memory for the next
        round. The result equals that of a step of ``optimizer``, for parameters in one vector.

        Args:
            aggregate: ``(d,)``, aggregate of the model differences.
            memory: Memory of the last round; None before the first.
        """
        memory = aggregate if memory is None else self.momentum * memory + aggregate
        ahead = aggregate + self.momentum * memory if self.name == NESTEROV else memory
        return self.lr * ahead, memory

    def optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """Return an optimizer that makes this step when the gradient of ``parameters`` is the
        aggregate."""
        from torch.optim import SGD

        nesterov = self.name == NESTEROV and self.momentum > 0
        return SGD(parameters, self.lr, self.momentum, nesterov=nesterov)


def load(spec: str) -> OuterStep:
    """Return the outer step that ``spec`` names. Options follow the name after a colon, separated
    by commas.

    Raises: UnknownName: There is no such step or option. ConfigError: A value cannot be read or is
        out of range.
    """
    name, _, written = spec.partition(":")
    name = name.strip().replace("-", "_")
    if name not in NAMES:
        raise UnknownName("outer step", name, NAMES)
    options = {} if name == MEAN else {"lr": LR, "momentum": MOMENTUM}
    owner = f"outer step {name}"
    for key, value in split_options(owner, written.split(","), options).items():
        options[key] = read_number(owner, key, value, _ALLOWED[key])
    return OuterStep(name, options.get("lr", 1.0), options.get("momentum", 0.0))
