"""Durations of rounds, slow peers, and the longest rounds with their causes."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from gossip.launch.report.words import lasted

from . import curves
from .charts import Line, LineChart, Mark, Section, TextTable
from .figures import NONE, peers, share
from .recorded import RecordedRun

LONGEST, SLOW_MAX = 5, 6
SLOWER = 1.3
"""Multiple of the median step time above which a peer counts as slow."""


def section(run: RecordedRun, marks: tuple[Mark, ...]) -> Section:
    found = Section("rounds", "Rounds")
    commits = run.commits
    duration = commits.lasted_s
    known = np.isfinite(duration)
    if known.sum() < 2:
        found.text.append("This run has no commits, so the durations of rounds are not known.")
        return found
    who, longest = commits.slowest()
    found.parts.append(_chart(run, duration, longest, marks))
    if (who >= 0).any():
        usual_s = float(np.nanmedian(commits.took_s))
        slow = _slow_peers(run, who, usual_s)
        found.text += slow[:SLOW_MAX]
        if not slow and len(np.unique(commits.who)) > 1:
            found.text.append(
                "No peer was slower to compute than the others by 30 % or more: a step takes "
                f"{lasted(usual_s)} (median)."
            )
    found.parts.append(_longest(run, duration, who, longest))
    if handed := len(run.handed_on):
        found.text.append(
            f"{handed:,} rounds went to another server. Reasons: {reasons_of_turns(run)}."
        )
    return found


def reasons_of_turns(run: RecordedRun) -> str:
    """Return the reasons why rounds went to another server, each with its number of rounds."""
    reasons = Counter(_kind(reason) for reason in run.handed_on.values())
    return "; ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common(5))


def _kind(reason: str) -> str:
    """Return a reason without numbers and peers, in order to count equal reasons."""
    if "is refused" in reason:
        return "a result is refused: " + reason.partition("is refused: ")[2].partition(",")[0]
    reason = re.sub(r" for [\d.]+ s$", "", reason)
    return re.sub(r"\b(its server|\d+)\b", "the server", reason)


def _chart(
    run: RecordedRun, duration: np.ndarray, longest: np.ndarray, marks: tuple[Mark, ...]
) -> LineChart:
    buckets = curves.buckets_for(run)
    x = run.commits.t - run.began
    known, computed = np.isfinite(duration), np.isfinite(longest)
    ms = duration * 1000
    lines = [
        Line("longest round", buckets.centers, buckets.quantile(x[known], ms[known], 1.0), 1),
        Line("a round (median)", buckets.centers, buckets.quantile(x[known], ms[known], 0.5), -1),
    ]
    if computed.any():
        slow = buckets.quantile(x[computed], longest[computed] * 1000, 0.5)
        lines.append(Line("of this, the slowest peer computes (median)", buckets.centers, slow, 0))
    highest, middle = float(np.nanmax(ms)), float(np.nanmedian(ms))
    return LineChart(
        "chart-rounds",
        "Time for a round, ms",
        f"From one commit to the next. Each point covers {lasted(buckets.width)}.",
        tuple(lines),
        run.duration_s,
        marks,
        bottom=None if highest > 10 * middle else 0.0,
        logarithmic=highest > 10 * middle and float(np.nanmin(ms[known])) > 0,
    )


def _slow_peers(run: RecordedRun, who: np.ndarray, usual_s: float) -> list[str]:
    """Return a sentence about each peer that computed more slowly than most peers, or that the
    fault plan made slow."""
    commits = run.commits
    counts = Counter(int(peer) for peer in who if peer >= 0)
    lines = []
    for peer, count in counts.most_common():
        own_s = float(np.nanmedian(commits.took_s[commits.who == peer]))
        planned = [str(f) for f in run.plan if peer in f.victims and "slow" in str(f)]
        if not planned and own_s <= SLOWER * usual_s:
            continue
        why = f" (planned: {', '.join(planned)})" if planned else ""
        lines.append(
            f"Peer {peer} was slow to compute{why}: its step takes {lasted(own_s)}, the median "
            f"step {lasted(usual_s)}. It was the slowest in {share(count, sum(counts.values()))} "
            "of the rounds."
        )
    return lines


def _longest(
    run: RecordedRun, duration: np.ndarray, who: np.ndarray, longest: np.ndarray
) -> TextTable:
    commits = run.commits
    order = np.argsort(np.nan_to_num(duration))[::-1][:LONGEST]
    rows = []
    for at in order.tolist():
        if not np.isfinite(duration[at]):
            continue
        round_id, t = int(commits.round[at]), float(commits.t[at])
        slow = f"{who[at]} ({lasted(float(longest[at]))})" if who[at] >= 0 else NONE
        rows.append(
            (
                str(round_id),
                run.clock(t),
                lasted(float(duration[at])),
                slow,
                why(run, at, float(duration[at]), who, longest),
            )
        )
    head = ("Round", "Ended", "Took", "Slowest peer", "Why")
    return TextTable("The longest rounds", head, tuple(rows), frozenset({0, 1, 2}))


def too_long(run: RecordedRun, compute: float) -> str:
    """Describe the time for an update that is longer than its round."""
    if run.view.local_steps > 1:
        return f"would need {lasted(compute)} for all steps of a round, and did fewer"
    return f"reports {lasted(compute)} for its update, more than the time between the commits"


def why(run: RecordedRun, at: int, duration: float, who: np.ndarray, longest: np.ndarray) -> str:
    """Return the recorded reasons for the duration of a round."""
    round_id, stop = int(run.commits.round[at]), float(run.commits.t[at])
    start = stop - duration
    told = []
    progress, failures = run.view.progress, run.view.failures
    if paused := {each.peer for each in progress.pauses if start <= each.t <= stop}:
        told.append(f"{peers(paused)} waited for a quorum")
    cut = failures.outage_at(stop)
    if cut is not None and cut.at >= start:
        told.append(f"network fault: {cut.fault}")
    if round_id in run.handed_on:
        told.append(f"passed to another server: {run.handed_on[round_id]}")
    if round_id in run.view.turns.late:
        missing, waited = run.view.turns.late[round_id]
        loads = {run.overload(peer, start) for peer in missing} - {""}
        why_late = f"; {', '.join(sorted(loads))}" if loads else ""
        told.append(f"{peers(missing)} were too late (waited {lasted(waited)}{why_late})")
    skipped = {each.peer for each in failures.silences if start <= each.first.t <= stop}
    if skipped and cut is None:  # In a partition each side skips the other.
        told.append(f"{peers(skipped)} fell silent")
    if any(start <= each.t <= stop for each in progress.lost.values()):
        told.append("earlier rounds were lost")
    if not told and who[at] >= 0 and longest[at] > duration / 2:
        told.append(
            f"computing: peer {who[at]} took {lasted(float(longest[at]))}"
            if longest[at] <= duration
            else f"computing: peer {who[at]} {too_long(run, float(longest[at]))}"
        )
    if not told and at == 1:
        told.append("the first rounds load code and data")
    return "; ".join(told) or "no recorded event explains it"
