"""A model whose parameters are one vector, and the gradients of many workers at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy


class FlatModel:
    """Loss, gradients and accuracy of ``module`` as functions of a vector ``(d,)`` of
    all its parameters."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.names = [name for name, _ in module.named_parameters()]
        self.shapes = [parameter.shape for parameter in module.parameters()]
        self.sizes = [shape.numel() for shape in self.shapes]
        self._of_workers = vmap(grad(self.loss), in_dims=(None, 0, 0))

    def start(self) -> Tensor:
        """``(d,)``: a copy of the parameters as the module has them."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.module.parameters()])

    def answers(self, parameters: Tensor, images: Tensor) -> Tensor:
        parts = zip(self.names, torch.split(parameters, self.sizes), self.shapes, strict=True)
        answers: Tensor = functional_call(
            self.module, {name: part.view(shape) for name, part, shape in parts}, (images,)
        )
        return answers

    def loss(self, parameters: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """The mean cross entropy over a batch."""
        return cross_entropy(self.answers(parameters, images), labels)

    def gradients(self, parameters: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """``(workers, d)``: one gradient for each batch of ``images (workers, batch, ...)``,
        in one computation."""
        gradients: Tensor = self._of_workers(parameters, images, labels)
        return gradients

    def accuracy(
        self, parameters: Tensor, images: Tensor, labels: Tensor, batch: int = 2500
    ) -> float:
        """In per cent."""
        with torch.no_grad():
            parts = zip(torch.split(images, batch), torch.split(labels, batch), strict=True)
            hits = sum(
                int((self.answers(parameters, some).argmax(dim=1) == truth).sum())
                for some, truth in parts
            )
        return 100 * hits / len(labels)
