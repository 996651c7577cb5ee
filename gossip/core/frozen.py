"""Decorator for small records that are made thousands of times a second: events, effects,
messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Return a slotted dataclass that type checkers treat as ``frozen=True``.

    The run-time checks of ``frozen`` make an object four times as expensive, which is a tenth of
    the time of a core.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
