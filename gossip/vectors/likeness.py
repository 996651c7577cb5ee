"""Comparison of a server's result with the local update: the arithmetic behind
``gossip.core.rounds.validation``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite, sqrt
from typing import TypeAlias

import numpy as np

from gossip.core import Admission, Message, Payload, PeerId, Received, ResultSimilarity

BLOCK_NUMBERS = 2**16
"""Numbers of each vector to process at once: they are in the cache when they are used again."""

Admit: TypeAlias = Callable[[PeerId, Message], Admission]
"""``Peer.admit``."""


def similarity_of(result: Payload, others: tuple[Payload, ...]) -> ResultSimilarity:
    """Return the similarity of float32 vectors. ``others`` is the local update, or empty: first the
    part that is as long as the result, then the other parts."""
    vector, own = result.data, others[0].data if others else None
    squares = own_squares = product = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # a length that is too large is infinite
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
    """Return the length of a part of ``elements`` numbers if the numbers in all parts had the same
    size. ``squares``: of that part. 0.0 where there is no other, or one is not finite."""
    if not rest:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        total = squares + sum([float(np.dot(part.data, part.data)) for part in rest])
    everywhere = elements + sum([len(part.data) for part in rest])
    return sqrt(total * elements / everywhere) if isfinite(total) else 0.0


def compared(arrival: Received, admit: Admit) -> Received:
    """Return the arrival with the similarity of its payload, if the core compares it."""
    payload = arrival.payload
    others = admit(arrival.sender, arrival.message).compare_with if payload is not None else None
    return (
        arrival
        if payload is None or others is None
        else replace(arrival, similarity=similarity_of(payload, others))
    )
