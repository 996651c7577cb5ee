"""Machine of a simulated peer: its speed, its clock and the delay of its timers."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

NS = 1_000_000_000


def to_ns(seconds: float) -> int:
    return round(seconds * NS)


@dataclass(slots=True)
class Machine:
    """Machine of a peer. It is the same for all incarnations of the peer.

    A core reads only the clock of its machine. Virtual time is an integer number of nanoseconds.

    Attributes:
        slowness: Factor by which the trainer's work is slower.
        handling_ns: Time that the node needs for one event, while other events wait; 0 if events
            take no time.
        late_ns: Extra delay of every timer.
        free_at_ns: Time at which the node will have handled its present event.
        copied_ns: Time at which the node will have copied all payloads that have arrived.
        waited: Number of events so far that had to wait for the node.
    """

    slowness: float = 1.0
    handling_ns: int = 0
    late_ns: int = 0
    free_at_ns: int = 0
    copied_ns: int = 0
    waited: int = 0
    rate: float = 1.0
    _since_ns: int = 0  # virtual time since when the clock has this rate
    _since_s: float = 0.0  # time of this clock at ``_since_ns``

    def clock_s(self, now_ns: int) -> float:
        """Return the time of this machine's clock at the virtual time ``now_ns``, in seconds."""
        return self._since_s + (now_ns - self._since_ns) * self.rate / NS

    def set_clock(self, now_ns: int, rate: float | None = None, jump_s: float = 0.0) -> None:
        """From now on, run the clock at ``rate`` times the speed of virtual time; None keeps the
        present rate. Add ``jump_s`` to the clock, for clocks that do not start at 0."""
        self._since_s, self._since_ns = self.clock_s(now_ns) + jump_s, now_ns
        self.rate = self.rate if rate is None else rate

    def due_ns(self, at_s: float) -> int:
        """Return the virtual time at which a timer for ``at_s`` fires: when this clock shows at
        least ``at_s``, plus ``late_ns``."""
        t_ns = self._since_ns + ceil((at_s - self._since_s) * NS / self.rate)
        while self.clock_s(t_ns) < at_s:  # rounded to a time that is too early
            t_ns += 1
        return t_ns + self.late_ns
