"""Queue of scheduled calls, with virtual time in integer nanoseconds. Calls at the same time run in
the order in which they were scheduled."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from .machine import NS, to_ns
from .network import Network


class SimulationStuck(AssertionError):
    """A simulation makes no progress, for example if ``run_until`` has reached its limit. The
    message describes the state of all peers."""


class Timeline:
    """The queue of all scheduled calls, and the virtual clock.

    Args:
        network: After it has changed, ``_tend`` is called before the next call.
    """

    def __init__(self, network: Network) -> None:
        self.now_ns = 0
        self.network = network
        self._seen = network.changed
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._seq = 0

    @property
    def now(self) -> float:
        """Virtual time in seconds."""
        return self.now_ns / NS

    def at(self, t: float, act: Callable[[], None]) -> None:
        """Schedule the call of ``act`` at the virtual time ``t``, in seconds."""
        self.at_ns(to_ns(t), act)

    def at_ns(self, t_ns: int, act: Callable[..., None], *arguments: Any) -> None:
        """Schedule the call ``act(*arguments)`` at the virtual time ``t_ns``, or now if this time
        has passed."""
        self._seq = seq = self._seq + 1
        heappush(self._heap, (t_ns if t_ns > self.now_ns else self.now_ns, seq, act, arguments))

    def step(self) -> bool:
        """Run the next scheduled call. Return False if there is none."""
        self._tend_if_changed()
        if not self._heap:
            return False
        self.now_ns, _, act, arguments = heappop(self._heap)
        act(*arguments)
        return True

    def run_for(self, duration_s: float) -> None:
        end_ns = self.now_ns + to_ns(duration_s)
        self._tend_if_changed()
        while self._heap and self._heap[0][0] <= end_ns:
            self.step()
            self._tend_if_changed()
        self.now_ns = end_ns

    def run_until(self, predicate: Callable[[], bool], limit_s: float) -> float:
        """Run until ``predicate()`` is true. Return the elapsed virtual time in seconds. Raises:
        SimulationStuck: The predicate is still false after ``limit_s``."""
        start_ns = self.now_ns
        end_ns = start_ns + to_ns(limit_s)
        while not predicate():
            self._tend_if_changed()
            if (self._heap and self._heap[0][0] > end_ns) or not self.step():
                raise SimulationStuck(
                    f"not met after {limit_s} s (virtual time {self.now:.3f} s)\n{self.summary()}"
                )
        return (self.now_ns - start_ns) / NS

    def summary(self) -> str:
        """Return a text about the state of the run, for error messages."""
        return f"{len(self._heap)} pending calls"

    def _tend_if_changed(self) -> None:
        if self._seen != self.network.changed:
            self._seen = self.network.changed
            self._tend()

    def _tend(self) -> None:
        """React to a change of the network. Subclasses override this."""
