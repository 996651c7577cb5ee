"""Times the layers of a model on this machine: forward, backward, and what they keep."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gossip.errors import ConfigError

from .fits import CostLine, fit_line, r_squared
from .layers import layer_name, run_layer, signature_of
from .making import LayerMaker, make_layer, outline_of
from .profile import LAYERS_MAX, LayerProfile

WAYS = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Measured times of all layers.

    Attributes:
        r2: How well the lines predict the times at two other numbers of samples.
            ``relative_error`` is of the same times: the median of its size.
        timed: How many layers were timed now; the others were known.
    """

    layers: tuple[LayerProfile, ...]
    r2: float
    relative_error: float
    timed: int


def layers_of(made: Any, where: str) -> tuple[list[nn.Module | LayerMaker], Tensor]:
    """Return the layers and the samples that a user's function has returned. The layers are in
    their order, each a module or a function that makes one.

    Raises: ConfigError: It has returned something else, or two layers share a parameter.
    """
    if not isinstance(made, tuple) or len(made) != 2:
        raise ConfigError(
            f"{where} returned {type(made).__name__}, not layers and samples",
            "it ends with: return layers, samples    # a list of modules or of functions that make "
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
        raise ConfigError(f"{where}: the samples are no tensor with a sample or more in its rows")
    if not 0 < len(layers) <= LAYERS_MAX:
        raise ConfigError(f"{where}: {len(layers)} layers, where 1 to {LAYERS_MAX} can be")
    owner: dict[int, int] = {}
    outlines = [outline_of(layer, at) for at, layer in enumerate(layers)]
    for at, outline in enumerate(outlines):
        for name, parameter in outline.named_parameters():
            if (first := owner.setdefault(id(parameter), at)) != at:
                raise ConfigError(
                    f"{where}: layers {first} and {at} share the parameter {name}",
                    "layers of a plan share nothing, since they may be on different peers: untie "
                    "them, or make one layer of both",
                )
    return list(layers), samples


def measure_layers(
    layers: Sequence[nn.Module | LayerMaker],
    samples: Tensor,
    batches: tuple[int, int],
    repeats: int,
    known: Mapping[str, LayerProfile] | None = None,
) -> LayerTimes:
    """Medians of ``repeats`` turns at two numbers of samples, and a line through them.

    Every turn goes through all layers and sizes, so that whatever else the machine does meets all
    of them. Two sizes between the two only check the lines. Layers that are given as functions are
    made anew in each turn, one after the other, so that there is one of them at a time.

    Args:
        samples: ``(n, ...)``, of which rows are repeated as needed.
        batches: The two numbers of samples, the smaller one first.
        known: Layers that need not be timed, by their signature.
    Raises: ConfigError: A layer fails on these samples, or hands on no tensor of as many rows.
    """
    small, large = batches
    middle = round(math.sqrt(small * large))
    sizes = [small, middle, round((middle + large) / 2), large]
    shapes = _walk(layers, samples, large)
    known = known or {}
    times = {size: _Turns(len(layers)) for size in sizes}
    new = [at for at, shape in enumerate(shapes) if shape.signature not in known]
    for turn in range(repeats + 1 if new else 0):
        _turn(layers, {size: _rows(samples, size) for size in sizes}, times if turn else {})
    measured = {at: _lines(times, at, batches) for at in new}
    profiles = tuple(
        _profile(shape, measured[at] if at in measured else _known(known[shape.signature]))
        for at, shape in enumerate(shapes)
    )
    checked = [
        (line.at(size), times[size].median(way, at))
        for at, both in measured.items()
        for way, line in zip(WAYS, both, strict=True)
        for size in sizes[1:-1]
    ]
    if not checked:
        return LayerTimes(profiles, 1.0, 0.0, 0)
    errors = [abs(said - took) / took for said, took in checked if took > 0]
    r2 = r_squared(*zip(*checked, strict=True))
    return LayerTimes(profiles, r2, statistics.median(errors), len(new))


class _Turns:
    """Seconds of each turn at one number of samples."""

    def __init__(self, layers: int) -> None:
        self.seconds: dict[str, list[list[float]]] = {
            way: [[] for _ in range(layers)] for way in WAYS
        }

    def median(self, way: str, layer: int) -> float:
        return statistics.median(self.seconds[way][layer])


def _known(layer: LayerProfile) -> tuple[CostLine, CostLine]:
    return layer.forward, layer.backward


def _lines(
    times: Mapping[int, _Turns], at: int, batches: tuple[int, int]
) -> tuple[CostLine, CostLine]:
    forward, backward = (
        fit_line(batches, [times[size].median(way, at) for size in batches]) for way in WAYS
    )
    return forward, backward


def _rows(samples: Tensor, count: int) -> Tensor:
    times = -(-count // len(samples))
    return samples.repeat(times, *([1] * (samples.ndim - 1)))[:count].clone()


def _turn(
    layers: Sequence[nn.Module | LayerMaker],
    inputs: dict[int, Tensor],
    into: Mapping[int, _Turns],
) -> None:
    """Each layer with each number of samples. ``inputs``: by their number."""
    for at, given in enumerate(layers):
        layer = make_layer(given, at, 0)
        if layer is not given:
            _pass(layer, inputs[min(inputs)])  # memory that was never used takes its time, once
        for size in inputs:
            inputs[size], *took_s = _pass(layer, inputs[size])
            if into:
                for way, seconds in zip(WAYS, took_s, strict=True):
                    into[size].seconds[way][at].append(seconds)
        del layer  # before the next one is made


def _pass(layer: nn.Module, inputs: Tensor) -> tuple[Tensor, float, float]:
    """Return the output of a layer, and the seconds forward and backward."""
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


@dataclass(frozen=True, slots=True)
class _Shape:
    name: str
    signature: str
    parameter_bytes: int
    output_bytes: float
    kept_bytes: float


def _walk(layers: Sequence[nn.Module | LayerMaker], samples: Tensor, count: int) -> list[_Shape]:
    """One forward pass with ``count`` samples: sizes, and whether each layer does what a layer
    does."""
    inputs, found = _rows(samples, count), []
    for at, given in enumerate(layers):
        layer = make_layer(given, at, 0)
        inputs = inputs.detach().requires_grad_(inputs.is_floating_point())
        parameters = list(layer.parameters())
        kept = _Kept({parameter.untyped_storage().data_ptr() for parameter in parameters})
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda saved: saved):
            outputs = run_layer(layer, at, inputs)
        found.append(
            _Shape(
                layer_name(layer, at).replace('"', "").replace("\\", ""),
                signature_of(layer, inputs, outputs),
                sum(each.numel() * each.element_size() for each in parameters),
                outputs.numel() * outputs.element_size() / count,
                kept.nbytes / count,
            )
        )
        inputs = outputs.detach()
        del layer, parameters, outputs  # before the next one is made
    return found


class _Kept:
    """Counts what a forward pass keeps, each memory once and without the layer's parameters."""

    def __init__(self, parameters: set[int]) -> None:
        self._seen, self.nbytes = parameters, 0

    def pack(self, saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.nbytes += storage.nbytes()
        # The tensor itself may be an output of what keeps it: a circle that nothing would free.
        return saved.detach()


def _profile(shape: _Shape, lines: tuple[CostLine, CostLine]) -> LayerProfile:
    return LayerProfile(
        shape.name,
        shape.signature,
        shape.parameter_bytes,
        shape.output_bytes,
        shape.kept_bytes,
        *lines,
    )
