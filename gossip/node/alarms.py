"""The node's timers, and its sense of having slept."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from gossip.core import Token
from gossip.transport import Arrival

PILED_UP_S = 0.02
"""After it stood still a node waits so long for more of what came meanwhile."""
READ_ON_MAX_S = 0.2
"""It reads on no longer than this, or than half of the time for which it stood still: its own
timers are overdue meanwhile."""


class TimerHeap:
    """The core's timers on the real clock. Cancelled ones stay in the heap, to be skipped, until
    they are most of it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, Token]] = []
        self._pending: set[Token] = set()

    def set(self, token: Token, at: float) -> None:
        self._pending.add(token)
        heapq.heappush(self._heap, (at, token))

    def cancel(self, token: Token) -> None:
        self._pending.discard(token)
        if len(self._heap) > 2 * len(self._pending) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._pending]
            heapq.heapify(self._heap)

    def next_at(self) -> float | None:
        """When the next one is due, or None."""
        heap = self._heap
        while heap and heap[0][1] not in self._pending:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> Iterator[Token]:
        """Takes out what is due, in order of time. What is set meanwhile waits for the next call,
        even if it is due already.

        What is cancelled meanwhile does not come.
        """
        ripe = []
        while self._heap and self._heap[0][0] <= now:
            token = heapq.heappop(self._heap)[1]
            if token in self._pending:
                ripe.append(token)
        for token in ripe:
            if token in self._pending:
                self._pending.discard(token)
                yield token

    def __len__(self) -> int:
        return len(self._pending)


class StallDetector:
    """Notices that the loop stood still: the process was stopped, the machine was busy,
    or a turn took too long.

    A peer that slept would blame the others for its own silence, so the core must hear of it before
    any timer fires (docs/design_notes.md N6).
    """

    def __init__(self, tolerance_s: float, now: float) -> None:
        self._tolerance_s = tolerance_s
        self._expected = now

    def measure_delay(self, now: float) -> float:
        """Seconds by which the loop is late, 0.0 when that is within the tolerance."""
        late_s = now - self._expected
        return late_s if late_s > self._tolerance_s else 0.0

    def expect(self, at: float) -> None:
        """The loop means to look again at ``at`` or before."""
        self._expected = at


def piled_up(
    poll: Callable[[float], list[Arrival]], late_s: float, clock: Callable[[], float]
) -> Iterator[list[Arrival]]:
    """Yield the arrivals that piled up while the loop stood still for ``late_s``. The transport's
    own threads stood still, too, and need a moment to read them."""
    until = clock() + min(late_s / 2, READ_ON_MAX_S)
    while clock() < until and (arrivals := poll(PILED_UP_S)):
        yield arrivals
