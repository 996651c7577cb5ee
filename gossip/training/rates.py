"""Settings of an optimizer's parameter groups. They are sent with each update, and set to the
agreed values for the step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from gossip.core import RATES_MAX
from gossip.errors import ConfigError

_FIRST = ("lr", "momentum", "betas")
"""Settings that torch's schedulers change. They come first, because the size of a message is
limited."""
_KEPT_BY_SCHEDULERS = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr")
_WAYS_TO_COMPUTE = ("foreach", "fused", "capturable", "differentiable")
_NOT_AGREED = {"params", "param_names", "train_mode", *_KEPT_BY_SCHEDULERS, *_WAYS_TO_COMPUTE}
"""Keys of a group on which peers do not agree. ``train_mode`` is the script's mode of a
schedule-free optimizer."""


def rates_of(groups: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """Return the settings of all groups as numbers: those in ``_FIRST`` of all groups, then the
    others by name. Finite numbers, booleans, and tuples of them are settings. The result is cut to
    the size of a message."""
    found = [number for group, name in _places(groups) for number in _numbers(group[name])]
    return tuple(found[:RATES_MAX])


def _places(groups: Sequence[Any], parts: Sequence[int] = (0, 1)) -> list[tuple[Any, str]]:
    """Return the group and the name of each setting, in the order of ``rates_of``. ``parts``: 0 for
    the names in ``_FIRST``, 1 for the others."""
    return [(group, name) for at in parts for group in groups for name in _names(tuple(group))[at]]


@lru_cache(64)
def _names(keys: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names in ``_FIRST`` among the keys of a group, and the names of its other
    settings."""
    first = tuple([name for name in _FIRST if name in keys])
    return first, tuple(sorted(set(keys).difference(_NOT_AGREED, first)))


def learning_rate_of(groups: Sequence[Mapping[str, Any]]) -> float:
    """Return the learning rate of the first group; 0.0 if the optimizer chooses it
    (``lr=None``)."""
    rate = float(groups[0].get("lr") or 0.0)
    if not math.isfinite(rate):
        raise ConfigError(
            f"the learning rate is {rate}", "check the scheduler: the rate must stay a number"
        )
    return rate


@contextmanager
def stepping_with(groups: Sequence[dict[str, Any]], rates: tuple[float, ...]) -> Iterator[None]:
    """Set the groups to ``rates``, which may be fewer, in this context. Restore them afterwards,
    because a scheduler continues from its own values. A setting that the step itself changes, such
    as a counter, keeps its new value."""
    own = rates_of(groups)
    if len(rates) != len(own):  # if the sender has other settings, only those in ``_FIRST`` match
        rates = rates[: sum(len(_numbers(g[name])) for g, name in _places(groups, [0]))]
    if not rates or rates == own[: len(rates)]:
        yield
        return
    before = _set(groups, rates)
    try:
        yield
    finally:
        for group, name, own, agreed in before:
            if _numbers(group[name]) == agreed:
                _put(group, name, own)


def _set(
    groups: Sequence[dict[str, Any]], rates: tuple[float, ...]
) -> list[tuple[dict[str, Any], str, Any, list[float]]]:
    """Set the settings that differ. Return for each the group, the name, the previous value, and
    the new numbers."""
    left, replaced = iter(rates), []
    for group, name in _places(groups):
        had, own = group[name], _numbers(group[name])
        agreed = [_choose(number, next(left, number)) for number in own]
        if agreed != own:
            before = had.item() if isinstance(had, Tensor) else had
            replaced.append((group, name, before, agreed))
            _put(group, name, _in_form_of(before, agreed))
    return replaced


def _put(group: dict[str, Any], name: str, value: Any) -> None:
    """Set a setting. A tensor is set in place, because a compiled optimizer reads the same
    tensor."""
    if isinstance(group[name], Tensor):
        group[name].fill_(value)
    else:
        group[name] = value


def _choose(own: float, agreed: float) -> float:
    """Return the agreed number, or the own one if the agreed one is negative: a step with a
    negative learning rate would ascend."""
    return own if agreed < 0.0 <= own else agreed


def _numbers(value: Any) -> list[float]:
    """Return the finite numbers in a setting."""
    leaves = tree_leaves(value) if isinstance(value, tuple | list) else (value,)
    return [float(leaf) for leaf in leaves if _is_number(leaf)]


def _is_number(leaf: Any) -> bool:
    if isinstance(leaf, Tensor) and leaf.numel() != 1:
        return False
    return isinstance(leaf, int | float | Tensor) and math.isfinite(leaf)


def _in_form_of(value: Any, numbers: Sequence[float]) -> Any:
    """Return ``value`` with its numbers replaced by ``numbers``."""
    leaves, form = tree_flatten(value)
    left = iter(numbers)
    return tree_unflatten(
        [_as_type_of(leaf, next(left)) if _is_number(leaf) else leaf for leaf in leaves], form
    )


def _as_type_of(own: Any, number: float) -> float:
    if isinstance(own, bool):
        return bool(number)
    return int(number) if isinstance(own, int) and number.is_integer() else number
