"""Trust in each peer over time, and why it fell."""

from __future__ import annotations

import numpy as np

from gossip.observe import Event, Judgement, events, select

from . import curves
from .charts import Chart, HeatMap, Line, LineChart, Mark, Section, TextTable
from .columns import Points
from .figures import NONE, clock, number, peers
from .learning import named
from .recorded import RecordedRun
from .timeline import heat_buckets

LISTED_MAX = 12


def section(run: RecordedRun, marks: tuple[Mark, ...]) -> Section:
    found = Section("trust", "Trust")
    trust = run.commits.trust if run.commits.trust.peers else run.series.trust
    if not trust.peers:
        found.text.append("This run has recorded no trust.")
        return found
    found.parts.append(_chart(run, trust, marks))
    rows = _reasons(run, trust)
    if rows:
        found.parts.append(
            TextTable(
                "Peers whose trust fell below the threshold of suspicion",
                ("Peer", "Suspected", "Quarantined", "Lowest trust", "Why", "Planned"),
                tuple(rows[:LISTED_MAX]),
                frozenset({0, 3}),
            )
        )
        if len(rows) > LISTED_MAX:
            found.text.append(f"The table has the first {LISTED_MAX} of {len(rows)} peers.")
    else:
        found.text.append(nobody_suspected(run))
    return found


def nobody_suspected(run: RecordedRun) -> str:
    """In words, and whether that is good."""
    unseen = unseen_liars(run)
    but = f", though {peers(unseen)} lied, as planned" if unseen else ""
    return f"Nobody came under suspicion{but}."


def unseen_liars(run: RecordedRun) -> list[int]:
    """Peers that lied by the plan and never came under suspicion."""
    return sorted(set(run.plan.byzantine) - run.view.suspicions.keys())


def _chart(run: RecordedRun, trust: Points, marks: tuple[Mark, ...]) -> Chart:
    about = "1 is full trust. A peer is suspected, and later quarantined, below the lines of " + (
        f"{number(run.settings.suspect_below)} and {number(run.settings.quarantine_below)}."
    )
    if len(trust.peers) <= curves.EACH_MAX:
        buckets = curves.buckets_for(run)
        lines = tuple(
            Line(
                named(run, peer),
                buckets.centers,
                buckets.held(trust.x(peer) - run.began, trust.y(peer)),
                style,
            )
            for style, peer in enumerate(trust.peers)
        )
        return LineChart(
            "chart-trust", "Trust", about, lines, run.duration_s, marks, bottom=0.0, top=1.05
        )
    names, row_of = curves.groups_of(trust.peers)
    buckets = heat_buckets(run)
    values = np.full((len(names), buckets.count), np.nan)
    for peer in trust.peers:
        held = buckets.held(trust.x(peer) - run.began, trust.y(peer))
        values[row_of[peer]] = np.fmin(values[row_of[peer]], held)
    return HeatMap(
        "chart-trust",
        "Lowest trust in each group of peers",
        about,
        names,
        1 - np.clip(values, 0, 1),
        run.duration_s,
        "trusted (1)",
        "not trusted (0)",
        marks,
    )


def _reasons(run: RecordedRun, trust: Points) -> list[tuple[str, ...]]:
    first: dict[tuple[type[Event], int], Judgement] = {}
    for event in select(run.events, events.Suspected, events.Quarantined):
        first.setdefault((type(event), event.subject), event)

    def when(kind: type[Event], peer: int) -> str:
        event = first.get((kind, peer))
        if event is None:
            return NONE
        return f"{clock(run.since(event.t), exact=True)} (round {event.round})"

    found: list[tuple[str, ...]] = []
    for peer, why in sorted(run.view.suspicions.items()):
        scores = trust.y(peer)
        lowest = float(scores.min()) if len(scores) else why.trust
        lies = run.view.rows[peer].lie if peer in run.view.rows else ""
        found.append(
            (
                str(peer),
                when(events.Suspected, peer),
                when(events.Quarantined, peer),
                number(lowest, 2),
                "; ".join(why.reasons) or NONE,
                lies or "no",
            )
        )
    return found
