"""Test cases for rules: honest and Byzantine updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossip.aggregators import (
    BoundRule,
    PreAggregation,
    Rule,
    Verdict,
    compose,
    load,
    rule,
    trimmed_mean,
)
from gossip.errors import ConfigError

LEARNING_RATE = 0.1
BEHIND = trimmed_mean  # rule after a pre-aggregation: it is robust and uses all rows


@dataclass(frozen=True, slots=True)
class SyntheticUpdates:
    """Test case: honest updates around one direction, and the other arguments of a rule."""

    updates: Tensor  # (n, d)
    f: int
    gradient: Tensor  # (d,), the direction
    round_id: int = 0
    previous: Tensor | None = None  # (d,), aggregate of the previous round

    def evaluate(self, step: Tensor) -> float:
        """Return a loss at x - step, with the gradient ``gradient`` at x and the curvature 1."""
        step = step.to(torch.float64)
        gradient = self.gradient.to(torch.float64)
        return float(1000.0 - gradient @ step + 0.5 * (step @ step))

    def judge(self, rule: BoundRule, updates: Any = None, center: Tensor | None = None) -> Verdict:
        """Return the verdict of a rule. A rule that needs a center gets ``center``, or the honest
        direction."""
        updates = self.updates if updates is None else updates
        return rule.explain(updates, **self._beside(rule, updates, center))

    def call(self, rule: BoundRule, updates: Tensor) -> Tensor:
        """Return the aggregate of a rule that is called without a verdict."""
        return rule(updates, **self._beside(rule, updates, None))

    def _beside(self, rule: BoundRule, updates: Any, center: Tensor | None) -> dict[str, Any]:
        if center is None and rule.needs_center:
            center = self.gradient
        like = updates if isinstance(updates, Tensor) else updates[0]
        return {
            "f": self.f,
            "center": None if center is None else center.to(like),
            "learning_rate": LEARNING_RATE,
            "evaluate": self.evaluate,
            "gradient": self.gradient.to(like),
            "round_id": self.round_id,
            "previous": None if self.previous is None else self.previous.to(like),
        }


def bound_rule(
    candidate: Rule | BoundRule | PreAggregation | Callable[..., Any] | str,
) -> BoundRule:
    """Return the rule that a node would run for an argument of ``check_aggregator``. A
    pre-aggregation is completed by a rule."""
    if isinstance(candidate, str):
        try:
            return load(candidate)
        except ConfigError as error:
            try:
                # works only if the last stage is not a rule
                return load(f"{candidate}+{BEHIND.name}")
            except ConfigError:
                raise error from None
    if isinstance(candidate, BoundRule):
        return candidate
    if isinstance(candidate, PreAggregation):
        candidate = compose(candidate, BEHIND)
    made = candidate if isinstance(candidate, Rule) else rule(candidate)
    return BoundRule(made.name, made)


def in_units(bound: BoundRule) -> bool:
    """Whether an option is fixed in units of the updates."""
    return any(bound.options.get(key) is not None for key in bound.rule.absolute)


def needs_help(bound: BoundRule) -> bool:
    """Whether a rule needs trusted data in addition to the updates, so that it may resist a
    Byzantine majority."""
    return bound.needs_trainer or bound.needs_center


def crowd(
    n: int, d: int, f: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> SyntheticUpdates:
    gradient = torch.randn(d, generator=generator)
    noise = 0.5 * torch.randn(n, d, generator=generator)
    return SyntheticUpdates((gradient + noise).to(dtype), f, gradient)


def attackers(case: SyntheticUpdates, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Yield names and rows ``(f, d)`` of f Byzantine updates."""
    honest, f = case.updates, case.f
    if f == 0:
        return
    direction = torch.randn(f, honest.shape[1], generator=generator)
    yield "sign_flip*10", -10 * honest[:f]
    yield "scale*1000", 1000 * honest[:f]
    yield "gaussian*200", 200 * direction
    for size in (1e3, 1e12, 1e30):
        yield f"apart at {size:g}", size * direction
        yield f"together at {size:g}", size * direction[:1].repeat(f, 1)
    # One attacker far away and the others at the resulting mean break rules that start from the
    # mean.
    far = 1e6 * direction[:1]
    mean = (honest[f:].sum(dim=0, keepdim=True) + far) / (len(honest) - f + 1)
    yield "sacrificial anchor", torch.cat([far, mean.repeat(f - 1, 1)])


def shuffled(lies: Tensor, honest: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return all rows in a random order, and the position of each, so that a rule cannot recognize
    attackers by position."""
    order = torch.randperm(len(lies) + len(honest), generator=generator)
    return torch.cat([lies, honest])[order], order.argsort()


def near(left: Tensor, right: Tensor, tolerance: float = 1e-4) -> bool:
    """Whether no coordinate differs by more than ``tolerance`` times the largest one of
    ``right``."""
    scale = max(float(right.abs().max()), 1e-30)
    return bool(
        ((left.to(torch.float64) - right.to(torch.float64)).abs() <= tolerance * scale).all()
    )


def apart(left: Tensor, right: Tensor) -> str:
    return f"{float((left.to(torch.float64) - right.to(torch.float64)).abs().max()):.3g}"
