"""Recipes for initial weights: an initialization method, a gain and a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from gossip.errors import ConfigError
from gossip.topologies import draw
from gossip.training import seeded_generators

Make: TypeAlias = Callable[[], nn.Module]

INITS = ("own", "kaiming", "xavier", "orthogonal")
"""``own`` is the initialization in the model's constructor. The other methods initialize the
weight matrices again: He et al. 2015, Glorot and Bengio 2010, Saxe et al. 2014."""
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
    """Recipe for the initial weights of a model. Peers agree on the recipe, and each peer computes
    the weights itself.

    Attributes:
        init: Initialization method, one of ``INITS``.
        gain: Factor by which all initialized weight matrices are multiplied.
        seed: Seed of the random generators.
    Raises: ConfigError: The init, the gain or the seed is invalid.
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
            raise ConfigError(f"the seed of a start is {self.seed!r}, not a whole number from 0 up")

    def __str__(self) -> str:
        return f"{self.init}, gain {self.gain:g}, seed {self.seed}"


def recipes(count: int = 8, seed: int = 0) -> tuple[StartRecipe, ...]:
    """Return different starts to compare. The first start is the model's own initialization. Other
    methods and gains follow. After eight starts, the same methods and gains follow with other
    seeds.

    Raises: ConfigError: ``count`` is below 1.
    """
    if type(count) is not int or count < 1:
        raise ConfigError(f"{count!r} starts cannot be compared", "at least 1")
    return tuple(
        StartRecipe(*_DEFAULTS[at % len(_DEFAULTS)], seed + at // len(_DEFAULTS))
        for at in range(count)
    )


def build(make: Make, recipe: StartRecipe) -> nn.Module:
    """Build a model with the weights of ``recipe``.

    With the same torch version and the same kind of processor, all processes get equal bits.
    The random generators are restored afterwards. Parameters with a single distinct value, such as
    a bias or the weight of a norm, or with fewer than two dimensions are not changed.

    Args:
        make: Builds the model. Its random numbers depend on the seed of the recipe.
        recipe: Recipe for the weights.
    Returns: The model, on the device that ``make`` has chosen.
    Raises: ConfigError: ``make`` did not return a module.
    """
    with seeded_generators(draw("start", recipe.seed)):
        model = make()
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"make returned a {type(model).__name__}",
                "it must have no argument and return the model: lambda: Net()",
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
