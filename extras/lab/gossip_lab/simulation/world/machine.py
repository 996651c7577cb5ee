"""The machine that a simulated peer runs on: its speed, its clock and the delay of its timers."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

NS = 1_000_000_000


def to_ns(seconds: float) -> int:
    return round(seconds * NS)


@dataclass(slots=True)
class Machine:
    """Machine of a peer, through all its incarnations: a restarted process finds it unchanged.

    A core reads only its machine's clock. Time in the simulated world is an integer number of
    nanoseconds.

    Attributes:
        slowness: Factor of the time of all work of the trainer.
        handling_ns: Time of the node for one event, in which other events wait. 0 if events take no
            time.
        late_ns: Delay of every timer.
        free_at_ns: Time at which the node has handled its present event.
        copied_ns: Time at which the node has copied the payloads that have arrived.
        waited: Number of events that had to wait for the node.
        true: Whether its clock shows the world's time, which saves the arithmetic for most
            machines.
    """

    slowness: float = 1.0
    handling_ns: int = 0
    late_ns: int = 0
    free_at_ns: int = 0
    copied_ns: int = 0
    waited: int = 0
    rate: float = 1.0
    _since_ns: int = 0  # time at which the clock got its present rate
    _since_s: float = 0.0  # time of the clock at ``_since_ns``
    true: bool = True

    def clock_s(self, now_ns: int) -> float:
        """Return the time of this machine's clock, in seconds."""
        if self.true:
            return now_ns / NS
        return self._since_s + (now_ns - self._since_ns) * self.rate / NS

    def set_clock(self, now_ns: int, rate: float | None = None, jump_s: float = 0.0) -> None:
        """Run the clock at ``rate`` from now on; 1.0 is the rate of the world's, None the present
        one. The clock jumps by ``jump_s`` seconds, for clocks with a different start."""
        self._since_s, self._since_ns = self.clock_s(now_ns) + jump_s, now_ns
        self.rate = self.rate if rate is None else rate
        self.true = False

    def due_ns(self, at_s: float) -> int:
        """Return when a timer for ``at_s`` fires: never before this clock shows ``at_s``."""
        if self.true:
            t_ns = ceil(at_s * NS)
            return (t_ns if t_ns / NS >= at_s else t_ns + 1) + self.late_ns
        t_ns = self._since_ns + ceil((at_s - self._since_s) * NS / self.rate)
        while self.clock_s(t_ns) < at_s:  # rounding has cost a nanosecond
            t_ns += 1
        return t_ns + self.late_ns
