"""Many learners of one model, computed together.

cohort = Cohort(make_model("mlp:32", features=64, classes=10), seed=0)
gradients = cohort.gradients(parameters, images, labels)  # (n, d)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from gossip.errors import ConfigError


def make_model(spec: str, features: int, classes: int, seed: int) -> nn.Module:
    """Return a model with parameters drawn from ``seed``: ``mlp:HIDDEN`` or ``linear``.

    Raises: ConfigError: There is no such model.
    """
    name, _, number = spec.partition(":")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "linear":
            return nn.Linear(features, classes)
        if name == "mlp" and (number or "32").isdigit():
            hidden = int(number or "32")
            return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    raise ConfigError(f"there is no model {spec!r}", "mlp:32 or linear")


class Cohort:
    """n learners of one model, each with parameters of its own.

    Attributes:
        initial: ``(d,)`` float32, the initial parameters.
        d: Number of parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        named = {name: each.detach() for name, each in model.named_parameters()}
        self._shapes = {name: each.shape for name, each in named.items()}
        self._sizes = [each.numel() for each in named.values()]
        self.initial = torch.cat([each.flatten() for each in named.values()]).float()
        self.d = len(self.initial)
        self._gradient: Callable[[Tensor, Tensor, Tensor], Tensor] = grad(self._loss)

    def gradients(self, parameters: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Return the gradients of the mean loss of each learner's batch, ``(n, d)``.

        Args:
            parameters: ``(n, d)``; may be one expanded row.
            images: ``(n, batch, features)``.
            labels: ``(n, batch)`` int64.
        """
        found: Tensor = vmap(self._gradient)(parameters, images, labels)
        return found

    def logits(self, parameters: Tensor, images: Tensor) -> Tensor:
        """Return ``(samples, classes)`` of one learner, ``(d,)``, without gradients."""
        with torch.no_grad():
            return self._forward(parameters, images)

    def _loss(self, parameters: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self._forward(parameters, images), labels)

    def _forward(self, parameters: Tensor, images: Tensor) -> Tensor:
        parts = torch.split(parameters, self._sizes)
        named = {
            name: part.view(shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }
        output: Tensor = functional_call(self._model, named, (images,))
        return output
