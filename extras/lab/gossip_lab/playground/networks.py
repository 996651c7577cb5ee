"""Models of learners by name, or from a file of the user."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from gossip.errors import ConfigError, UnknownName
from gossip.specs import load_named
from gossip.training import seeded_generators

MEAN, DEVIATION = 0.1307, 0.3081
"""Mean and standard deviation of the pixels of MNIST's training images, scaled to the range 0 to
1."""
SIDE = 28


def make_model(spec: str, features: int, classes: int, seed: int) -> nn.Module:
    """Return a model ``(samples, features) -> (samples, classes)``. Its initial parameters depend
    on ``seed``.

    Args:
        spec: ``linear``; ``mlp:128`` or ``mlp:128-64``, with the number of units of each hidden
            layer; for images of 28 by 28 pixels ``logreg_mnist``, ``fc_mnist`` and ``cnn_mnist`` of
            ByzFL's benchmark, or ``small_cnn`` with 6,000 parameters; or ``file.py:name``, a
            function ``(features, classes) -> torch.nn.Module``.
    Raises: ConfigError: There is no such model, or it does not fit these data.
    """
    if ".py:" in spec:
        place, _, name = spec.rpartition(":")
        make = load_named(place, name, "model", inspect.isfunction)
    else:
        make = _built_in(spec)
    try:
        inspect.signature(make).bind(features, classes)
    except TypeError as error:
        raise ConfigError(
            f"model {spec} cannot be called with (features, classes): {error}",
            f"as in def {spec.rpartition(':')[2]}(features, classes)",
        ) from error
    with seeded_generators(seed, devices=()):
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
        raise ConfigError(
            f"model {spec!r}: {text!r} are not numbers of hidden units", "as in mlp:128-64"
        )
    if name in _OF_IMAGES:
        return partial(_of_images, name)
    hidden = [int(unit) for unit in units or ["32"]] if name == "mlp" else []

    def make(features: int, classes: int) -> nn.Module:
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(features, width), nn.ReLU()]
            features = width
        return nn.Sequential(*layers, nn.Linear(features, classes))

    return make


class _Standardised(nn.Module):
    """Layer that normalises pixels from 0 to 1 with the mean and standard deviation of MNIST."""

    def forward(self, images: Tensor) -> Tensor:
        return ((images - MEAN) / DEVIATION).view(-1, 1, SIDE, SIDE)


def _cnn() -> list[nn.Module]:
    first = [nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return [*first, *second, nn.Flatten(), nn.Linear(800, 500), nn.ReLU()]


def _small_cnn() -> list[nn.Module]:
    """Return convolutions with a stride of 2, because max pooling takes longer."""
    first = [nn.Conv2d(1, 8, 5, stride=2), nn.ReLU()]
    return [*first, nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(), nn.Flatten()]


_OF_IMAGES: dict[str, tuple[int, Callable[[], list[nn.Module]]]] = {
    "logreg_mnist": (SIDE**2, lambda: [nn.Flatten()]),
    "fc_mnist": (100, lambda: [nn.Flatten(), nn.Linear(SIDE**2, 100), nn.ReLU()]),
    "cnn_mnist": (500, _cnn),
    "small_cnn": (256, _small_cnn),
}
"""Name of an image model -> number of inputs of its last layer, and a function that makes the
layers before the last."""
NAMES = ("linear", "mlp", *_OF_IMAGES)


def _of_images(name: str, features: int, classes: int) -> nn.Module:
    if features != SIDE**2:
        raise ConfigError(
            f"model {name} is for images of {SIDE} by {SIDE}, and these have {features} numbers",
            "use mnist or similar data, or the model mlp",
        )
    width, make_layers = _OF_IMAGES[name]
    return nn.Sequential(_Standardised(), *make_layers(), nn.Linear(width, classes))
