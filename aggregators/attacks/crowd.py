"""Knowledge of colluding Byzantine peers: the honest updates of the round, their own updates, and
perhaps the rule."""

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
    """One round as seen by omniscient attackers.

    Attributes:
        honest: ``(h, d)``, float32 or float64.
        own: ``(f, d)``, the updates that the attackers would send if they were honest.
        generator: Randomness of this round, the same for all attackers.
        direction: Randomness of the whole run, the same for all attackers.
        rule: Rule of the run; None if the attackers do not know it.
        memory: State that is kept between rounds.
        locked: Honest peers in quarantine that the attackers have detected.
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
        """Return ``(d,)``, the mean of the honest updates."""
        return self.honest.mean(dim=0)

    def deviation(self) -> Tensor:
        """Return ``(d,)``: standard deviation of each coordinate over the honest updates (with the
        divisor h - 1); zeros if there is only one honest update."""
        return self.honest.std(dim=0) if self.h > 1 else torch.zeros_like(self.honest[0])

    def typical_norm(self) -> Tensor:
        """Return the median of the norms of the honest updates."""
        median: Tensor = torch.linalg.vector_norm(self.honest, dim=1).median()
        return median

    def all_alike(self, lie: Tensor) -> Tensor:
        """Return ``(f, d)``: the same vector for all attackers."""
        return lie.repeat(self.f, 1)

    def damage(self, lies: Tensor) -> float:
        """Return the distance of the rule's result under the attack from the honest mean; infinite
        if the result is not finite.

        0 if the attack itself is not finite, because no peer passes such updates to its rule.

        Raises: ConfigError: The rule is not known.
        """
        if not bool(torch.isfinite(lies).all()):
            return 0.0
        moved = torch.linalg.vector_norm((self.aggregate(lies) - self.mean()).to(torch.float64))
        return float(moved) if math.isfinite(float(moved)) else math.inf

    def measure_reversal(self, lies: Tensor) -> float:
        """Return the inner product of the rule's result and the opposite of the honest mean;
        infinite if it is not finite.

        Minus infinity if the attack itself is not finite, because no peer passes such updates to
        its rule.

        Raises: ConfigError: The rule is not known.
        """
        if not bool(torch.isfinite(lies).all()):
            return -math.inf
        reversal = -float(self.aggregate(lies).double() @ self.mean().double())
        return reversal if math.isfinite(reversal) else math.inf

    def aggregate(self, lies: Tensor) -> Tensor:
        """Return the rule's result ``(d,)`` for the honest updates and the attackers' updates.

        Raises: ConfigError: The rule is not known.
        """
        if self.rule is None:
            raise ConfigError(
                "this attack evaluates the rule, and needs the rule as an argument",
                "pass collude(..., rule=...)",
            )
        return self.rule(torch.cat([self.honest, lies]))


def unit(vector: Tensor) -> Tensor:
    """Return the vector scaled to length 1; zeros stay zeros."""
    size = torch.linalg.vector_norm(vector)
    return vector / size if float(size) > 0 else vector
