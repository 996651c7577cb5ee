"""How a server's result compares with the own update: the arithmetic behind
``gossip.core.rounds.validation``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import TypeAlias

import numpy as np

from gossip.core import Admission, Message, Payload, PeerId, Received, ResultSimilarity

BLOCK_NUMBERS = 2**16
"""Of each vector at once: they are in the cache when they are looked at the second time."""

Admit: TypeAlias = Callable[[PeerId, Message], Admission]
"""``Peer.admit``."""


def similarity_of(result: Payload, others: tuple[Payload, ...]) -> ResultSimilarity:
    """Of float32 vectors of the same length. ``others`` is the own update, or nothing."""
    vector, own = result.data, others[0].data if others else None
    squares = own_squares = product = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # what is too long is infinitely long
        for start in range(0, len(vector), BLOCK_NUMBERS):
            block = vector[start : start + BLOCK_NUMBERS]
            squares += float(np.dot(block, block))
            if own is not None:
                same = own[start : start + BLOCK_NUMBERS]
                own_squares += float(np.dot(same, same))
                product += float(np.dot(same, block))
    if own is None:
        return ResultSimilarity(sqrt(squares))
    return ResultSimilarity(sqrt(squares), sqrt(own_squares), product)


def compared(arrival: Received, admit: Admit) -> Received:
    """The arrival with all that the core wants to know."""
    payload = arrival.payload
    others = admit(arrival.sender, arrival.message).compare_with if payload is not None else None
    return (
        arrival
        if payload is None or others is None
        else replace(arrival, similarity=similarity_of(payload, others))
    )
