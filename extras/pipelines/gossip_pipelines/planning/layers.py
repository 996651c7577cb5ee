"""Layers of a pipeline, and the shapes of the tensors between layers, computed without data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor, nn

from gossip.errors import ConfigError


def layer_name(layer: nn.Module, at: int) -> str:
    return f"{at} {type(layer).__name__}"[:64]


def run_layer(
    layer: nn.Module, at: int, inputs: Tensor, call: Callable[[Tensor], object] | None = None
) -> Tensor:
    """Return the output of a layer.

    Args:
        inputs: ``(samples, ...)``.
        call: Function that is called instead of the layer.
    Raises: ConfigError: The layer fails, or does not return a tensor with one row per sample.
    """
    name, count = layer_name(layer, at), len(inputs)
    try:
        outputs = (call or layer)(inputs)
    except Exception as error:
        raise ConfigError(
            f"layer {name} fails on {count} samples of shape {tuple(inputs.shape[1:])}: "
            f"{type(error).__name__}: {error}",
            "each layer must accept the output of the layer before",
        ) from error
    if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != count:
        raise ConfigError(
            f"layer {name} does not return one tensor with a row for each of its {count} samples"
        )
    return outputs


def signature_of(layer: nn.Module, inputs: Tensor, outputs: Tensor) -> str:
    """Return 16 hex digits that are equal for layers with the same computation and input shape."""
    about = [repr(layer), tuple(inputs.shape[1:]), tuple(outputs.shape[1:])]
    about += [(key, tuple(each.shape), each.dtype) for key, each in layer.named_parameters()]
    return blake2b(repr(about).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class HandedOn:
    """Signature of a layer, and its output for one sample."""

    signature: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def walk_without_data(layers: Sequence[nn.Module], samples: Tensor) -> list[HandedOn]:
    """Run all layers on torch's meta device, which allocates no memory and reads no parameter. The
    parameters may be on any device.

    Args:
        samples: ``(n, ...)``. Only the shape and the dtype are used.
    Raises: ConfigError: A layer fails, or does not return a tensor with one row per sample.
    """
    inputs, found = torch.empty_like(samples, device="meta"), []
    for at, layer in enumerate(layers):
        state = {
            name: torch.empty_like(each, device="meta")
            for name, each in (*layer.named_parameters(), *layer.named_buffers())
        }

        def on_meta(
            inputs: Tensor, layer: nn.Module = layer, state: dict[str, Tensor] = state
        ) -> object:
            return torch.func.functional_call(layer, state, (inputs,))

        with torch.no_grad(), torch.device("meta"):
            outputs = run_layer(layer, at, inputs, on_meta)
        found.append(
            HandedOn(signature_of(layer, inputs, outputs), tuple(outputs.shape[1:]), outputs.dtype)
        )
        inputs = outputs
    return found
