"""What a rule is: a function from updates to one update, plus what it can say about each of them.

``@rule`` turns a function ``(updates, *, f, ...) -> Tensor`` into a ``Rule``. Called, it returns the aggregate; ``explain``
returns a ``Verdict`` with the weight and the outlyingness of each update. A function may return a ``Verdict`` itself
when it knows them better than the distance to the aggregate does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossip.errors import ConfigError, TooFewUpdates


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule decided.

    Attributes:
        aggregate: ``(d,)``, dtype and device of the updates.
        weights: ``(n,)`` float64, the share of each update in the aggregate; coordinate rules: the fraction of its coordinates
            that survived, divided by their sum. Sums to 1.
        outlyingness: ``(n,)`` float64, >= 0, how far each update stands out; 1.0 is typical (the median over the updates).
            All ones when the rule never tells one update from another (the mean): then it is evidence against nobody.
    """

    aggregate: Tensor
    weights: Tensor
    outlyingness: Tensor


class Rule:
    """A robust aggregation rule with a name, the least n for a given f, and what it needs beside the updates."""

    def __init__(self, function: Callable[..., Any], name: str, at_least: Callable[[int], int], discerning: bool) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.at_least = at_least
        self.discerning = discerning
        self.parameters = inspect.signature(function).parameters

    @property
    def needs(self) -> frozenset[str]:
        """What it asks for beside updates: any of ``f``, ``center``, ``evaluate``, ``gradient``, ``learning_rate``."""
        return frozenset(self.parameters) & {"f", "center", "evaluate", "gradient", "learning_rate"}

    @property
    def needs_trainer(self) -> bool:
        """Whether it runs in the trainer's process, because it evaluates the loss or its gradient there."""
        return bool(self.needs & {"evaluate", "gradient"})

    whole_vector = True
    """False for rules that work coordinate by coordinate: those may be cut in shards."""

    def __call__(self, updates: Tensor, **options: Any) -> Tensor:
        result = self.function(updates, **options)
        aggregate: Tensor = result.aggregate if isinstance(result, Verdict) else result
        return aggregate

    def explain(self, updates: Tensor, **options: Any) -> Verdict:
        """Like calling it, but says how each update was used.

        Args:
            updates: ``(n, d)``, one row a peer, all finite.
        Returns: the ``Verdict``. A rule that returns a bare tensor gets its distances to the aggregate as outlyingness and
            equal weights.
        """
        result = self.function(updates, **options)
        if isinstance(result, Verdict):
            return result
        if not isinstance(result, Tensor) or result.shape != updates.shape[1:]:
            shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise ConfigError(f"rule {self.name} returned {shape}, not a tensor of shape {tuple(updates.shape[1:])}")
        n = len(updates)
        weights = torch.full((n,), 1.0 / n, dtype=torch.float64)
        outlyingness = distances_to(updates, result) if self.discerning else torch.zeros(n, dtype=torch.float64)
        return Verdict(result, weights, relative(outlyingness))

    def __repr__(self) -> str:
        return f"<rule {self.name}>"


def rule(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    at_least: Callable[[int], int] = lambda f: 2 * f + 1,
    coordinatewise: bool = False,
    discerning: bool = True,
) -> Any:
    """Makes a function a rule.

    Args:
        name: As people will type it; the function's own name by default.
        at_least: The least number of updates for a given f.
        coordinatewise: It treats each coordinate alone, so a vector may be cut in shards.
        discerning: False when it treats all updates alike (the mean), and so can be evidence against nobody.
    """

    def decorate(function: Callable[..., Any]) -> Rule:
        made = Rule(function, name or function.__name__, at_least, discerning)
        made.whole_vector = not coordinatewise
        return made

    return decorate(function) if function is not None else decorate


def require(updates: Tensor, name: str, f: int, at_least: int) -> None:
    """Raises unless ``updates`` is ``(n, d)`` floating point with enough rows and ``f >= 0``."""
    if updates.ndim != 2 or not updates.is_floating_point():
        raise ConfigError(f"{name} takes an (n, d) floating point tensor, got {tuple(updates.shape)} {updates.dtype}")
    if f < 0:
        raise ConfigError(f"{name}: f counts Byzantine peers and cannot be {f}")
    if len(updates) < max(1, at_least):
        raise TooFewUpdates(name, f, max(1, at_least), len(updates))


def distances_to(updates: Tensor, center: Tensor) -> Tensor:
    """``(n,)`` float64: Euclidean distance of each row to ``center``."""
    return torch.linalg.vector_norm(updates - center, dim=1, dtype=torch.float64)


def relative(distances: Tensor) -> Tensor:
    """Distances in units of their median; all ones when the median is zero and nobody stands out."""
    typical = float(distances.quantile(0.5)) if len(distances) else 0.0
    if typical > 0:
        return torch.div(distances, typical)
    return torch.where(distances > 0, torch.full_like(distances, torch.finfo(torch.float32).max), torch.ones_like(distances))
