"""Parsing of numbers in the text of a sender or an outer step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from gossip.errors import ConfigError

Range: TypeAlias = "tuple[str, Callable[[float], bool]]"
"""Description of a range, and whether a number is in it."""


def read_number(owner: str, key: str, text: str, allowed: Range) -> float:
    """Return the value of an option. ``owner``: name of its sender or step, for the message.

    Raises: ConfigError: It cannot be read or is out of range.
    """
    words, fine = allowed
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{owner}: {key}={text!r} is not a number") from None
    if not fine(value):
        raise ConfigError(f"{owner}: {key}={text} must be {words}")
    return value
