"""Timers of the node's event loop, and detection of stalls of the loop."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from gossip.core import Token
from gossip.transport import Arrival

PILED_UP_S = 0.02
"""Timeout of each further poll for arrivals after a stall, in seconds."""
READ_ON_MAX_S = 0.2
"""Limit of the time to read arrivals after a stall, in seconds. Half of the stall's duration is a
second limit. Both limits exist because the node's own timers are overdue."""


class TimerHeap:
    """Timers of the core on the real clock. A cancelled timer stays in the heap and is skipped.
    When most of the heap is cancelled timers, they are removed."""

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
        """Return the time of the next timer, or None."""
        heap = self._heap
        while heap and heap[0][1] not in self._pending:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> Iterator[Token]:
        """Remove and yield the timers that are due, in order of time. A timer that is set during
        the iteration waits for the next call, even if it is already due.

        A timer that is cancelled during the iteration is not yielded.
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
    """Detector of stalls of the loop. A stall means that the process was stopped, the machine was
    busy, or an iteration took too long.

    Without detection, a peer would suspect other peers after its own stall. So the core must
    receive the stall as an event before any timer fires (docs/design_notes.md N6).
    """

    def __init__(self, tolerance_s: float, now: float) -> None:
        self._tolerance_s = tolerance_s
        self._expected = now

    def measure_delay(self, now: float) -> float:
        """Return the delay of the loop in seconds; 0.0 if it is within the tolerance."""
        late_s = now - self._expected
        return late_s if late_s > self._tolerance_s else 0.0

    def expect(self, at: float) -> None:
        """Set the latest time of the next iteration of the loop."""
        self._expected = at


def piled_up(
    poll: Callable[[float], list[Arrival]], late_s: float, clock: Callable[[], float]
) -> Iterator[list[Arrival]]:
    """Yield the arrivals that accumulated while the loop was blocked for ``late_s`` seconds. The
    transport's threads were blocked as well, and need time to read the arrivals from the
    network."""
    until = clock() + min(late_s / 2, READ_ON_MAX_S)
    while clock() < until and (arrivals := poll(PILED_UP_S)):
        yield arrivals
