"""Models of learners by name, or from a file of the user."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gossip.errors import ConfigError, UnknownName
from gossip_lab.bench import models

NAMES = ("linear", "mlp", "small_cnn")


def make_model(spec: str, features: int, classes: int, seed: int) -> nn.Module:
    """Return a model of ``(samples, features) -> (samples, classes)``, its parameters drawn from
    ``seed``.

    Args:
        spec: ``linear``; ``mlp:128`` or ``mlp:128-64``, the units of its hidden layers;
            ``small_cnn``, of images of 28 by 28; or ``file.py:name``, a function ``(features,
            classes) -> torch.nn.Module``.
    Raises: ConfigError: There is no such model, or not for such data.
    """
    make = _from_file(spec) if ".py:" in spec else _built_in(spec)
    try:
        inspect.signature(make).bind(features, classes)
    except TypeError as error:
        raise ConfigError(
            f"model {spec} cannot be called with (features, classes): {error}",
            f"as in def {spec.rpartition(':')[2]}(features, classes)",
        ) from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make(features, classes)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model {spec}: it returned a {type(model).__name__}", "a torch.nn.Module"
        )
    if not any(True for _ in model.parameters()):
        raise ConfigError(f"model {spec} has no parameters")
    _try(model, spec, features, classes)
    return model


@torch.no_grad()
def _try(model: nn.Module, spec: str, features: int, classes: int) -> None:
    try:
        shape = tuple(model(torch.zeros(2, features)).shape)
    except Exception as error:
        raise ConfigError(
            f"model {spec} fails on samples of {features} numbers: {type(error).__name__}: {error}"
        ) from error
    if shape != (2, classes):
        raise ConfigError(
            f"model {spec} returned numbers of shape {shape} for 2 samples",
            f"(2, {classes}), a score for each class",
        )


def _built_in(spec: str) -> Callable[[int, int], nn.Module]:
    name, _, text = spec.partition(":")
    if name not in NAMES:
        raise UnknownName("model", name, NAMES)
    units = text.split("-") if text else []
    if not all(unit.isdigit() and int(unit) for unit in units) or (units and name != "mlp"):
        raise ConfigError(f"model {spec!r}: {text!r} are no hidden units", "as in mlp:128-64")
    if name == "small_cnn":
        return _small_cnn
    hidden = [int(unit) for unit in units or ["32"]] if name == "mlp" else []

    def make(features: int, classes: int) -> nn.Module:
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(features, width), nn.ReLU()]
            features = width
        return nn.Sequential(*layers, nn.Linear(features, classes))

    return make


class _Standardised(nn.Module):
    """Pixels of images from 0 to 1, brought to mean 0 and deviation 1 as MNIST has them."""

    def forward(self, images: Tensor) -> Tensor:
        return ((images - models.MEAN) / models.DEVIATION).view(-1, 1, models.SIDE, models.SIDE)


def _small_cnn(features: int, classes: int) -> nn.Module:
    if features != models.SIDE**2:
        raise ConfigError(
            f"small_cnn takes images of {models.SIDE} by {models.SIDE}, not {features} numbers"
        )
    return nn.Sequential(
        _Standardised(),
        *(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, classes)),
    )


def _from_file(spec: str) -> Callable[..., Any]:
    path, _, name = spec.rpartition(":")
    if not Path(path).is_file():
        raise ConfigError(f"model {spec}: there is no file {path}")
    found = importlib.util.spec_from_file_location(f"gossip_model_{Path(path).stem}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    make: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(make):
        functions = [key for key, each in vars(module).items() if inspect.isfunction(each)]
        raise UnknownName("model", name, functions)
    return make
