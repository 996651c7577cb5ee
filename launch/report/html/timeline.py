"""Presence of peers over time."""

from __future__ import annotations

from collections.abc import Mapping

from gossip.launch.report.words import lasted

from . import curves, membership
from .charts import STATES, LaneChart, Line, LineChart, Mark, Section, Span
from .incidents import Incident, in_trouble
from .learning import named
from .recorded import RecordedRun


def section(run: RecordedRun, marks: tuple[Mark, ...], incidents: list[Incident]) -> Section:
    found = Section("membership", "Membership")
    spans = run.spans
    if len(spans) > curves.LISTED_MAX:
        found.parts.append(_counts(run, spans, marks))
    found.parts.append(_lanes(run, spans, marks, incidents))
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
    shown = in_trouble(spans, incidents, curves.LISTED_MAX)
    about = "If a peer has several states, the most serious is drawn."
    if len(spans) > len(shown):
        rest = [membership.away_s(spans[peer]) for peer in spans if peer not in shown]
        about = (
            f"The {len(shown)} of {len(spans)} peers with the most trouble. No other peer was away "
            f"for more than {lasted(max(rest, default=0.0))} in all."
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
"""Maximum number of spans that are drawn for a peer: the longest ones."""


def _joined(spans: tuple[Span, ...], duration_s: float) -> tuple[Span, ...]:
    longest = sorted(spans, key=lambda span: span.stop - span.start, reverse=True)[:SPANS_MAX]
    return tuple(sorted(longest, key=lambda span: span.start))
