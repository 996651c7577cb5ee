"""How a server's result compares with the own update: the arithmetic behind ``gossip.core.doubts``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import TypeAlias

import numpy as np

from gossip.core.events import Admission, Likeness, Payload, Received
from gossip.core.messages import Commit, Message, PeerId

from .node_worker import Worker

INLINE_ELEMENTS = 2**18
"""Results of at most so many numbers are compared at once in the loop: 0.2 ms."""


Admit: TypeAlias = Callable[[PeerId, Message], Admission]
"""``Peer.admit``."""


def likeness_of(result: Payload, others: tuple[Payload, ...]) -> Likeness:
    """Of float32 vectors of the same length. ``others`` is the own update, or nothing."""
    vector = result.data
    with np.errstate(over="ignore", invalid="ignore"):  # what is too long is infinitely long
        length = sqrt(np.dot(vector, vector))
        if not others:
            return Likeness(length)
        own = others[0].data
        return Likeness(length, sqrt(np.dot(own, own)), float(np.dot(own, vector)))


def compared(arrival: Received, admit: Admit) -> Received:
    """The arrival with all that the core wants to know."""
    payload = arrival.payload
    others = admit(arrival.sender, arrival.message).compare_with if payload is not None else None
    return arrival if payload is None or others is None else replace(arrival, likeness=likeness_of(payload, others))


class Comparison:
    """Compares results as they come, small ones at once and large ones in the worker, before the core hears of them."""

    def __init__(self, worker: Worker, done: Callable[[Received], None]) -> None:
        self._worker, self._done = worker, done

    def of(self, arrival: Received, admit: Admit) -> Received | None:
        """The arrival with all that the core wants to know; None when ``done`` is told that later."""
        payload = arrival.payload
        if payload is None or type(arrival.message) is not Commit or len(payload.data) <= INLINE_ELEMENTS:
            return compared(arrival, admit)
        others = admit(arrival.sender, arrival.message).compare_with
        if others is None:
            return arrival
        self._worker.submit(
            lambda: likeness_of(payload, others), lambda likeness: self._done(replace(arrival, likeness=likeness))
        )
        return None
