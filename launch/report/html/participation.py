"""Participation of peers in rounds, and their traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gossip.launch.report.words import bytes_word, counted, lasted

from . import curves, membership
from .charts import BAND, Line, LineChart, Mark, Section, TextTable
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
)
BYTES = ("Sent", "Received")
MACHINES_MAX = 20


def section(run: RecordedRun, marks: tuple[Mark, ...], incidents: list[Incident]) -> Section:
    found = Section("participation", "Participation and bytes")
    found.parts.append(_table(run, incidents))
    if len(run.commits):
        found.parts.append(_contributors(run, marks))
        found.text.append(
            "No weight: updates that the rule left out. Refused by others: results that the peer "
            "made as a server. With small batches both happen to honest peers, too."
        )
    sent = sent_in_all(run)
    if not sent:
        found.text.append("The number of bytes sent is not known: no node has reported it.")
    else:
        steps = run.series.steps.highest
        rounds = max(1.0, len(run.commits) or steps / run.view.local_steps)
        silent = sum(not row.figures.sent.total for row in run.view.rows.values())
        found.text.append(
            f"Sent in all: {bytes_word(sent)}, {bytes_word(sent / rounds)} a round."
            + (f" It is unknown for {counted(silent, 'peer')}." if silent else "")
        )
    found.parts += _machines(run)
    return found


def _contributors(run: RecordedRun, marks: tuple[Mark, ...]) -> LineChart:
    """Return the chart of the number of contributors to each round."""
    buckets = curves.buckets_for(run, rounds_each=4)
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
        f"Peers whose update reached the server in time. Each point is {lasted(buckets.width)}.",
        (line,),
        run.duration_s,
        marks,
        bottom=0.0,
    )


def _machines(run: RecordedRun) -> list[TextTable]:
    """Return the table of the machines with their worst reported figures."""
    known = [each for each in run.view.machines.found.values() if each.in_words(over=True)]
    if not known:
        return []
    rows = tuple(
        (
            machine.host or NONE,
            ", ".join(text for text, _ in machine.figures(over=True)),
            ", ".join(f"{text}: {bad}" for text, bad in machine.figures(over=True) if bad) or NONE,
        )
        for machine in sorted(known, key=lambda each: (not each.is_ill(over=True), each.host))
    )
    more = f", {MACHINES_MAX} of {len(rows)}" if len(rows) > MACHINES_MAX else ""
    head = ("Host", "At worst", "Trouble")
    return [TextTable(f"Machines{more}", head, rows[:MACHINES_MAX])]


def sent_in_all(run: RecordedRun) -> int:
    """Return the bytes that all incarnations of all peers reported as sent."""
    return sum(row.figures.sent.total for row in run.view.rows.values())


def _table(run: RecordedRun, incidents: list[Incident]) -> TextTable:
    spans = run.spans
    of_all = {peer: spans.get(peer, ()) for peer in run.peers}
    shown = in_trouble(of_all, incidents, curves.LISTED_MAX)
    rows = [_row(run, peer, spans) for peer in shown]
    caption = "Each peer"
    if len(shown) < len(run.peers):
        caption = f"The {len(shown)} of {len(run.peers)} peers with the most trouble"
    head = (*HEAD, *BYTES) if sent_in_all(run) else HEAD
    cut = tuple(row[: len(head)] for row in rows)
    return TextTable(caption, head, cut, frozenset(range(2, len(head))))


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
        lasted(membership.quarantined_s(spans.get(peer, ()))),
        bytes_word(sent) if sent else NONE,
        bytes_word(received) if received else NONE,
    )
