"""Norms of the gradients of a stage's layers."""

from __future__ import annotations

import torch
from torch import nn


class GradientNorms:
    """Euclidean norms of the gradients of the last round, by the number of the layer, before
    anything clips them.

    Args:
        model: The layers of a stage, under their numbers.
    """

    def __init__(self, model: nn.ModuleDict) -> None:
        self._model = model
        self._norms: dict[str, float] = {}

    def measure(self) -> None:
        """Measure the norms. Call it once the layers have their gradients."""
        for number, layer in self._model.items():
            gradients = [each.grad for each in layer.parameters() if each.grad is not None]
            norms = [torch.linalg.vector_norm(each.float()) for each in gradients]
            whole = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
            self._norms[number] = float(whole)

    def state(self) -> dict[str, float]:
        return dict(self._norms)

    def adopt(self, state: object) -> None:
        """Restore the norms from a packed state. Entries that are not norms are skipped."""
        known = state.items() if isinstance(state, dict) else ()
        self._norms = {
            number: value for number, value in known if number in self._model and is_norm(value)
        }


def is_norm(value: object) -> bool:
    return isinstance(value, float) and value >= 0.0
