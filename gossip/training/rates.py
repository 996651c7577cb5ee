"""Settings of an optimizer's parameter groups: they are sent with each update, and for the step
they are set to what all peers step with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from torch import Tensor

from gossip.core import RATES_MAX
from gossip.errors import ConfigError

_FIRST = ("lr", "momentum", "betas")
"""Settings that the schedulers of torch change. They come first, where not all find room."""
_KEPT_BY_SCHEDULERS = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr")
_WAYS_TO_COMPUTE = ("foreach", "fused", "capturable", "differentiable")
_NOT_AGREED = {"params", "param_names", "train_mode", *_KEPT_BY_SCHEDULERS, *_WAYS_TO_COMPUTE}
"""Keys of a group that are not agreed. ``train_mode`` is the mode of the script
(schedule-free)."""
_NONE = -(2.0**1000)
_CODES = {_NONE: None, 2.0**1001: math.inf, -(2.0**1001): -math.inf, -(2.0**1002): math.nan}
"""Finite numbers in place of values that are none: a message carries finite numbers only."""
_PLAIN = {float, int, bool}


def rates_of(groups: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """Return the settings of all groups as numbers: those of ``_FIRST`` of all groups before the
    others, the others in the order of their names. Numbers, booleans, None, and tuples of them are
    settings. Of more than a message holds, the first."""
    found: list[float] = []
    for at in (0, 1):
        for group in groups:
            for name in _names(tuple(group))[at]:
                value = group[name]
                if type(value) in _PLAIN and math.isfinite(value):  # each step reads all twice
                    found.append(float(value))
                else:
                    found += _numbers(value)
    return tuple(found[:RATES_MAX])


def _places(groups: Sequence[Any], parts: Sequence[int] = (0, 1)) -> list[tuple[Any, str]]:
    """Return the group and the name of each setting, in the order of ``rates_of``; of ``parts`` of
    the names."""
    return [(group, name) for at in parts for group in groups for name in _names(tuple(group))[at]]


@lru_cache(64)
def _names(keys: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of ``_FIRST`` among the keys of a group, and those of its other settings."""
    first = tuple([name for name in _FIRST if name in keys])
    return first, tuple(sorted(set(keys).difference(_NOT_AGREED, first)))


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
    """Set the groups to ``rates``, of which there may be fewer, and afterwards back: a scheduler
    goes on from its own. A setting that the step itself changes, such as a counter, keeps what the
    step has made of it."""
    own = rates_of(groups)
    if len(rates) != len(own):  # of other settings: those that come first are the same
        rates = rates[: sum(len(_numbers(g[name])) for g, name in _places(groups, [0]))]
    if not rates or rates == own[: len(rates)]:
        yield
        return
    before = _set(groups, rates)
    try:
        yield
    finally:
        for group, name, own, agreed in before:
            if _numbers(group[name]) != agreed:
                continue
            if isinstance(group[name], Tensor):
                group[name].fill_(own)
            else:
                group[name] = own


def _set(
    groups: Sequence[dict[str, Any]], rates: tuple[float, ...]
) -> list[tuple[dict[str, Any], str, Any, list[float]]]:
    """Set what differs. Returns of each the group, the name, the value before, and the numbers that
    it was set to."""
    left, replaced = iter(rates), []
    for group, name in _places(groups):
        had = group[name]
        own = _numbers(had)
        wanted = [
            number if (new := next(left, None)) is None or _is_wrong(new, number) else new
            for number in own
        ]
        if wanted == own:
            continue
        if isinstance(had, Tensor):
            replaced.append((group, name, had.item(), wanted))
            had.fill_(_value_of(0.0, wanted))
        else:
            replaced.append((group, name, had, wanted))
            group[name] = _value_of(had, wanted)
    return replaced


def _is_wrong(new: float, own: float) -> bool:
    """Whether no honest peer sends it: with a negative learning rate a step would ascend."""
    return new < 0.0 <= own and new not in _CODES


def _value_of(had: Any, numbers: list[float]) -> Any:
    """Return ``numbers`` in the form of the setting that a group ``had``."""
    if isinstance(had, tuple | list):
        left = list(numbers)
        items = []
        for item in had:
            count = len(_numbers(item))
            items.append(_value_of(item, left[:count]) if count else item)
            del left[:count]
        return type(had)(*items) if hasattr(had, "_fields") else type(had)(items)
    (number,) = numbers
    if number in _CODES:
        return _CODES[number]
    if isinstance(had, bool):
        return bool(number)
    return int(number) if isinstance(had, int) and number.is_integer() else number


def _numbers(value: Any) -> list[float]:
    if isinstance(value, tuple | list):
        return [number for item in value for number in _numbers(item)]
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 else ""
    if value is None:
        return [_NONE]
    if not isinstance(value, int | float):
        return []
    if math.isfinite(value):
        return [float(value)]
    return [code for code, stands_for in _CODES.items() if repr(stands_for) == repr(value)]
