"""Settings of an optimizer's parameter groups, such as learning rates. Each update contains its
peer's settings. For the step, all peers use the values on which they have agreed."""

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
"""Settings that torch's schedulers change. They come first in a message, because its size is
limited."""
_KEPT_BY_SCHEDULERS = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr")
_WAYS_TO_COMPUTE = ("foreach", "fused", "capturable", "differentiable")
_NOT_AGREED = {"params", "param_names", "train_mode", *_KEPT_BY_SCHEDULERS, *_WAYS_TO_COMPUTE}
"""Keys of a parameter group with values that may differ between peers. ``train_mode`` is the mode
of a schedule-free optimizer, which the script sets."""
_PLAIN = {float, int, bool}


def rates_of(groups: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """Return the settings of all groups as a list of numbers. The settings in ``_FIRST`` come
    first, then all others, sorted by name. A setting is a finite number, a boolean, or a tuple of
    them. The list is cut to the maximum size of a message."""
    found = [number for group, name in _places(groups) for number in _numbers(group[name])]
    return tuple(found[:RATES_MAX])


def _places(groups: Sequence[Any], parts: Sequence[int] = (0, 1)) -> list[tuple[Any, str]]:
    """Return the group and the name of each setting, in the order of ``rates_of``. ``parts``: 0 for
    the names in ``_FIRST``, 1 for the others."""
    return [(group, name) for at in parts for group in groups for name in _names(tuple(group))[at]]


@lru_cache(64)
def _names(keys: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the keys of a group into the names that are in ``_FIRST``, and the names of its other
    settings."""
    first = tuple([name for name in _FIRST if name in keys])
    return first, tuple(sorted(set(keys).difference(_NOT_AGREED, first)))


def learning_rate_of(groups: Sequence[Mapping[str, Any]]) -> float:
    """Return the learning rate of the first group; 0.0 if the optimizer computes it itself
    (``lr=None``)."""
    rate = float(groups[0].get("lr") or 0.0)
    if not math.isfinite(rate):
        raise ConfigError(
            f"the learning rate is {rate}", "check the scheduler: the rate must stay a number"
        )
    return rate


@contextmanager
def stepping_with(groups: Sequence[dict[str, Any]], rates: tuple[float, ...]) -> Iterator[None]:
    """Set the settings of the groups to ``rates`` in the ``with`` block. ``rates`` may have values
    for only some settings. Afterwards the settings are restored, because a scheduler continues from
    its own values. A setting that the step itself changes, such as a counter, keeps its new
    value."""
    own = rates_of(groups)
    if len(rates) != len(own):  # if the sender has other settings, use only those in _FIRST
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
    """Set the settings that differ from ``rates``. Return the group, the name, the previous value
    and the new numbers of each changed setting."""
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
    """Return the number on which peers have agreed. If only that number is negative, return this
    peer's own number, because a step with a negative learning rate would ascend."""
    return own if agreed < 0.0 <= own else agreed


def _numbers(value: Any) -> list[float]:
    """Return the finite numbers in a setting."""
    if type(value) in _PLAIN and math.isfinite(value):  # each step reads all settings twice
        return [float(value)]
    leaves = tree_leaves(value) if isinstance(value, tuple | list) else (value,)
    return [float(leaf) for leaf in leaves if _is_number(leaf)]


def _is_number(leaf: Any) -> bool:
    if isinstance(leaf, Tensor) and leaf.numel() != 1:
        return False
    return isinstance(leaf, int | float | Tensor) and math.isfinite(leaf)


def _in_form_of(value: Any, numbers: Sequence[float]) -> Any:
    """Return a copy of ``value`` with its numbers replaced by ``numbers``, in order."""
    leaves, form = tree_flatten(value)
    left = iter(numbers)
    return tree_unflatten(
        [_as_type_of(leaf, next(left)) if _is_number(leaf) else leaf for leaf in leaves], form
    )


def _as_type_of(own: Any, number: float) -> float:
    if isinstance(own, bool):
        return bool(number)
    return int(number) if isinstance(own, int) and number.is_integer() else number
