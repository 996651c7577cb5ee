"""Models by name: one flat vector of parameters, and the gradients of many workers at once.

    model = make("cnn_mnist", features=784, classes=10, hidden=32, seed=0)
    updates = model.gradients(images, labels)  # (n, d)

``mlp`` has one hidden layer and takes any images. The others are for images of 28 by 28 from 0 to
1, which they bring to mean 0 and deviation 1 as MNIST has them. ``logreg_mnist``, ``fc_mnist`` and
``cnn_mnist`` are those of ByzFL's benchmark. ``small_cnn`` has 6,000 parameters and takes a ninth
of the time of ``cnn_mnist``, for tables of many runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, linear, max_pool2d, one_hot

from gossip.errors import ConfigError, UnknownName

MLP = "mlp"
MEAN, DEVIATION = 0.1307, 0.3081
"""Mean and standard deviation of the pixels of MNIST's training images, from 0 to 1."""
SIDE = 28
AT_ONCE = 250
"""Images in a forward pass: larger passes do not fit the cache, and take twice as long an image."""


class Model(Protocol):
    """Model that a trial trains.

    Attributes:
        parameters: The flat ``(d,)`` vector.
        shapes: Shapes of the tensors in this vector, in order.
    """

    parameters: Tensor
    shapes: tuple[tuple[int, ...], ...]

    def logits(self, images: Tensor) -> Tensor:
        """Return ``(samples, classes)`` for images ``(samples, features)``."""

    def loss(self, images: Tensor, labels: Tensor, step: Tensor) -> float:
        """Return the loss at the parameters less ``step``."""

    def gradients(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the gradients of the mean loss of each worker's batch, ``(n, d)``. Images ``(n,
        batch, features)``, labels ``(n, batch)``."""


def names() -> tuple[str, ...]:
    """Return all names that ``make`` takes."""
    return (MLP, *sorted(_PLANS))


def check(name: str, features: int) -> None:
    """Check a model. Raises: UnknownName, ConfigError: There is no such model, or not for such
    images."""
    if name not in names():
        raise UnknownName("model", name, names())
    if name != MLP and features != SIDE * SIDE:
        raise ConfigError(
            f"model {name} is for images of {SIDE} by {SIDE}, and these have "
            f"{features} numbers each",
            f"give --data mnist or a file like it, or take --model {MLP}",
        )


def make(name: str, features: int, classes: int, hidden: int, seed: int) -> Model:
    """Return a model with parameters drawn from ``seed``. ``hidden``: units of the hidden layer of
    ``mlp``; the others have their own.

    Raises: UnknownName, ConfigError: There is no such model, or not for such images.
    """
    check(name, features)
    if name == MLP:
        return TwoLayerNetwork(features, hidden, classes, seed)
    return AutogradModel(_PLANS[name], classes, seed)


class TwoLayerNetwork:
    """One hidden layer of rectified units, its gradients written out: many workers at once, ten
    times as fast as one after the other by autograd."""

    def __init__(self, features: int, hidden: int, classes: int, seed: int) -> None:
        self.shapes: tuple[tuple[int, ...], ...] = (
            (hidden, features),
            (hidden,),
            (classes, hidden),
            (classes,),
        )
        self.parameters = _drawn(self.shapes, seed)

    def logits(self, images: Tensor, parameters: Tensor | None = None) -> Tensor:
        first, bias, second, last = _cut(
            self.parameters if parameters is None else parameters, self.shapes
        )
        return (images @ first.T + bias).relu() @ second.T + last

    def loss(self, images: Tensor, labels: Tensor, step: Tensor) -> float:
        return float(cross_entropy(self.logits(images, self.parameters - step), labels))

    def gradients(self, images: Tensor, labels: Tensor) -> Tensor:
        first, bias, second, last = _cut(self.parameters, self.shapes)
        n, batch = labels.shape
        hidden = (images @ first.T + bias).relu()
        error = (hidden @ second.T + last).softmax(dim=2) - one_hot(labels, len(last))
        error /= batch
        back = (error @ second) * (hidden > 0)
        parts = (back.mT @ images, back.sum(dim=1), error.mT @ hidden, error.sum(dim=1))
        return torch.cat([part.reshape(n, -1) for part in parts], dim=1)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Shapes of weights and biases in turn, but for the last layer's, which depend on the classes:
    ``width`` numbers go into it."""

    shapes: tuple[tuple[int, ...], ...]
    width: int
    forward: Callable[[Tensor, Sequence[Tensor]], Tensor]


class AutogradModel:
    """A model by its forward pass. The workers' gradients are made one after the other: on a
    processor ``torch.func.vmap`` over them is no faster, for 10 workers of 8 to 25 images."""

    def __init__(self, plan: _Plan, classes: int, seed: int) -> None:
        self.shapes = (*plan.shapes, (classes, plan.width), (classes,))
        self._forward = plan.forward
        self.parameters = _drawn(self.shapes, seed)

    def logits(self, images: Tensor) -> Tensor:
        return self._logits(images, self.parameters)

    def loss(self, images: Tensor, labels: Tensor, step: Tensor) -> float:
        return float(cross_entropy(self._logits(images, self.parameters - step), labels))

    def gradients(self, images: Tensor, labels: Tensor) -> Tensor:
        found = torch.empty(len(labels), len(self.parameters))
        for worker, row in enumerate(found):
            parts = [part.detach().requires_grad_() for part in _cut(self.parameters, self.shapes)]
            output = self._forward(_standard(images[worker]), parts)
            gradient = torch.autograd.grad(cross_entropy(output, labels[worker]), parts)
            torch.cat([part.flatten() for part in gradient], out=row)
        return found

    def _logits(self, images: Tensor, parameters: Tensor) -> Tensor:
        parts = _cut(parameters, self.shapes)
        with torch.no_grad():
            return torch.cat(
                [self._forward(_standard(some), parts) for some in torch.split(images, AT_ONCE)]
            )


def _standard(images: Tensor) -> Tensor:
    return (images - MEAN) / DEVIATION


def _fully_connected(images: Tensor, parts: Sequence[Tensor]) -> Tensor:
    first, bias, second, last = parts
    return linear(linear(images, first, bias).relu(), second, last)


def _convolutional(images: Tensor, parts: Sequence[Tensor]) -> Tensor:
    first, first_bias, second, second_bias, third, third_bias, last, last_bias = parts
    maps = max_pool2d(conv2d(images.view(-1, 1, SIDE, SIDE), first, first_bias).relu(), 2)
    maps = max_pool2d(conv2d(maps, second, second_bias).relu(), 2)
    return linear(linear(maps.flatten(1), third, third_bias).relu(), last, last_bias)


def _strided(images: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Return convolutions with a stride of 2 in place of maxima, which take longer."""
    first, first_bias, second, second_bias, last, last_bias = parts
    maps = conv2d(images.view(-1, 1, SIDE, SIDE), first, first_bias, stride=2).relu()
    maps = conv2d(maps, second, second_bias, stride=2).relu()
    return linear(maps.flatten(1), last, last_bias)


_PLANS = {
    "logreg_mnist": _Plan((), SIDE * SIDE, lambda images, parts: linear(images, *parts)),
    "fc_mnist": _Plan(((100, SIDE * SIDE), (100,)), 100, _fully_connected),
    "cnn_mnist": _Plan(
        ((20, 1, 5, 5), (20,), (50, 20, 5, 5), (50,), (500, 800), (500,)), 500, _convolutional
    ),
    "small_cnn": _Plan(((8, 1, 5, 5), (8,), (16, 8, 5, 5), (16,)), 256, _strided),
}


def _cut(parameters: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    parts = torch.split(parameters, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _drawn(shapes: Sequence[tuple[int, ...]], seed: int) -> Tensor:
    """Return uniform numbers up to 1 / sqrt(inputs of a unit), for a layer's weights and biases
    alike, as in torch's own layers."""
    generator = generator_of(f"model/{seed}")
    parts = []
    bound = 0.0
    for shape in shapes:
        if len(shape) > 1:
            bound = 1 / math.sqrt(math.prod(shape[1:]))
        parts.append((2 * torch.rand(math.prod(shape), generator=generator) - 1) * bound)
    return torch.cat(parts)


def generator_of(name: str) -> torch.Generator:
    """Return a generator that depends on ``name`` alone."""
    seed = int.from_bytes(blake2b(name.encode(), digest_size=7).digest(), "big")
    return torch.Generator().manual_seed(seed)
