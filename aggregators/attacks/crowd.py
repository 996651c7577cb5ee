"""Knowledge of colluding Byzantine peers: the honest updates of the round, their own, how many they
are, and perhaps the rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gossip.errors import ConfigError

from .kinds import Aggregator


@dataclass(frozen=True, slots=True)
class OmniscientView:
    """One round as omniscient liars see it.

    Attributes:
        honest: ``(h, d)``, float32 or float64.
        own: ``(f, d)``, what the liars would have sent.
        generator: Of this round, the same for all liars.
        direction: Of the whole run, likewise.
        rule: What will be made of the updates; None when the liars do not know.
        memory: Kept from one round to the next.
        locked: Which of the honest are in quarantine, as far as they know.
    """

    honest: Tensor
    own: Tensor
    generator: torch.Generator
    direction: torch.Generator
    rule: Aggregator | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    locked: frozenset[int] = frozenset()

    @property
    def f(self) -> int:
        return len(self.own)

    @property
    def h(self) -> int:
        return len(self.honest)

    def mean(self) -> Tensor:
        """``(d,)``."""
        return self.honest.mean(dim=0)

    def deviation(self) -> Tensor:
        """``(d,)``: standard deviation of each coordinate over the honest (divided by h - 1); zeros
        when there is only one."""
        return self.honest.std(dim=0) if self.h > 1 else torch.zeros_like(self.honest[0])

    def typical_norm(self) -> Tensor:
        """Return the median of the norms of the honest updates."""
        median: Tensor = torch.linalg.vector_norm(self.honest, dim=1).median()
        return median

    def all_alike(self, lie: Tensor) -> Tensor:
        """``(f, d)``: everybody sends the same."""
        return lie.repeat(self.f, 1)

    def damage(self, lies: Tensor) -> float:
        """How far the lies carry the rule's result from the honest mean;
        infinite when it is not finite.

        Lies that are not finite themselves carry it nowhere: no peer shows them to its rule.

        Raises: ConfigError: The rule is not known.
        """
        if not bool(torch.isfinite(lies).all()):
            return 0.0
        moved = torch.linalg.vector_norm((self.aggregate(lies) - self.mean()).to(torch.float64))
        return float(moved) if math.isfinite(float(moved)) else math.inf

    def measure_reversal(self, lies: Tensor) -> float:
        """Return the inner product of the rule's result and the opposite of the honest mean;
        infinite when it is not finite. Lies that are not finite themselves are never sent.

        Raises: ConfigError: The rule is not known.
        """
        if not bool(torch.isfinite(lies).all()):
            return -math.inf
        reversal = -float(self.aggregate(lies).double() @ self.mean().double())
        return reversal if math.isfinite(reversal) else math.inf

    def aggregate(self, lies: Tensor) -> Tensor:
        """Return what the rule makes of the honest updates and these lies, ``(d,)``.

        Raises: ConfigError: The rule is not known.
        """
        if self.rule is None:
            raise ConfigError(
                "this attack tries itself on the rule, and needs the rule as an argument",
                "give collude(..., rule=...)",
            )
        return self.rule(torch.cat([self.honest, lies]))


def unit(vector: Tensor) -> Tensor:
    """Return the vector scaled to length 1; zeros stay zeros."""
    size = torch.linalg.vector_norm(vector)
    return vector / size if float(size) > 0 else vector
