"""Trust in each peer over time."""

from __future__ import annotations

import numpy as np

from gossip.core import TrustSettings
from gossip.launch.report.words import counted

from . import curves
from .charts import Line, LineChart, Mark, Section
from .columns import Points
from .figures import number, peers
from .learning import named
from .recorded import RecordedRun

CURVES_MAX = 8
LEVELS = TrustSettings()


def section(run: RecordedRun, marks: tuple[Mark, ...]) -> Section:
    found = Section("trust", "Trust")
    trust = run.commits.trust if run.commits.trust.peers else run.series.trust
    if not trust.peers:
        found.text.append("This run recorded no trust.")
        return found
    found.parts.append(_chart(run, trust, marks))
    found.text.append(f"Suspected: {peers(run.view.trust.suspicions)}.")
    return found


def unseen_liars(run: RecordedRun) -> list[int]:
    """Return the Byzantine peers of the plan that were never suspected."""
    return sorted(set(run.plan.byzantine) - run.view.trust.suspicions.keys())


def _chart(run: RecordedRun, trust: Points, marks: tuple[Mark, ...]) -> LineChart:
    """Return a chart with a curve for each of the least trusted suspects, and one for the lowest
    trust of the other peers."""
    about = (
        f"1 is full trust. A peer is suspected below {number(LEVELS.suspect_below)}, and "
        f"quarantined below {number(LEVELS.quarantine_below)}."
    )
    buckets = curves.buckets_for(run)
    held = {p: buckets.held(trust.x(p) - run.began, trust.y(p)) for p in trust.peers}
    doubted = [peer for peer in trust.peers if peer in run.view.trust.suspicions]
    doubted = sorted(doubted, key=lambda peer: float(trust.y(peer).min()))[:CURVES_MAX]
    lines = [
        Line(named(run, peer), buckets.centers, held.pop(peer), style)
        for style, peer in enumerate(sorted(doubted))
    ]
    if held:
        others = counted(len(held), "other peer" if lines else "peer")
        lowest = np.fmin.reduce(list(held.values()))
        lines.append(Line(f"lowest of {others}", buckets.centers, lowest))
    return LineChart(
        "chart-trust",
        "Trust over time",
        about,
        tuple(lines),
        run.duration_s,
        marks,
        bottom=0.0,
        top=1.05,
    )
