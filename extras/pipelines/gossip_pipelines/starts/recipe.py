"""Seed and recipe of a model's initial weights, which a start is made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from gossip.errors import ConfigError
from gossip.topologies import draw
from gossip_pipelines.generators import apart

Make: TypeAlias = Callable[[], nn.Module]

INITS = ("own", "kaiming", "xavier", "orthogonal")
"""``own`` is what the model's constructor does. The others draw its matrices anew: He et al. 2015,
Glorot and Bengio 2010, Saxe et al. 2014."""
_DEFAULTS = (
    ("own", 1.0),
    ("kaiming", 1.0),
    ("xavier", 1.0),
    ("orthogonal", 1.0),
    ("own", 0.5),
    ("own", 2.0),
    ("xavier", 0.5),
    ("orthogonal", 1.4),
)


@dataclass(frozen=True, slots=True)
class StartRecipe:
    """How the initial weights of a model are drawn: so little is agreed, and every peer rebuilds
    the weights from it.

    Attributes:
        init: One of ``INITS``.
        gain: What the drawn weights are multiplied by.
        seed: Of the draw.
    Raises: ConfigError: There is no such init, or the gain or the seed cannot be.
    """

    init: str = "own"
    gain: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.init not in INITS:
            raise ConfigError(f"there is no init {self.init!r}", f"one of {', '.join(INITS)}")
        if not 0 < self.gain < float("inf"):
            raise ConfigError(f"the gain of a start is {self.gain!r}, not a number above 0")
        if type(self.seed) is not int or self.seed < 0:
            raise ConfigError(f"the seed of a start is {self.seed!r}, not a number from 0")

    def __str__(self) -> str:
        return f"{self.init}, gain {self.gain:g}, seed {self.seed}"


def recipes(count: int = 8, seed: int = 0) -> tuple[StartRecipe, ...]:
    """Different starts to compare, the model's own first: kinds of draws and their scales, and from
    the ninth on the same with other seeds.

    Raises: ConfigError: ``count`` is below 1.
    """
    if type(count) is not int or count < 1:
        raise ConfigError(f"{count!r} starts cannot be compared", "at least 1")
    return tuple(
        StartRecipe(*_DEFAULTS[at % len(_DEFAULTS)], seed + at // len(_DEFAULTS))
        for at in range(count)
    )


def build(make: Make, recipe: StartRecipe) -> nn.Module:
    """A model with the weights of ``recipe``: the same bits in each process of the same torch on
    processors of the same kind. The generators are afterwards as they were.

    What the model's constructor sets to one value, such as a bias or the weight of a norm, and
    whatever has fewer than two dimensions, stays as it is.

    Args:
        make: Builds the model; what it draws follows from the seed.
        recipe: Of the weights.
    Returns: the model, on the device that ``make`` has chosen.
    Raises: ConfigError: ``make`` returned no module.
    """
    with apart(draw("start", recipe.seed)):
        model = make()
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"make returned a {type(model).__name__}",
                "it takes no argument and returns the model: lambda: Net()",
            )
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1 and bool((parameter != parameter.flatten()[0]).any()):
                    _draw_anew(parameter, recipe)
    return model


def _draw_anew(parameter: Tensor, recipe: StartRecipe) -> None:
    match recipe.init:
        case "kaiming":
            nn.init.kaiming_normal_(parameter)
        case "xavier":
            nn.init.xavier_normal_(parameter)
        case "orthogonal":
            nn.init.orthogonal_(parameter)
    if recipe.gain != 1.0:
        parameter.mul_(recipe.gain)
