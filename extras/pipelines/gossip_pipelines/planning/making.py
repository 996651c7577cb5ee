"""Layers that the script passes as functions, so that each peer builds only its own stage."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from gossip.errors import ConfigError
from gossip.topologies import draw
from gossip.training import seeded_generators

LayerMaker = Callable[[], nn.Module]
"""A function that builds a layer, such as the class of the layer. During the call, the random
generators have a seed for this layer."""


def make_layer(layer: nn.Module | LayerMaker, at: int, seed: int) -> nn.Module:
    """Return a layer that was given as a module, or build it with its function. The random numbers
    depend only on ``seed`` and on the number of the layer.

    Raises: ConfigError: The function does not return a module.
    """
    if isinstance(layer, nn.Module):
        return layer
    with seeded_generators(draw("layer", seed, at)):
        made = layer()
    if not isinstance(made, nn.Module):
        raise ConfigError(f"layer {at}: its function makes {type(made).__name__}, not a module")
    return made


def outline_of(layer: nn.Module | LayerMaker, at: int) -> nn.Module:
    """Return a layer that was given as a module, or build it on torch's meta device, where
    parameters need no memory.

    Raises: ConfigError: The function fails on this device, does not return a module, or puts
        parameters on another device.
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
            "the function must not read values of the layer, nor name a device; or pass the layer "
            "itself",
        ) from error
    for name, parameter in made.named_parameters():
        if not parameter.is_meta:
            raise ConfigError(
                f"layer {at}: its function does not make the parameter {name}, or makes it on the "
                f"device {parameter.device}",
                "make all parameters within the function, and name no device there "
                "(torch.set_default_device sets their device)",
            )
    return made


def check_same(made: nn.Module, outline: nn.Module, at: int) -> None:
    """Check that a function has built the same layer as in an earlier call.

    Raises: ConfigError: The parameters of the two layers differ.
    """
    if _shapes(made) != _shapes(outline):
        raise ConfigError(
            f"layer {at}: its function makes another layer each time",
            "the function must make the same layer in each call, on each peer",
        )


def _shapes(layer: nn.Module) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, each.shape, each.dtype) for name, each in layer.named_parameters()]
