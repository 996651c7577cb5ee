"""Measurement of the layers of a model on this machine: time of each pass, and memory."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gossip.errors import ConfigError

from .fits import CostLine, fit_line, r_squared
from .layers import layer_name, run_layer, signature_of
from .making import LayerMaker, make_layer, outline_of
from .profile import LAYERS_MAX, LayerProfile

WAYS = ("forward", "backward")
NOT_TIMED = CostLine(0.0, 0.0)
Timings: TypeAlias = defaultdict[tuple[str, int, int], list[float]]
"""Seconds of each repetition. The key is the direction, the number of samples and the layer."""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Measured times of all layers.

    Attributes:
        r2: Coefficient of determination of the fitted lines at two other numbers of samples.
        timed: Number of layers that were measured now. The times of the others were already known.
    """

    layers: tuple[LayerProfile, ...]
    r2: float
    timed: int


def layers_of(made: Any, where: str) -> tuple[list[nn.Module | LayerMaker], Tensor]:
    """Check the layers and the samples that a function of the user returned. Each layer is a module
    or a function that builds one.

    Raises: ConfigError: The result has another form, or two layers share a parameter.
    """
    if not isinstance(made, tuple) or len(made) != 2:
        raise ConfigError(
            f"{where} returned {type(made).__name__}, not layers and samples",
            "end it with: return layers, samples    # a list of modules or of functions that make "
            "them, and a tensor",
        )
    layers, samples = made
    if not isinstance(layers, nn.Sequential | list | tuple):
        raise ConfigError(
            f"{where}: the layers are {type(layers).__name__}, not nn.Sequential or a list of "
            "modules or of functions that make them"
        )
    for at, layer in enumerate(layers):
        if not callable(layer):
            raise ConfigError(
                f"{where}: layer {at} is {type(layer).__name__}, not a module or a function that "
                "makes one"
            )
    if not isinstance(samples, Tensor) or samples.ndim == 0 or not len(samples):
        raise ConfigError(f"{where}: the samples are not a tensor with one or more samples as rows")
    if not 0 < len(layers) <= LAYERS_MAX:
        raise ConfigError(f"{where}: {len(layers)} layers; a plan may have 1 to {LAYERS_MAX}")
    owner: dict[int, int] = {}
    outlines = [outline_of(layer, at) for at, layer in enumerate(layers)]
    for at, outline in enumerate(outlines):
        for name, parameter in outline.named_parameters():
            if (first := owner.setdefault(id(parameter), at)) != at:
                raise ConfigError(
                    f"{where}: layers {first} and {at} share the parameter {name}",
                    "layers of a plan may be on different peers, so they cannot share parameters: "
                    "untie them, or make one layer of both",
                )
    return list(layers), samples


def measure_layers(
    layers: Sequence[nn.Module | LayerMaker],
    samples: Tensor,
    batches: tuple[int, int],
    repeats: int,
    known: Mapping[str, LayerProfile] | None = None,
) -> LayerTimes:
    """Measure all layers with two numbers of samples, and fit lines to the medians.

    Each of the ``repeats`` repetitions runs all layers with all sizes, so that other load on the
    machine affects all layers alike. Two sizes in between only check the lines. Layers that were
    given as functions are built again in each repetition, one at a time.

    Args:
        samples: ``(n, ...)``. Rows are repeated if there are too few.
        batches: The two numbers of samples, the smaller one first.
        known: Profiles of layers that need not be measured; the key is the signature.
    Raises: ConfigError: A layer fails on these samples, or does not return a tensor with one row
        per sample.
    """
    small, large = batches
    middle = round(math.sqrt(small * large))
    sizes = [small, middle, round((middle + large) / 2), large]
    found = _walk(layers, samples, large)
    known = known or {}
    new = [at for at, layer in enumerate(found) if layer.signature not in known]
    found = [known.get(layer.signature, layer) for layer in found]
    seconds: Timings = defaultdict(list)
    for turn in range(repeats + 1 if new else 0):
        if turn == 1:
            seconds.clear()  # The first repetition is a warm-up.
        _turn(layers, {size: _rows(samples, size) for size in sizes}, seconds)
    median = {key: statistics.median(taken) for key, taken in seconds.items()}
    predicted, measured = [], []
    for at in new:
        lines = [fit_line(batches, [median[way, size, at] for size in batches]) for way in WAYS]
        found[at] = replace(found[at], forward=lines[0], backward=lines[1])
        for way, line in zip(WAYS, lines, strict=True):
            predicted += [line.at(size) for size in sizes[1:-1]]
            measured += [median[way, size, at] for size in sizes[1:-1]]
    return LayerTimes(tuple(found), r_squared(predicted, measured) if new else 1.0, len(new))


def _rows(samples: Tensor, count: int) -> Tensor:
    times = -(-count // len(samples))
    return samples.repeat(times, *([1] * (samples.ndim - 1)))[:count].clone()


def _turn(
    layers: Sequence[nn.Module | LayerMaker], inputs: dict[int, Tensor], seconds: Timings
) -> None:
    """Measure each layer once with each number of samples. ``inputs``: input of the first layer for
    each number of samples. It is replaced with the output of one layer after the other."""
    for at, given in enumerate(layers):
        layer = make_layer(given, at, 0)
        if layer is not given:
            _pass(layer, inputs[min(inputs)])  # The first use of memory is slow.
        for size in inputs:
            inputs[size], *took_s = _pass(layer, inputs[size])
            for way, each_s in zip(WAYS, took_s, strict=True):
                seconds[way, size, at].append(each_s)
        del layer  # This frees its memory before the next layer is built.


def _pass(layer: nn.Module, inputs: Tensor) -> tuple[Tensor, float, float]:
    """Return the output of a layer, and the seconds of its forward and backward pass."""
    inputs = inputs.detach().requires_grad_(inputs.is_floating_point())
    began = time.perf_counter()
    outputs = layer(inputs)
    forward_s, backward_s = time.perf_counter() - began, 0.0
    if outputs.requires_grad:
        gradient = torch.ones_like(outputs)
        began = time.perf_counter()
        outputs.backward(gradient)
        backward_s = time.perf_counter() - began
    return outputs.detach(), forward_s, backward_s


def _walk(
    layers: Sequence[nn.Module | LayerMaker], samples: Tensor, count: int
) -> list[LayerProfile]:
    """Check the layers with a forward pass of ``count`` samples. Return their sizes without
    times."""
    inputs, found = _rows(samples, count), []
    for at, given in enumerate(layers):
        layer = make_layer(given, at, 0)
        inputs = inputs.detach().requires_grad_(inputs.is_floating_point())
        parameters = list(layer.parameters())
        kept = _Kept({parameter.untyped_storage().data_ptr() for parameter in parameters})
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda saved: saved):
            outputs = run_layer(layer, at, inputs)
        found.append(
            LayerProfile(
                layer_name(layer, at),
                signature_of(layer, inputs, outputs),
                sum(each.numel() * each.element_size() for each in parameters),
                outputs.numel() * outputs.element_size() / count,
                kept.nbytes / count,
                NOT_TIMED,
                NOT_TIMED,
            )
        )
        inputs = outputs.detach()
        del layer, parameters, outputs  # This frees their memory before the next layer is built.
    return found


class _Kept:
    """Counts the bytes that a forward pass stores for the backward pass. Each storage counts once,
    and parameters of the layer do not count."""

    def __init__(self, parameters: set[int]) -> None:
        self._seen, self.nbytes = parameters, 0

    def pack(self, saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.nbytes += storage.nbytes()
        # The tensor may be an output of the graph node that stores it. ``detach`` prevents the
        # reference cycle.
        return saved.detach()
