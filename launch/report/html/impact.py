"""Effect of an incident on the rounds around it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gossip.launch.report.happenings import AFTER_S
from gossip.launch.report.words import counted, lasted

from .recorded import RecordedRun


def effect(run: RecordedRun, t: float, until: float | None) -> str:
    """Describe the rounds from ``t`` until ``AFTER_S`` seconds after ``until``, or until the next
    fault. The text has the longest time without a round, and the numbers of rounds that went to
    another server or were lost."""
    commits, failures = run.commits, run.view.failures
    over = t if until is None else until
    hits = [blow.at for blow in failures.blows] + [cut.at for cut in failures.outages]
    following = min((at for at in hits if at > max(t, over)), default=math.inf)
    whole, stop = following > over + AFTER_S, min(over + AFTER_S, following)
    begun = commits.t - np.nan_to_num(commits.lasted_s) if whole else commits.t
    after = commits.t >= t
    told = [_longest(run, after & (begun <= stop), bool(after.any()))]
    inside = after & (commits.t <= stop)
    again = int((commits.attempt[inside] > 0).sum())
    if again:
        end = run.clock(min(stop, run.ended))
        rounds = f"of the {counted(int(inside.sum()), 'round')} until {end}"
        told.append(f"{rounds}, {again} went to another server")
    lost = [each for each in run.view.progress.lost.values() if t <= each.t <= stop]
    if lost:
        told.append(f"{counted(len(lost), 'round')} lost")
    return "; ".join(text for text in told if text)


def _longest(run: RecordedRun, inside: NDArray[np.bool_], goes_on: bool) -> str:
    """Describe the longest time without a round, relative to the usual time."""
    durations, usual_s = run.commits.lasted_s, run.commits.usual_s
    waits = durations[inside & np.isfinite(durations)]
    if not len(waits) or usual_s is None:
        return "" if goes_on or not len(run.commits) else "no further round was committed"
    longest = float(waits.max())
    if longest < 2 * usual_s:
        return f"rounds continued as before (longest {lasted(longest)})"
    return f"longest time without a round {lasted(longest)}, usual {lasted(usual_s)}"
