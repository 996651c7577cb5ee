"""Schemas of tables that were received from other peers.

A schema is a function. It returns the value that it is called with, in which all lists are tuples.
It raises ValueError if the value does not match.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, TypeAlias

from gossip.core.messages import DIGEST_BYTES
from gossip.core.settings import PEERS_MAX

HEX = "0123456789abcdef"

Schema: TypeAlias = Callable[[Any], Any]


def unpacked(table: str, schema: Schema, packed: Any) -> Any:
    """Return a packed table in the form of its schema. Raises ValueError with the name of the table
    if the data is invalid."""
    try:
        return schema(packed)
    except ValueError as error:
        raise ValueError(f"{table}: {error}") from error


def row(*fields: Schema) -> Schema:
    """Return the schema of a list with these fields."""

    def checked(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple | list) or len(value) != len(fields):
            raise ValueError(f"expected {len(fields)} fields, not {value!r:.80}")
        return tuple([field(each) for field, each in zip(fields, value, strict=True)])

    return checked


def rows(item: Schema, most: int = PEERS_MAX) -> Schema:
    """Return the schema of a list with at most ``most`` items."""

    def checked(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple | list) or len(value) > most:
            raise ValueError(f"expected a list of at most {most} items, not {value!r:.80}")
        return tuple([item(each) for each in value])

    return checked


def count(most: float = inf) -> Schema:
    """Return the schema of an integer from 0 to ``most``."""

    def checked(value: Any) -> int:
        if type(value) is not int or not 0 <= value <= most:
            raise ValueError(f"expected an integer from 0 to {most}, not {value!r:.80}")
        return value

    return checked


COUNT = count()


def number(most: float = 1.0) -> Schema:
    """Return the schema of a number from 0 to ``most``."""

    def checked(value: Any) -> float:
        if not isinstance(value, int | float) or not 0.0 <= value <= most:
            raise ValueError(f"expected a number from 0 to {most}, not {value!r:.80}")
        return float(value)

    return checked


def one_of(*values: Any) -> Schema:
    """Return the schema of a value that is one of ``values``."""
    kinds = {type(each) for each in values}

    def checked(value: Any) -> Any:
        # The types must be equal, too, because 1 == True. The two would be packed differently.
        if type(value) not in kinds or value not in values:
            raise ValueError(f"expected one of {values}, not {value!r:.80}")
        return value

    return checked


def optional(schema: Schema) -> Schema:
    """Return the schema of a value that may also be None."""
    return lambda value: None if value is None else schema(value)


def digest(value: Any) -> bytes:
    """Return the digest from its hexadecimal text."""
    if not isinstance(value, str) or len(value) != 2 * DIGEST_BYTES or value.strip(HEX):
        raise ValueError(f"expected a hexadecimal digest, not {value!r:.80}")
    return bytes.fromhex(value)
