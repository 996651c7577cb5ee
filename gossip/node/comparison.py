"""Compares a server's result with local vectors. ``gossip.core.rounds.validation`` uses the
comparison to validate the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gossip.core import Commit, Received
from gossip.vectors import Admit, compared, similarity_of

from .worker import Worker

INLINE_ELEMENTS = 2**20
"""Size of the largest result, in elements, that the loop compares itself. Comparing this many
elements takes half a millisecond."""


class ResultComparator:
    """Compares results on arrival, before the core receives them. The loop compares small results
    itself, and the worker compares large results."""

    def __init__(self, worker: Worker, done: Callable[[Received], None]) -> None:
        self._worker, self._done = worker, done

    def of(self, arrival: Received, admit: Admit) -> Received | None:
        """Return the arrival together with the comparison that the core needs. Return None if the
        worker compares; ``done`` then receives the arrival later."""
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
