"""Checks of tables that were received from other peers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gossip.core.messages import DIGEST_BYTES
from gossip.core.settings import PEERS_MAX

HEX = frozenset("0123456789abcdef")


def is_row(value: Any, *lengths: int) -> bool:
    """Whether a value is a list with one of these lengths. Without lengths, any length is valid."""
    return isinstance(value, tuple | list) and (not lengths or len(value) in lengths)


def are_rows(value: Any, *lengths: int, most: int = PEERS_MAX) -> bool:
    """Whether a value is a list of at most ``most`` rows, each with one of these lengths."""
    return is_row(value) and len(value) <= most and all(is_row(row, *lengths) for row in value)


def are_counts(values: Iterable[Any], most: float = float("inf")) -> bool:
    """Whether all values are integers from 0 to ``most``."""
    return all(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
        for value in values
    )


def is_score(value: Any) -> bool:
    """Whether a value is a number from 0 to 1."""
    return isinstance(value, int | float) and 0.0 <= value <= 1.0


def are_digests(values: Iterable[Any]) -> bool:
    """Whether all values are hexadecimal digests."""
    return all(
        isinstance(value, str) and len(value) == 2 * DIGEST_BYTES and HEX.issuperset(value)
        for value in values
    )
