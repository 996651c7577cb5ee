"""What schedulers change of an optimizer: told with each update, and for the step set to what the
swarm steps with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from gossip.core import RATES_MAX
from gossip.errors import ConfigError

_NAMES = ("lr", "momentum", "betas")
"""All that the schedulers of torch touch: OneCycleLR and CyclicLR turn the momentum
(or its like), too."""


def rates_of(groups: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """The numbers of all groups, one after the other;
    of so many that no message holds them the first."""
    return tuple(
        [number for group in groups for name in _NAMES for number in _numbers(group.get(name))]
    )[:RATES_MAX]


def learning_rate_of(groups: Sequence[Mapping[str, Any]]) -> float:
    """Return that of the first group; 0.0 where the optimizer chooses it (``lr=None``)."""
    rate = float(groups[0].get("lr") or 0.0)
    if not math.isfinite(rate):
        raise ConfigError(
            f"the learning rate is {rate}", "look at the scheduler: it must stay a number"
        )
    return rate


@contextmanager
def stepping_with(groups: Sequence[dict[str, Any]], rates: tuple[float, ...]) -> Iterator[None]:
    """Sets the groups to ``rates``, of which there may be fewer, and afterwards back: a scheduler
    goes on from its own."""
    own = rates_of(groups)
    if not rates or rates == own[: len(rates)]:
        yield
        return
    _set(groups, rates)
    try:
        yield
    finally:
        _set(groups, own)


def _set(groups: Sequence[dict[str, Any]], rates: tuple[float, ...]) -> None:
    left = iter(rates)
    for group in groups:
        for name in _NAMES:
            had = group.get(name)
            values = [
                number if (new := next(left, None)) is None else new for number in _numbers(had)
            ]
            if isinstance(had, Tensor):
                had.fill_(values[0])
            elif values:
                group[name] = tuple(values) if isinstance(had, tuple | list) else values[0]


def _numbers(value: Any) -> list[float]:
    if isinstance(value, Tensor):
        return [float(value)] if value.numel() == 1 else []
    if isinstance(value, tuple | list):
        return [float(number) for number in value if isinstance(number, int | float)]
    return [float(value)] if isinstance(value, int | float) else []
