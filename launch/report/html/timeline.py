"""Presence of peers, and the servers of rounds, over time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from . import curves, membership
from .charts import STATES, Chart, HeatMap, LaneChart, Line, LineChart, Mark, Section, Span
from .downsampling import Buckets
from .figures import NONE, lasted
from .incidents import Incident, in_trouble
from .learning import named
from .recorded import RecordedRun


def section(run: RecordedRun, marks: tuple[Mark, ...], incidents: list[Incident]) -> Section:
    found = Section("membership", "Who was there, and who served")
    spans = membership.spans(run)
    if len(spans) > curves.EACH_MAX:
        found.parts.append(_counts(run, spans, marks))
    found.parts.append(_lanes(run, spans, marks, incidents))
    if (served := _served(run, marks)) is not None:
        found.parts.append(served)
    elif len(run.commits) == 0:
        found.text.append(
            f"With the topology {run.settings.topology or NONE} no peer serves a round."
        )
    return found


def _counts(
    run: RecordedRun, spans: Mapping[int, tuple[Span, ...]], marks: tuple[Mark, ...]
) -> LineChart:
    buckets = curves.buckets_for(run)
    counts = membership.counts(spans, buckets)
    lines = tuple(
        Line(words, buckets.centers, counts[state], style)
        for style, (state, words) in enumerate(STATES.items())
        if counts[state].any()
    )
    return LineChart(
        "chart-members",
        "Peers by what they do",
        f"Of {len(spans)} peers.",
        lines,
        run.duration_s,
        marks,
        bottom=0.0,
    )


def _lanes(
    run: RecordedRun,
    spans: Mapping[int, tuple[Span, ...]],
    marks: tuple[Mark, ...],
    incidents: list[Incident],
) -> LaneChart:
    shown = in_trouble(spans, incidents, curves.EACH_MAX)
    about = "Of several states the most serious is drawn."
    if len(spans) > len(shown):
        rest = [membership.away_s(spans[peer]) for peer in spans if peer not in shown]
        about = (
            f"The {len(shown)} of {len(spans)} peers that had most trouble. Of the others nobody "
            f"was away for more than {lasted(max(rest, default=0.0))} in all."
        )
    return LaneChart(
        "chart-lanes",
        "What each peer did",
        about,
        tuple((named(run, peer), _joined(spans[peer], run.duration_s)) for peer in shown),
        run.duration_s,
        marks,
    )


SPANS_MAX = 150
"""Maximum number of spans that are drawn of one peer. The longest are drawn."""


def _joined(spans: tuple[Span, ...], duration_s: float) -> tuple[Span, ...]:
    if len(spans) <= SPANS_MAX:
        return spans
    longest = sorted(spans, key=lambda span: span.stop - span.start, reverse=True)[:SPANS_MAX]
    return tuple(sorted(longest, key=lambda span: span.start))


def _served(run: RecordedRun, marks: tuple[Mark, ...]) -> Chart | None:
    commits = run.commits
    known = commits.server >= 0
    if not known.any() or not run.peers:
        return None
    names, row_of = curves.groups_of(run.peers)
    buckets = heat_buckets(run)
    rows = np.array([row_of.get(int(peer), -1) for peer in commits.server[known]])
    sums = matrix(rows, buckets.of(commits.t[known] - run.began), len(names), buckets)
    most = int(sums.max())
    return HeatMap(
        "chart-served",
        "Who served",
        f"How many rounds each {_row_word(run)} served in {lasted(buckets.width)}.",
        names,
        np.where(sums > 0, sums / max(1, most), np.nan),
        run.duration_s,
        "one round" if most < 8 else "few rounds",
        f"{most} rounds",
        marks,
    )


def heat_buckets(run: RecordedRun) -> Buckets:
    return curves.buckets_for(run, rounds_each=8, most=curves.HEAT_COLUMNS)


def matrix(rows: np.ndarray, columns: np.ndarray, count: int, buckets: Buckets) -> np.ndarray:
    """``(count, buckets)``: how often each row and column come together; row -1 is none."""
    inside = rows >= 0
    at = rows[inside] * buckets.count + columns[inside]
    flat = np.bincount(at, minlength=count * buckets.count)
    return flat.reshape(count, buckets.count).astype(np.float64)


def _row_word(run: RecordedRun) -> str:
    return "peer" if len(run.peers) <= curves.GROUPS else "group of peers"
