"""What can be seen of an incident in the rounds around it."""

from __future__ import annotations

import numpy as np

from .figures import lasted
from .recorded import RecordedRun

AFTER_S = 3.0
"""What happens so long after a fault is over may be its effect."""


class Impact:
    """Of one run: how long its rounds took, and which were lost."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._t = run.commits.t
        self._lasted = run.commits.lasted_s()
        usual = self._lasted[np.isfinite(self._lasted)]
        self.usual_s = float(np.median(usual)) if len(usual) else None

    def effect(self, t: float, until: float | None) -> str:
        """Of the rounds from ``t`` on: the longest wait, how many went to another server, or were
        lost."""
        stop = (t if until is None else until) + AFTER_S
        told = [self.longest(t, stop)]
        inside = (self._t >= t) & (self._t <= stop)
        again = int((self._run.commits.attempt[inside] > 0).sum())
        if again:
            told.append(f"{again} of {int(inside.sum())} rounds went to another server")
        lost = [
            row
            for row in self._run.events
            if row.get("event") == "lost_round" and t <= row["t"] <= stop
        ]
        if rounds := {row.get("round") for row in lost}:
            told.append(f"{rounds_word(len(rounds))} lost")
        return "; ".join(text for text in told if text)

    def longest(self, t: float, stop: float) -> str:
        """The longest time without a round between two moments."""
        inside = (self._t >= t) & (self._t - np.nan_to_num(self._lasted) <= stop)
        waits = self._lasted[inside & np.isfinite(self._lasted)]
        if not len(waits) or self.usual_s is None:
            return "no round came any more" if len(self._t) and not inside.any() else ""
        longest = float(waits.max())
        if longest < 2 * self.usual_s:
            return f"rounds went on as before (longest {lasted(longest)})"
        return f"longest time without a round {lasted(longest)}, usual {lasted(self.usual_s)}"


def rounds_word(count: int) -> str:
    return f"{count} round" + ("" if count == 1 else "s")
