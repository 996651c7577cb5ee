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
BEHIND = trimmed_mean  # rule that follows a tested pre-aggregation; it is robust and uses all rows


@dataclass(frozen=True, slots=True)
class SyntheticUpdates:
    """Test case: honest updates around one gradient, and the other arguments of a rule."""

    updates: Tensor  # (n, d)
    f: int
    gradient: Tensor  # (d,), mean of the distribution of the honest updates
    round_id: int = 0
    previous: Tensor | None = None  # (d,), aggregate of the previous round

    def evaluate(self, step: Tensor) -> float:
        """Return a quadratic loss at x - ``step``. Its gradient at x is ``gradient``, and its
        curvature is 1."""
        step = step.to(torch.float64)
        gradient = self.gradient.to(torch.float64)
        return float(1000.0 - gradient @ step + 0.5 * (step @ step))

    def judge(self, rule: BoundRule, updates: Any = None, center: Tensor | None = None) -> Verdict:
        """Return the verdict of a rule. A rule that needs a center receives ``center``, or
        ``gradient`` if that is None."""
        updates = self.updates if updates is None else updates
        return rule.explain(updates, **self._beside(rule, updates, center))

    def call(self, rule: BoundRule, updates: Tensor) -> Tensor:
        """Return the aggregate that a plain call of the rule returns."""
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
    """Return the rule that a node would run for ``candidate``. After a pre-aggregation, the rule is
    ``BEHIND``."""
    if isinstance(candidate, str):
        try:
            return load(candidate)
        except ConfigError as error:
            try:
                # works only if the spec ends with a pre-aggregation
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
    """Whether an option of the rule has a fixed value in units of the updates."""
    return any(bound.options.get(key) is not None for key in bound.rule.absolute)


def needs_help(bound: BoundRule) -> bool:
    """Whether a rule needs trusted data in addition to the updates. It may then resist a Byzantine
    majority."""
    return bound.needs_trainer or bound.needs_center


def crowd(n: int, d: int, f: int, generator: torch.Generator) -> SyntheticUpdates:
    gradient = torch.randn(d, generator=generator)
    noise = 0.5 * torch.randn(n, d, generator=generator)
    return SyntheticUpdates(gradient + noise, f, gradient)


def attackers(case: SyntheticUpdates, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Yield attacks: the name, and the Byzantine updates ``(f, d)``."""
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
    # If one attacker is far away and the other attackers are at the resulting mean, they break
    # rules that start from the mean.
    far = 1e6 * direction[:1]
    mean = (honest[f:].sum(dim=0, keepdim=True) + far) / (len(honest) - f + 1)
    yield "sacrificial anchor", torch.cat([far, mean.repeat(f - 1, 1)])


def shuffled(lies: Tensor, honest: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return all rows in a random order, so that a rule cannot recognize attackers by position.
    Return also the position of each row, attackers first."""
    order = torch.randperm(len(lies) + len(honest), generator=generator)
    return torch.cat([lies, honest])[order], order.argsort()


def near(left: Tensor, right: Tensor, tolerance: float = 1e-4) -> bool:
    """Whether no coordinate differs by more than ``tolerance`` times the largest absolute value in
    ``right``."""
    scale = max(float(right.abs().max()), 1e-30)
    return bool(
        ((left.to(torch.float64) - right.to(torch.float64)).abs() <= tolerance * scale).all()
    )


def apart(left: Tensor, right: Tensor) -> str:
    return f"{float((left.to(torch.float64) - right.to(torch.float64)).abs().max()):.3g}"
