"""How a server's result compares with the own update: the arithmetic behind
``gossip.core.rounds.validation``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gossip.core import Commit, Received
from gossip.vectors import Admit, compared, similarity_of

from .worker import Worker

INLINE_ELEMENTS = 2**20
"""Results of at most so many numbers are compared at once in the loop: half a millisecond."""


class ResultComparator:
    """Compares results as they come, small ones at once and large ones in the worker, before the
    core hears of them."""

    def __init__(self, worker: Worker, done: Callable[[Received], None]) -> None:
        self._worker, self._done = worker, done

    def of(self, arrival: Received, admit: Admit) -> Received | None:
        """The arrival with all that the core wants to know;
        None when ``done`` is told that later."""
        payload = arrival.payload
        if (
            payload is None
            or type(arrival.message) is not Commit
            or len(payload.data) <= INLINE_ELEMENTS
        ):
            return compared(arrival, admit)
        others = admit(arrival.sender, arrival.message).compare_with
        if others is None:
            return arrival
        self._worker.submit(
            lambda: similarity_of(payload, others),
            lambda similarity: self._done(replace(arrival, similarity=similarity)),
        )
        return None
