"""Many learners of one model, computed together.

    cohort = Cohort(make_model("mlp:32", features=64, classes=10, seed=0), features=64)
    gradients = cohort.gradients(parameters, Batches(images, chosen, labels))  # (n, d)

There are three ways to compute the learners, with the same results up to rounding in float32.
``products``: batched matrix products, for networks of linear layers and ReLUs. ``vmap``:
``torch.func.vmap`` over the learners, for most modules. ``loop``: autograd for one learner after
the other, for all modules.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from gossip.errors import ConfigError

log = logging.getLogger(__name__)
WayName = Literal["auto", "products", "vmap", "loop"]
IMAGES_AT_ONCE = 256
"""Maximum number of images in a forward pass of one learner. Larger passes do not fit into the
cache, and take twice as long per image."""
AT_ONCE = 64
"""Maximum number of learners in one call, so that the parameters of small models fit into the CPU
cache. The chunks do not depend on the number of threads, so the results do not depend on it
either."""
EVALUATED_AT_ONCE = 16
"""Maximum number of learners that are evaluated in one call, on all test samples."""
CHUNK = 2**10
"""Maximum number of peers in one call: ten thousand at once would need too much memory."""


def chunks(count: int, at_once: int = CHUNK) -> Iterator[slice]:
    """Yield consecutive parts of ``count`` items, each with ``at_once`` items at most."""
    for begin in range(0, count, at_once):
        yield slice(begin, min(begin + at_once, count))


class Batches(NamedTuple):
    """Batches of n learners.

    Attributes:
        images: ``(samples, features)``, all samples of the data set.
        chosen: ``(n, batch)`` int64, indices of each learner's samples in ``images``.
        labels: ``(n, batch)`` int64, labels of the chosen samples.
    """

    images: Tensor
    chosen: Tensor
    labels: Tensor


class Evaluation(NamedTuple):
    """Evaluation of n learners.

    Attributes:
        accuracy: ``(n,)``, 0 to 1; 0 if the parameters are not finite.
        loss: ``(n,)``, mean cross-entropy; infinity if the parameters are not finite.
    """

    accuracy: NDArray[np.float64]
    loss: NDArray[np.float64]


class _Way(Protocol):
    """Way to compute several learners at once. ``parameters``: ``(n, d)``; ``images``: ``(n,
    batch, features)``; ``labels``: ``(n, batch)``."""

    def write_gradients(
        self, parameters: Tensor, images: Tensor, labels: Tensor, out: Tensor
    ) -> None:
        """Write the gradients of the mean losses to ``out``, ``(n, d)``."""

    def descend(
        self, parameters: Tensor, images: Tensor, labels: Tensor, lr: float, kept: float
    ) -> None:
        """Make a step of plain SGD in place: parameters = ``kept`` * parameters - ``lr`` *
        gradient. The gradient is taken at the parameters before the step."""

    def logits(self, parameters: Tensor, images: Tensor) -> Tensor:
        """Return the logits of all learners on the same images, ``(n, samples, classes)``.
        ``images``: ``(samples, features)``."""


class Cohort:
    """n learners of one model, each with its own parameters.

    Args:
        model: Module ``(samples, features) -> (samples, classes)`` without buffers and without
            dropout. Its parameters become the initial parameters.
        features: Number of features of a sample.
        way: Way to compute; ``auto`` is the fastest way that the model allows.

    Attributes:
        initial: ``(d,)`` float32, the initial parameters.
        d: Number of parameters.
        shapes: Shapes of the model's parameter tensors, in their order in ``initial``.
        way: The way in use.

    Raises: ConfigError: The model has buffers or dropout.
    """

    def __init__(self, model: nn.Module, features: int, way: WayName = "auto") -> None:
        if (buffers := [name for name, _ in model.named_buffers()]) or _is_random(model):
            raise ConfigError(
                f"the model has {'the buffers ' + ', '.join(buffers) if buffers else 'dropout'}: "
                "the learners of a cohort share one module, and differ by their parameters alone",
                "use GroupNorm or LayerNorm in place of BatchNorm, and no dropout",
            )
        self.initial = torch.cat([each.detach().flatten() for each in model.parameters()]).float()
        self.d = len(self.initial)
        self.shapes = tuple([tuple(each.shape) for each in model.parameters()])
        self.way = way
        self._way = self._chosen_way(model, features)
        self._threads = len(os.sched_getaffinity(0))

    def gradients(self, parameters: Tensor, batches: Batches) -> Tensor:
        """Return the gradients of the mean loss of each learner's batch, ``(n, d)``.

        Args:
            parameters: ``(n, d)``; may be one expanded row.
        """
        found = torch.empty(len(batches.labels), self.d)

        def work(some: slice) -> None:
            images = batches.images[batches.chosen[some]]
            self._way.write_gradients(parameters[some], images, batches.labels[some], found[some])

        self._in_chunks(work, len(found), AT_ONCE)
        return found

    def logits(self, parameters: Tensor, images: Tensor) -> Tensor:
        """Return the logits of one learner, ``(samples, classes)``. ``parameters``: ``(d,)``."""
        parts = torch.split(images, IMAGES_AT_ONCE)
        found = [self._way.logits(parameters[None], some)[0] for some in parts]
        return torch.cat(found) if len(found) > 1 else found[0]

    def descend(
        self, parameters: Tensor, batches: Batches, lr: float, steps: int = 1, decay: float = 0.0
    ) -> None:
        """Make ``steps`` consecutive steps of plain SGD, each on an equal part of each learner's
        batch.

        Args:
            parameters: ``(n, d)``, contiguous; changed in place.
            decay: Coefficient of weight decay.
        """
        size = batches.labels.shape[1] // steps

        def work(some: slice) -> None:
            for begin in range(0, steps * size, size):
                part = slice(begin, begin + size)
                images = batches.images[batches.chosen[some, part]]
                labels = batches.labels[some, part]
                self._way.descend(parameters[some], images, labels, lr, 1 - lr * decay)

        self._in_chunks(work, len(batches.labels), AT_ONCE)

    def evaluate(self, parameters: Tensor, images: Tensor, labels: Tensor) -> Evaluation:
        """Return accuracy and loss of each learner on the same samples. ``parameters``: ``(n,
        d)``."""
        n = len(parameters)
        accuracy, loss = torch.zeros(n, dtype=torch.float64), torch.full((n,), torch.inf)

        def work(some: slice) -> None:
            logits = self._way.logits(parameters[some], images)
            finite = torch.isfinite(parameters[some]).all(dim=1)
            right = (logits.argmax(dim=2) == labels).double().mean(dim=1)
            wanted = logits.gather(2, labels.expand(len(logits), -1)[..., None]).squeeze(2)
            losses = (logits.logsumexp(dim=2) - wanted).mean(dim=1)
            accuracy[some] = right.where(finite, 0.0)
            loss[some] = losses.where(finite, torch.inf)

        self._in_chunks(work, n, EVALUATED_AT_ONCE)
        return Evaluation(accuracy.numpy(), loss.double().numpy())

    def _in_chunks(self, work: Callable[[slice], None], n: int, at_once: int) -> None:
        parts = list(chunks(n, at_once))
        if self._threads == 1 or len(parts) == 1:
            for part in parts:
                work(part)
            return
        within = torch.get_num_threads()
        torch.set_num_threads(1)  # parallel over chunks, not within an operation
        try:
            with ThreadPoolExecutor(min(self._threads, len(parts))) as pool:
                list(pool.map(work, parts))
        finally:
            torch.set_num_threads(within)

    def _chosen_way(self, model: nn.Module, features: int) -> _Way:
        layers = _linear_layers(model)
        if layers is not None and self.way in ("auto", "products"):
            self.way = "products"
            return _Products(layers)
        forward = _Forward(model)
        vmapped = _vmapped(forward)
        images, labels = torch.zeros(2, 1, features), torch.zeros(2, 1, dtype=torch.int64)
        out = torch.empty(2, self.d)
        if self.way != "loop":
            try:
                vmapped.write_gradients(self.initial.expand(2, -1), images, labels, out)
            except Exception as error:
                if self.way == "vmap":
                    raise
                log.info("learners run one by one, because vmap failed: %s", error)
            else:
                self.way = "vmap"
                return vmapped
        self.way = "loop"
        return _loop(forward)


class _Forward:
    """Forward pass and loss of a module, as functions of a flat parameter vector ``(d,)``."""

    def __init__(self, model: nn.Module) -> None:
        self._original = deepcopy(model)
        # A call writes parameters into a module, so concurrent calls must not use the same module.
        self._spare = [model]
        self._shapes = {name: each.shape for name, each in model.named_parameters()}
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]

    def logits(self, parameters: Tensor, images: Tensor) -> Tensor:
        parts = torch.split(parameters, self._sizes)
        named = {
            name: part.view(shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }
        try:
            module = self._spare.pop()
        except IndexError:
            module = deepcopy(self._original)
        output: Tensor = functional_call(module, named, (images,))
        self._spare.append(module)
        return output

    def loss(self, parameters: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self.logits(parameters, images), labels)


class _Autograd:
    """Way that computes gradients with autograd.

    Args:
        gradients: ``(parameters, images, labels) -> (n, d)``.
        logits: ``(parameters, images) -> (n, samples, classes)``.
    """

    def __init__(
        self, gradients: Callable[..., Tensor], logits: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        self._gradients, self._logits = gradients, logits

    def write_gradients(
        self, parameters: Tensor, images: Tensor, labels: Tensor, out: Tensor
    ) -> None:
        out.copy_(self._gradients(parameters, images, labels))

    def descend(
        self, parameters: Tensor, images: Tensor, labels: Tensor, lr: float, kept: float
    ) -> None:
        gradients = self._gradients(parameters, images, labels)
        parameters.mul_(kept).sub_(gradients, alpha=lr)

    def logits(self, parameters: Tensor, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self._logits(parameters, images)


def _vmapped(forward: _Forward) -> _Autograd:
    return _Autograd(vmap(grad(forward.loss)), vmap(forward.logits, in_dims=(0, None)))


def _loop(forward: _Forward) -> _Autograd:
    def gradient(parameters: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        point = parameters.detach().clone().requires_grad_()
        return torch.autograd.grad(forward.loss(point, images, labels), point)[0]

    return _Autograd(
        lambda *learners: torch.stack(list(map(gradient, *learners))),
        lambda parameters, images: torch.stack([forward.logits(p, images) for p in parameters]),
    )


class _Products:
    """Linear layers with ReLUs between them, as batched matrix products.

    Args:
        layers: ``(in_features, out_features)`` of each layer. Each layer has a bias.
    """

    def __init__(self, layers: Sequence[tuple[int, int]]) -> None:
        self._layers = layers

    def _cut(self, parameters: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield views of the weights ``(n, outputs, inputs)`` and biases ``(n, outputs)`` of each
        layer."""
        begin = 0
        for inputs, outputs in self._layers:
            middle, end = begin + inputs * outputs, begin + (inputs + 1) * outputs
            yield (
                parameters[:, begin:middle].view(-1, outputs, inputs),
                parameters[:, middle:end],
            )
            begin = end

    def _forward(self, parts: Sequence[tuple[Tensor, Tensor]], images: Tensor) -> list[Tensor]:
        """Return the inputs of each layer, and the logits."""
        found = [images]
        for at, (weights, biases) in enumerate(parts):
            output = torch.baddbmm(biases[:, None], found[-1], weights.mT)
            found.append(output.relu_() if at + 1 < len(parts) else output)
        return found

    def _errors(
        self, parameters: Tensor, images: Tensor, labels: Tensor
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the index, the backpropagated errors and the inputs of each layer, from the last
        layer to the first. After a layer was yielded, its weights may be changed."""
        parts = list(self._cut(parameters))
        *inputs, logits = self._forward(parts, images)
        error = logits.softmax(dim=2)
        right = labels[..., None]
        error.scatter_add_(2, right, torch.full((1, 1, 1), -1.0).expand_as(right))
        error /= labels.shape[1]
        for at in reversed(range(len(parts))):
            before = error @ parts[at][0] if at else error
            yield at, error, inputs[at]
            error = before.mul_(inputs[at] > 0) if at else before

    def write_gradients(
        self, parameters: Tensor, images: Tensor, labels: Tensor, out: Tensor
    ) -> None:
        places = list(self._cut(out))
        for at, error, inputs in self._errors(parameters, images, labels):
            torch.bmm(error.mT, inputs, out=places[at][0])
            torch.sum(error, dim=1, out=places[at][1])

    def descend(
        self, parameters: Tensor, images: Tensor, labels: Tensor, lr: float, kept: float
    ) -> None:
        places = list(self._cut(parameters))
        for at, error, inputs in self._errors(parameters, images, labels):
            places[at][0].baddbmm_(error.mT, inputs, beta=kept, alpha=-lr)
            places[at][1].mul_(kept).sub_(error.sum(dim=1), alpha=lr)

    def logits(self, parameters: Tensor, images: Tensor) -> Tensor:
        parts = list(self._cut(parameters))
        return self._forward(parts, images.expand(len(parameters), -1, -1))[-1]


def _linear_layers(model: nn.Module) -> list[tuple[int, int]] | None:
    """Return ``(in_features, out_features)`` of each linear layer of
    ``Sequential(Linear, ReLU, ..., Linear)``, or None for any other model."""
    modules = list(model) if isinstance(model, nn.Sequential) else [model]
    layers, between = modules[::2], modules[1::2]
    if len(layers) != len(between) + 1 or not all(type(each) is nn.ReLU for each in between):
        return None
    found = []
    for layer in layers:
        if type(layer) is not nn.Linear or layer.bias is None:
            return None
        found.append((layer.in_features, layer.out_features))
    return found


def _is_random(model: nn.Module) -> bool:
    """Whether a forward pass in training mode is random, as with dropout."""
    kinds = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.RReLU
    return any(isinstance(each, kinds) and getattr(each, "p", 1.0) for each in model.modules())
