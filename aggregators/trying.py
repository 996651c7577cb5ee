"""Whether a rule can do what a run will ask of it, found out before the run: by asking it once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from gossip.errors import ConfigError, TooFewUpdates

from .base import Rule, Verdict

log = logging.getLogger(__name__)
COORDINATES = 8


class Tried(Protocol):
    """A ``BoundRule``, of which this is what a trial needs."""

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> str: ...
    @property
    def rule(self) -> Rule: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def needs_center(self) -> bool: ...
    def at_least(self, f: int, *, centered: bool = False) -> int: ...
    def explain(self, updates: Tensor, **available: Any) -> Verdict: ...


def check(rule: Tried, f: int, n: int, centered: bool) -> None:
    """Check a rule as ``BoundRule.check`` does.

    An exception that is no ConfigError is only logged: a rule of another author may need vectors
    of a certain length, which is not known yet.
    """
    fixed = rule.options.get("f", rule.rule.fixed_f)
    if fixed is not None and fixed < f:
        raise ConfigError(
            f"{rule.spec or rule.name} tolerates f={fixed} Byzantine peers, and f={f} may be there",
            f"leave out f={fixed}",
        )
    need = rule.at_least(f, centered=centered)
    if n < need:
        raise TooFewUpdates(rule.name, f, need, n)
    updates = 1.0 + torch.randn(n, COORDINATES, generator=torch.Generator().manual_seed(0))
    middle = updates.mean(dim=0)

    def loss(step: Tensor) -> float:
        return float((step - middle).square().sum())

    center = updates[0].clone() if centered or rule.needs_center else None
    try:
        rule.explain(
            updates,
            f=f,
            center=center,
            evaluate=loss,
            gradient=middle,
            learning_rate=0.1,
            round_id=0,
        )
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001
        log.info(
            "rule cannot be tried: rule=%s reason=%s: %s", rule.name, type(error).__name__, error
        )
