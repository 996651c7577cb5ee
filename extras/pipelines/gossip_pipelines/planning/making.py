"""Layers that are given as functions, so that each peer makes only those of its own stage."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from gossip.errors import ConfigError
from gossip.topologies import draw
from gossip_pipelines.generators import apart

LayerMaker = Callable[[], nn.Module]
"""Makes a layer, such as its class. Called under a seed of the layer's own."""


def make_layer(layer: nn.Module | LayerMaker, at: int, seed: int) -> nn.Module:
    """The layer itself, or what its function makes. What that draws follows from ``seed`` and the
    number of the layer alone, whatever was made before.

    Raises: ConfigError: It makes no module.
    """
    if isinstance(layer, nn.Module):
        return layer
    with apart(draw("layer", seed, at)):
        made = layer()
    if not isinstance(made, nn.Module):
        raise ConfigError(f"layer {at}: its function makes {type(made).__name__}, not a module")
    return made


def outline_of(layer: nn.Module | LayerMaker, at: int) -> nn.Module:
    """The layer itself, or what its function makes on torch's meta device: without any memory for
    its parameters.

    Raises: ConfigError: The function cannot be run there, makes no module, or parameters elsewhere.
    """
    if isinstance(layer, nn.Module):
        return layer
    try:
        with torch.device("meta"):
            made = make_layer(layer, at, 0)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"layer {at}: its function fails on torch's meta device: "
            f"{type(error).__name__}: {error}",
            "a function makes its layer without reading numbers of it, and names no device; "
            "or give the layer itself",
        ) from error
    for name, parameter in made.named_parameters():
        if not parameter.is_meta:
            raise ConfigError(
                f"layer {at}: its function does not make the parameter {name}, or makes it on a "
                f"device of its own ({parameter.device})",
                "make all parameters within the function, and name no device there "
                "(torch.set_default_device says where they are to be)",
            )
    return made


def check_same(made: nn.Module, outline: nn.Module, at: int) -> None:
    """Raises ConfigError: A function has made another layer than the time before."""
    if _shapes(made) != _shapes(outline):
        raise ConfigError(
            f"layer {at}: its function makes another layer each time",
            "a function makes the same layer whenever it is called, on each peer",
        )


def _shapes(layer: nn.Module) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, each.shape, each.dtype) for name, each in layer.named_parameters()]
