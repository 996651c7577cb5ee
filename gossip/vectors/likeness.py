"""Comparison of a server's result with the local update, which ``gossip.core.rounds.validation``
uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite, sqrt
from typing import TypeAlias

import numpy as np

from gossip.core import Admission, Message, Payload, PeerId, Received, ResultSimilarity

BLOCK_NUMBERS = 2**16
"""Number of values of each vector to process at a time. They are still in the cache when they are
used again."""

Admit: TypeAlias = Callable[[PeerId, Message], Admission]
"""``Peer.admit``."""


def similarity_of(result: Payload, others: tuple[Payload, ...]) -> ResultSimilarity:
    """Return the similarity of float32 vectors. ``others`` is the local update, or empty. It begins
    with the shard that is as long as the result, followed by the other shards."""
    vector, own = result.data, others[0].data if others else None
    squares = own_squares = product = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # a length that overflows is infinite
        for start in range(0, len(vector), BLOCK_NUMBERS):
            block = vector[start : start + BLOCK_NUMBERS]
            squares += float(np.dot(block, block))
            if own is not None:
                same = own[start : start + BLOCK_NUMBERS]
                own_squares += float(np.dot(same, same))
                product += float(np.dot(same, block))
    if own is None:
        return ResultSimilarity(sqrt(squares))
    even = _even(len(vector), own_squares, others[1:]) if product < 0.0 else 0.0
    return ResultSimilarity(sqrt(squares), sqrt(own_squares), product, even)


def _even(elements: int, squares: float, rest: tuple[Payload, ...]) -> float:
    """Return the length that a shard of ``elements`` numbers would have if the numbers of all
    shards had the same size. ``squares``: squared length of this shard. Return 0.0 if there is no
    other shard, or if a number is not finite."""
    if not rest:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        total = squares + sum([float(np.dot(part.data, part.data)) for part in rest])
    everywhere = elements + sum([len(part.data) for part in rest])
    return sqrt(total * elements / everywhere) if isfinite(total) else 0.0


def compared(arrival: Received, admit: Admit) -> Received:
    """Return the arrival with the similarity of its payload, if the core requests the
    comparison."""
    payload = arrival.payload
    others = admit(arrival.sender, arrival.message).compare_with if payload is not None else None
    return (
        arrival
        if payload is None or others is None
        else replace(arrival, similarity=similarity_of(payload, others))
    )
