"""Presence of peers over time, their participation in rounds, and their traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gossip.launch.report.words import bytes_word, counted, lasted

from . import curves, membership
from .charts import BAND, LaneChart, Line, LineChart, Mark, Section, Span, TextTable
from .figures import NONE, share
from .incidents import Incident, in_trouble
from .learning import named
from .recorded import RecordedRun

HEAD = (
    "Peer",
    "State",
    "Steps",
    "In rounds",
    "No weight",
    "Served",
    "Refused by others",
    "Away",
    "Quarantine",
    "Sent",
    "Received",
)


def section(run: RecordedRun, marks: tuple[Mark, ...], incidents: list[Incident]) -> Section:
    found = Section("participation", "Participation and bytes")
    found.parts.append(_table(run, incidents))
    if len(run.commits):
        found.parts.append(_contributors(run, marks))
        found.text.append(
            "No weight: updates that the rule left out. Refused by others: its results as a server "
            "that peers rejected. With small batches both happen to honest peers, too."
        )
    sent = sent_in_all(run)
    if not sent:
        found.text.append("The number of bytes sent is not known: no node has reported it.")
    else:
        steps = run.series.steps.highest
        rounds = max(1.0, len(run.commits) or steps / run.view.local_steps)
        silent = sum(not row.figures.sent.total for row in run.view.rows.values())
        found.text.append(
            f"Sent in all: {bytes_word(sent)}, {bytes_word(sent / rounds)} per round."
            + (f" It is unknown for {counted(silent, 'peer')}." if silent else "")
        )
    return found


def _contributors(run: RecordedRun, marks: tuple[Mark, ...]) -> LineChart:
    """Return the chart of the number of contributors to each round."""
    buckets = curves.buckets_for(run)
    x, y = run.commits.t - run.began, run.commits.contributors()
    lowest, highest = (buckets.quantile(x, y, q) for q in (0.0, 1.0))
    line = Line(
        f"mean of the rounds{BAND}",
        buckets.centers,
        buckets.means(x, y),
        low=lowest,
        high=highest,
    )
    return LineChart(
        "chart-contributors",
        "Contributors to a round",
        f"Peers whose update arrived in time. Each point is a mean over {lasted(buckets.width)}.",
        (line,),
        run.duration_s,
        marks,
        bottom=0.0,
    )


def sent_in_all(run: RecordedRun) -> int:
    """Return the number of bytes that all peers, in all their incarnations, have reported as
    sent."""
    return sum(row.figures.sent.total for row in run.view.rows.values())


def _table(run: RecordedRun, incidents: list[Incident]) -> TextTable:
    spans = run.spans
    of_all = {peer: spans.get(peer, ()) for peer in run.peers}
    shown = in_trouble(of_all, incidents, curves.LISTED_MAX)
    rows = [_row(run, peer, spans) for peer in shown]
    caption = "Each peer"
    if len(shown) < len(run.peers):
        caption = f"The {len(shown)} of {len(run.peers)} peers with the most trouble"
    return TextTable(caption, HEAD, tuple(rows), frozenset(range(2, len(HEAD))))


def _row(run: RecordedRun, peer: int, spans: Mapping[int, tuple[Any, ...]]) -> tuple[str, ...]:
    commits, row = run.commits, run.view.rows[peer]
    steps = run.series.steps.y(peer)
    mine = commits.who == peer
    weights = commits.weight[mine]
    known = weights[np.isfinite(weights)]
    sent, received = row.figures.sent.total, row.figures.received.total
    state = row.exit if row.state != "done" and row.exit else row.state
    if run.state.state == "killed" and state == "training":
        waited = spans.get(peer, ())[-1:] and spans[peer][-1].state == "paused"
        state = f"{'waited for a quorum' if waited else 'trained'} at the last report"
    return (
        named(run, peer).removeprefix("peer "),
        state if state != "done" else "finished",
        f"{steps.max():,.0f}" if len(steps) else NONE,
        share(int(mine.sum()), len(commits)),
        share(int((known <= 0).sum()), len(known)),
        f"{int((commits.makers == peer).sum()):,}",
        f"{run.view.turns.refused.get(peer, 0):,}",
        lasted(membership.away_s(spans.get(peer, ()))),
        lasted(membership.time_in(spans.get(peer, ()), ["quarantined"])),
        bytes_word(sent) if sent else NONE,
        bytes_word(received) if received else NONE,
    )


def presence(run: RecordedRun, marks: tuple[Mark, ...], incidents: list[Incident]) -> Section:
    spans = run.spans
    shown = in_trouble(spans, incidents, curves.LISTED_MAX)
    about = "If a peer has several states at a time, the most serious state is drawn."
    if len(spans) > len(shown):
        rest = [membership.away_s(spans[peer]) for peer in spans if peer not in shown]
        about = (
            f"The {len(shown)} of {len(spans)} peers with the most trouble. No other peer was away "
            f"for more than {lasted(max(rest, default=0.0))} in all."
        )
    chart = LaneChart(
        "chart-lanes",
        "What each peer did",
        about,
        tuple((named(run, peer), _joined(spans[peer])) for peer in shown),
        run.duration_s,
        marks,
    )
    return Section("membership", "Membership", parts=[chart])


SPANS_MAX = 150
"""Maximum number of spans that are drawn for a peer. If it has more, the longest spans are
drawn."""


def _joined(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    if len(spans) <= SPANS_MAX:
        return spans
    longest = sorted(spans, key=lambda span: span.stop - span.start, reverse=True)[:SPANS_MAX]
    return tuple(sorted(longest, key=lambda span: span.start))
