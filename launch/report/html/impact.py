"""Effect of an incident on the rounds around it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gossip.launch.report.happenings import AFTER_S
from gossip.launch.report.words import counted, lasted

from .recorded import RecordedRun


class Impact:
    """Durations and losses of rounds of one run."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._t = run.commits.t
        self._lasted = run.commits.lasted_s()
        usual = self._lasted[np.isfinite(self._lasted)]
        self.usual_s = float(np.median(usual)) if len(usual) else None
        failures = run.view.failures
        hit = [blow.at for blow in failures.blows] + [cut.at for cut in failures.outages]
        self._begins = sorted(hit)

    def effect(self, t: float, until: float | None) -> str:
        """Describe the rounds from ``t`` until ``AFTER_S`` seconds after ``until``, or until the
        next fault. The text has the longest time without a round, and the numbers of rounds that
        went to another server or were lost."""
        over = t if until is None else until
        stop = over + AFTER_S
        after = [begin for begin in self._begins if begin > max(t, over)]
        whole = not after or after[0] > stop
        stop = stop if whole else after[0]
        begun = self._t - np.nan_to_num(self._lasted) if whole else self._t
        told = [self._longest((self._t >= t) & (begun <= stop), bool((self._t >= t).any()))]
        inside = (self._t >= t) & (self._t <= stop)
        again = int((self._run.commits.attempt[inside] > 0).sum())
        if again:
            end = self._run.clock(min(stop, self._run.ended))
            rounds = f"of the {counted(int(inside.sum()), 'round')} until {end}"
            told.append(f"{rounds}, {again} went to another server")
        lost = [each for each in self._run.view.progress.lost.values() if t <= each.t <= stop]
        if lost:
            told.append(f"{counted(len(lost), 'round')} lost")
        return "; ".join(text for text in told if text)

    def _longest(self, inside: NDArray[np.bool_], goes_on: bool) -> str:
        """Describe the longest time without a round, relative to the usual time."""
        waits = self._lasted[inside & np.isfinite(self._lasted)]
        if not len(waits) or self.usual_s is None:
            return "" if goes_on or not len(self._t) else "no further round was committed"
        longest = float(waits.max())
        if longest < 2 * self.usual_s:
            return f"rounds continued as before (longest {lasted(longest)})"
        return f"longest time without a round {lasted(longest)}, usual {lasted(self.usual_s)}"
