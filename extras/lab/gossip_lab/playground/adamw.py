"""AdamW for many peers at once. The gradient of a peer is the aggregate of its gossip round."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Optimizer: TypeAlias = Literal["sgd", "adamw", "adamw-mixed"]
BETAS, EPS, WEIGHT_DECAY = (0.9, 0.999), 1e-8, 0.01
"""Defaults of ``torch.optim.AdamW``."""


class AdamW:
    """AdamW of n peers (Loshchilov, Hutter 2019, arXiv:1711.05101).

    Attributes:
        first, second: ``(n, d)``: first and second moment of each peer.
    """

    def __init__(self, n: int, d: int, lr: float) -> None:
        self.first, self.second = torch.zeros(2, n, d)
        self._steps, self._lr = torch.zeros(n, 1), lr

    def step(self, here: Tensor, at: slice | NDArray[np.int64], results: Tensor) -> None:
        """Make an optimizer step for m of the n peers, in place.

        Args:
            here: ``(n, d)``, the parameters of all peers.
            at: The m peers.
            results: ``(m, d)``, their aggregates.
        """
        self._steps[at] += 1
        means = []
        for power, moments in enumerate((self.first, self.second)):
            beta = BETAS[power]
            moments[at] = beta * moments[at] + (1 - beta) * results ** (power + 1)
            means.append(moments[at] / (1 - beta ** self._steps[at]))
        moved = means[0] / (means[1].sqrt_() + EPS)
        here[at] -= self._lr * (WEIGHT_DECAY * here[at] + moved)

    def restore(self, peer: int, donor: int | None) -> None:
        """Copy the moments of ``donor`` to ``peer``. Without a donor, set them to zero."""
        for moments in (self.first, self.second, self._steps):
            moments[peer] = 0.0 if donor is None else moments[donor]
