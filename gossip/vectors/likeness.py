"""Computes the similarity of a server's result to the local update.
``gossip.core.rounds.validation`` uses the similarity to validate the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite, sqrt
from typing import TypeAlias

import numpy as np

from gossip.core import Admission, Message, Payload, PeerId, Received, ResultSimilarity

BLOCK_NUMBERS = 2**16
"""Number of elements of each vector to process at a time. They stay in the CPU cache until they are
used again."""

Admit: TypeAlias = Callable[[PeerId, Message], Admission]
"""``Peer.admit``."""


def similarity_of(result: Payload, others: tuple[Payload, ...]) -> ResultSimilarity:
    """Return the similarity of a result to the local update, both float32. ``others`` has the
    shards of the local update, and begins with the shard of the result. It is empty if there is no
    local update."""
    vector, own = result.data, others[0].data if others else None
    squares = own_squares = product = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # if a length overflows, it is infinite
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
    """Return the Euclidean norm that a shard of ``elements`` elements would have if all elements of
    the update had the same magnitude. ``squares``: squared norm of this shard; ``rest``: other
    shards. Return 0.0 if there is no other shard, or if an element is not finite."""
    if not rest:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        total = squares + sum([float(np.dot(part.data, part.data)) for part in rest])
    everywhere = elements + sum([len(part.data) for part in rest])
    return sqrt(total * elements / everywhere) if isfinite(total) else 0.0


def compared(arrival: Received, admit: Admit) -> Received:
    """Return the arrival. If the core needs the similarity of its payload, add the similarity."""
    payload = arrival.payload
    others = admit(arrival.sender, arrival.message).compare_with if payload is not None else None
    return (
        arrival
        if payload is None or others is None
        else replace(arrival, similarity=similarity_of(payload, others))
    )
