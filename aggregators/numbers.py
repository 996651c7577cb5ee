"""Checks of numeric options: their type and their range. This module does not import torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from gossip.errors import AggregationError, ConfigError
from gossip.specs import read_value

Range: TypeAlias = "tuple[str, Callable[[float], bool]]"
"""Description of a range, and the function that checks whether a number is in it."""
FINITE: Range = ("finite", math.isfinite)
POSITIVE: Range = ("above 0 and finite", lambda value: 0 < value < math.inf)
NOT_NEGATIVE: Range = ("at least 0 and finite", lambda value: 0 <= value < math.inf)
FRACTION: Range = ("above 0 and at most 1", lambda value: 0 < value <= 1)
DECAY: Range = ("at least 0 and below 1", lambda value: 0 <= value < 1)
RADIUS: Range = ("above 0", lambda value: value > 0)


def whole(name: str, what: str, value: Any, least: int | None = None) -> int:
    """Return the value as an int. Raises AggregationError if it is not an integer, or below
    ``least``. A float such as 2.0 is rejected, because it may be a rounded result."""
    try:
        found = operator.index(value)
    except TypeError:
        raise AggregationError(f"{name}: {what} must be a whole number, not {value!r}") from None
    if least is not None and found < least:
        raise AggregationError(f"{name}: {what} must be at least {least}, not {found}")
    return found


def number(name: str, what: str, value: Any, allowed: Range = FINITE) -> float:
    """Return the value as a float. Raises AggregationError if it is not a number, or out of range.
    A string is rejected even if it contains a number."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor with several elements
        raise AggregationError(f"{name}: {what} must be a number, not {value!r}") from None
    words, fine = allowed
    if not fine(found):
        raise AggregationError(
            f"{name}: {what} must be {words}, not {value!r}",
            f"set {what} to a value that is {words}",
        )
    return found


def read_number(owner: str, key: str, text: str, allowed: Range) -> float:
    """Read the value of an option. ``owner``: name of the sender or step that has the option, for
    the message.

    Raises: ConfigError: The text is not a number, or the number is out of range.
    """
    value: float = read_value(owner, key, text, float)
    if not allowed[1](value):
        raise ConfigError(f"{owner}: {key} must be {allowed[0]}, not {text}")
    return value
