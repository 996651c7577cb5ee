"""How a server's result compares with the own update: the arithmetic behind
``gossip.core.rounds.validation``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import TypeAlias

import numpy as np

from gossip.core import Admission, Message, Payload, PeerId, Received, ResultSimilarity

Admit: TypeAlias = Callable[[PeerId, Message], Admission]
"""``Peer.admit``."""


def similarity_of(result: Payload, others: tuple[Payload, ...]) -> ResultSimilarity:
    """Of float32 vectors of the same length. ``others`` is the own update, or nothing."""
    vector = result.data
    with np.errstate(over="ignore", invalid="ignore"):  # what is too long is infinitely long
        length = sqrt(np.dot(vector, vector))
        if not others:
            return ResultSimilarity(length)
        own = others[0].data
        return ResultSimilarity(length, sqrt(np.dot(own, own)), float(np.dot(own, vector)))


def compared(arrival: Received, admit: Admit) -> Received:
    """The arrival with all that the core wants to know."""
    payload = arrival.payload
    others = admit(arrival.sender, arrival.message).compare_with if payload is not None else None
    return (
        arrival
        if payload is None or others is None
        else replace(arrival, similarity=similarity_of(payload, others))
    )
