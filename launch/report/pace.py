"""Speed of a peer, and the share of a step in which it waits, from its reports about rounds."""

from __future__ import annotations

from collections import deque

WINDOW_S = 10.0
SAMPLES_MAX = 128
"""Maximum number of reports that are kept. A peer reports at most ten rounds a second."""


class StepPace:
    """Speed of a peer over the last ``WINDOW_S`` seconds. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=SAMPLES_MAX)
        self._computed: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)

    @property
    def last_at(self) -> float | None:
        """Time of the last report of a step; None if there is no report."""
        return self._steps[-1][0] if self._steps else None

    def stepped(self, t: float, step: int) -> None:
        """Record the number of completed steps. If a peer returns to an earlier step, the
        measurement restarts."""
        if self._steps and (step < self._steps[-1][1] or t < self._steps[-1][0]):
            self._steps.clear()
            self._computed.clear()
        self._steps.append((t, step))

    def computed(self, t: float, seconds: float) -> None:
        """Record the time from the start of a round until the peer had computed its update, in
        seconds."""
        self._computed.append((t, seconds))

    def per_s(self, now: float) -> float | None:
        """Return the steps per second; None if not known yet. The speed of a stalled peer
        decays."""
        kept = [(t, step) for t, step in self._steps if now - t <= WINDOW_S] or list(self._steps)
        if len(kept) < 2 and len(self._steps) >= 2:
            kept = list(self._steps)[-2:]
        if len(kept) < 2:
            return None
        (first_t, first), (last_t, last) = kept[0], kept[-1]
        step_s = (last_t - first_t) / max(last - first, 1)
        # The next step counts as late after twice the time of a step.
        late_s = max(0.0, now - last_t - 2 * step_s - REPORT_DELAY_S)
        took_s = last_t - first_t + late_s
        return (last - first) / took_s if took_s > 0 else None

    def waiting(self, now: float) -> float | None:
        """Return the share of a step in which the peer waits after computing its update; None if
        not known."""
        rate = self.per_s(now)
        recent = [seconds for t, seconds in self._computed if now - t <= WINDOW_S]
        if not rate or not recent:
            return None
        return min(1.0, max(0.0, 1.0 - sum(recent) / len(recent) * rate))


REPORT_DELAY_S = 0.2
"""Maximum delay of the report of a round, in seconds."""
