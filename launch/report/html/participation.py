"""Participation of peers in rounds, and what they sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gossip.launch.report.words import bytes_word, counted

from . import curves, membership
from .charts import HeatMap, LineChart, Mark, Section, TextTable
from .downsampling import Buckets, Floats
from .figures import NONE, lasted, share
from .incidents import Incident, in_trouble
from .learning import Topic, named
from .recorded import RecordedRun
from .timeline import heat_buckets, matrix

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
LEAST_S, SILENT_S = 0.2, 12.0
"""Bounds of the seconds between two reports of a node. A report that comes sooner counts as of the
same time; a node that reports nothing for longer is away."""


def section(run: RecordedRun, marks: tuple[Mark, ...], incidents: list[Incident]) -> Section:
    found = Section("participation", "Participation and bytes")
    if len(run.commits):
        found.parts.append(_heat(run, marks))
    found.parts.append(_table(run, incidents))
    if len(run.commits):
        found.text.append(
            "In the table: No weight: its updates that counted for nothing in the result. Refused "
            "by others: how often another peer refused a result that it had made as a server. Both "
            "befall honest peers, too: rules leave out what lies far out in a round, and with "
            "small batches an honest result opposes some honest updates."
        )
    traffic = _traffic(run)
    if not traffic:
        found.text.append("How many bytes were sent is not known: no node has said so.")
    else:
        steps = run.series.steps.highest
        rounds = max(1.0, len(run.commits) or steps / run.view.local_steps)
        sent, silent = sent_in_all(run), len(run.peers) - len(traffic)
        found.text.append(
            f"Sent in all: {bytes_word(sent)}, {bytes_word(sent / rounds)} a round."
            + (f" Of {counted(silent, 'peer')} it is not known." if silent else "")
        )
    found.parts += _usage(run, marks)
    found.parts += _machines(run)
    return found


def _machines(run: RecordedRun) -> list[TextTable]:
    """At the worst, as far as peers have told of them."""
    told = [each for each in run.view.machines.found.values() if each.in_words(over=True)]
    if not told:
        return []
    rows = tuple(
        (
            machine.host or NONE,
            ", ".join(text for text, _ in machine.figures(over=True)),
            ", ".join(f"{text}: {bad}" for text, bad in machine.figures(over=True) if bad) or NONE,
        )
        for machine in sorted(told, key=lambda each: (not each.is_ill(over=True), each.host))
    )
    more = f", {MACHINES_MAX} of {len(rows)}" if len(rows) > MACHINES_MAX else ""
    head = ("Host", "At worst", "Trouble")
    return [TextTable(f"Machines{more}", head, rows[:MACHINES_MAX])]


def _usage(run: RecordedRun, marks: tuple[Mark, ...]) -> list[LineChart]:
    """Return charts of the network, processors and memory that peers used, as far as they have
    reported it."""
    sent = _rates(run, "sent_bytes", 1024.0)
    busy = _rates(run, "cpu_s", 1.0)
    memory = run.series.used["memory"]
    found = []
    if sent:
        about = "By each node, to all other peers together."
        found.append(_chart(run, Topic("sent", "Sent, KiB per second", about), sent, marks))
    if busy:
        about = "By trainer and node of each peer; 1 is one processor."
        found.append(_chart(run, Topic("processors", "Processors kept busy", about), busy, marks))
    if memory.peers:
        rows = {peer: (memory.x(peer) - run.began, memory.y(peer) / 2**20) for peer in memory.peers}
        about = "Of trainer and node of each peer."
        found.append(_chart(run, Topic("memory", "Memory, MiB", about), rows, marks))
    return found


Rows = Mapping[int, tuple[Floats, Floats]]


def _rates(run: RecordedRun, name: str, unit: float) -> Rows:
    """How fast counters have grown between two reports, at the time of the later one."""
    points, found = run.series.used[name], {}
    for peer in points.peers:
        x, total = points.x(peer), points.grown(peer)
        inside = np.diff(x) > LEAST_S
        if inside.any():
            rate = np.diff(total)[inside] / np.diff(x)[inside] / unit
            found[peer] = (x[1:][inside] - run.began, rate)
    return found


def _chart(run: RecordedRun, topic: Topic, rows: Rows, marks: tuple[Mark, ...]) -> LineChart:
    """Reports come every few seconds, so each holds until the next one."""
    buckets = curves.buckets_for(run, rounds_each=4)
    peers = sorted(rows)
    lines = curves.of_rows(
        peers,
        [_until_the_next(*rows[peer], buckets) for peer in peers],
        buckets.centers,
        lambda peer: named(run, peer),
    )
    return LineChart(
        f"chart-{topic.name}",
        topic.title,
        topic.about,
        lines,
        run.duration_s,
        marks,
        bottom=0.0,
    )


def _until_the_next(x: Floats, y: Floats, buckets: Buckets) -> Floats:
    at = np.searchsorted(x, buckets.centers)
    inside = (at < len(x)) & (np.append(x, np.inf)[at] - buckets.centers <= SILENT_S)
    return np.where(inside, np.append(y, np.nan)[at], np.nan)


def _heat(run: RecordedRun, marks: tuple[Mark, ...]) -> HeatMap:
    commits = run.commits
    names, row_of = curves.groups_of(run.peers)
    buckets = heat_buckets(run)
    of_peer = np.full(max(run.peers, default=0) + 1, -1)
    sizes = np.zeros(len(names))
    for peer, row in row_of.items():
        of_peer[peer] = row
        sizes[row] += 1
    inside = commits.who < len(of_peer)
    columns = buckets.of(commits.t - run.began)
    took_part = matrix(
        of_peer[commits.who[inside]], columns[commits.of[inside]], len(names), buckets
    )
    rounds = np.bincount(columns, minlength=buckets.count)
    possible = sizes[:, None] * rounds[None, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(possible > 0, took_part / np.maximum(possible, 1), np.nan)
    return HeatMap(
        "chart-participation",
        "Share of rounds to which each contributed",
        f"In each {lasted(buckets.width)}. No colour: there was no round.",
        names,
        values,
        run.duration_s,
        "none",
        "all",
        marks,
    )


def sent_in_all(run: RecordedRun) -> float:
    """Bytes that all lives of all peers have sent, as far as they have said so."""
    return sum(sent for sent, _ in _traffic(run).values())


def _traffic(run: RecordedRun) -> dict[int, tuple[float, float]]:
    """Return the bytes that all lives of each peer have sent and received, as far as they have
    reported it."""
    sent, received = run.series.used["sent_bytes"], run.series.used["received_bytes"]
    return {
        peer: (float(sent.grown(peer)[-1]), float(received.grown(peer)[-1:].sum()))
        for peer in sent.peers
    }


def _table(run: RecordedRun, incidents: list[Incident]) -> TextTable:
    spans = membership.spans(run)
    of_all = {peer: spans.get(peer, ()) for peer in run.peers}
    shown = in_trouble(of_all, incidents, curves.EACH_MAX)
    traffic = _traffic(run)
    rows = [_row(run, peer, spans, traffic) for peer in shown]
    caption = "Each peer"
    if len(shown) < len(run.peers):
        caption = f"The {len(shown)} of {len(run.peers)} peers that had most trouble"
        rows.append(_all_row(run, spans, traffic))
    head = (*HEAD, *BYTES) if traffic else HEAD
    cut = tuple(row[: len(head)] for row in rows)
    return TextTable(caption, head, cut, frozenset(range(2, len(head))))


def _row(
    run: RecordedRun,
    peer: int,
    spans: Mapping[int, tuple[Any, ...]],
    traffic: Mapping[int, tuple[float, float]],
) -> tuple[str, ...]:
    commits, row = run.commits, run.view.rows.get(peer)
    steps = run.series.steps.y(peer)
    mine = commits.who == peer
    weights = commits.weight[mine]
    known = weights[np.isfinite(weights)]
    sent, received = traffic.get(peer, (0.0, 0.0))
    state = row.state if row is not None else NONE
    if row is not None and state != "done" and row.exit:
        state = row.exit
    if run.state.state == "killed" and state == "training":
        waited = spans.get(peer, ())[-1:] and spans[peer][-1].state == "paused"
        state = f"{'waited for a quorum' if waited else 'trained'} when last heard of"
    return (
        named(run, peer).removeprefix("peer "),
        state if state != "done" else "finished",
        f"{steps.max():,.0f}" if len(steps) else NONE,
        share(int(mine.sum()), len(commits)),
        share(int((known <= 0).sum()), len(known)),
        f"{int((commits.makers == peer).sum()):,}",
        f"{run.turns.refused.get(peer, 0):,}",
        lasted(membership.away_s(spans.get(peer, ()))),
        lasted(membership.quarantined_s(spans.get(peer, ()))),
        bytes_word(sent) if sent else NONE,
        bytes_word(received) if received else NONE,
    )


def _all_row(
    run: RecordedRun,
    spans: Mapping[int, tuple[Any, ...]],
    traffic: Mapping[int, tuple[float, float]],
) -> tuple[str, ...]:
    """The median of all peers."""
    commits = run.commits
    size = max(run.peers, default=0) + 1
    parts = np.bincount(commits.who, minlength=size)[run.peers] if len(commits) else np.zeros(1)
    served = np.bincount(commits.makers[commits.makers >= 0], minlength=size)
    steps = [run.series.steps.y(peer).max() for peer in run.series.steps.peers]
    away = [membership.away_s(each) for each in spans.values()]
    out = [membership.quarantined_s(each) for each in spans.values()]
    sent = [sent for sent, _ in traffic.values() if sent]
    got = [received for _, received in traffic.values() if received]
    return (
        "median of all",
        NONE,
        f"{np.median(steps):,.0f}" if steps else NONE,
        share(float(np.median(parts)), len(commits)),
        NONE,
        f"{np.median(served[run.peers]):,.0f}" if len(commits) else NONE,
        NONE,
        lasted(float(np.median(away))) if away else NONE,
        lasted(float(np.median(out))) if out else NONE,
        bytes_word(float(np.median(sent))) if sent else NONE,
        bytes_word(float(np.median(got))) if got else NONE,
    )
