"""The first screen of a report: how the run went, and what went wrong in it."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

import numpy as np

from gossip.launch.report.participation import WINDOW
from gossip.launch.report.words import bytes_word, counted
from gossip.observe import events, select

from .charts import Mark, Section, TextTable
from .figures import NONE, clock, lasted, number, peers
from .incidents import Incident, who
from .participation import sent_in_all
from .recorded import RecordedRun
from .trusting import unseen_liars

LISTED_MAX = 60
MARKED_MAX = 20
STATE_WORDS = {
    "running": "goes on",
    "elsewhere": "goes on, on other machines",
    "copy": "is a copy of the folder of another run",
    "ended": "has ended",
    "killed": "was killed",
    "not begun": "has no launcher",
}


@dataclass(frozen=True, slots=True)
class Fact:
    label: str
    value: str
    more: str = ""


def verdict(run: RecordedRun, incidents: list[Incident]) -> str:
    """One or two sentences on how the run went."""
    how = STATE_WORDS[run.state.state]
    if status := run.state.status:
        how = f"has ended: {status}" if run.state.exit_code else "has finished"
    befell = [one for one in incidents if one.t is not None and one.grave >= 2]
    told = f"The run {how}"
    told += f", with exit code {run.state.exit_code}. " if run.state.exit_code else ". "
    if not befell:
        return told + nothing_noticed(run)
    unseen = unseen_liars(run)
    were = "was" if len(unseen) == 1 else "were"
    lied = f" {peers(unseen).capitalize()} lied and {were} never suspected." if unseen else ""
    later = next((one.back for one in befell if one.back.startswith("run ")), "")
    went_on = f"Then {later}. " if later else ""
    return told + (
        f"{went_on}{counted(len(befell), 'incident')} befell "
        f"{peers({peer for one in befell for peer in one.who})}. The table says when, who noticed, "
        f"and what it cost.{lied}"
    )


def nothing_noticed(run: RecordedRun) -> str:
    """Return the text on a run without incidents."""
    refused = sum(run.turns.refused.values())
    told = "Nothing went wrong that anybody noticed"
    if not refused:
        return f"{told}."
    times = "once" if refused == 1 else f"{refused:,} times"
    return f"{told}. A peer refused the result of a server {times}."


def facts(run: RecordedRun) -> list[Fact]:
    """Figures of the run, the most wanted first."""
    each = run.view.local_steps
    told, planned = float(run.view.step * each), (run.view.steps or 0) * each
    steps = max(told, run.series.steps.highest)
    found = [
        Fact("Steps", f"{steps:,.0f}", f"of {planned:,}" if planned else ""),
        Fact("Duration", clock(run.duration_s), _when(run.began)),
        Fact("Rounds per second", *_pace(run)),
    ]
    loss = _last(run, "loss")
    if loss:
        found.append(Fact("Loss at the end", *loss))
    accuracy = run.state.accuracy
    if accuracy is not None:
        found.append(Fact("Accuracy", number(accuracy)))
    liars = len(run.plan.byzantine)
    found.append(Fact("Peers", f"{len(run.peers):,}", f"{liars} lie (planned)" if liars else ""))
    took_part = run.view.participation
    if took_part.mean is not None:
        about = "of those alive"
        if took_part.least is not None:
            about += f"; at least {took_part.least:.0%} in any {WINDOW} rounds"
        found.append(Fact("Took part in a round", f"{took_part.mean:.0%}", about))
    lost = run.outcome.rounds_lost
    lost = len(run.view.lost_rounds) if lost is None else lost
    handed = f"{len(run.turns.handed_on):,} went to another server" if run.turns.handed_on else ""
    found.append(Fact("Rounds lost", f"{lost:,}", handed))
    known = run.outcome.bytes_sent or sent_in_all(run)
    if known:
        found.append(Fact("Sent", bytes_word(known)))
    same = run.outcome.replicas_identical
    if same is not None:
        found.append(Fact("Replicas", "identical" if same else "different"))
    return found


def _when(wall: float) -> str:
    moment = datetime.datetime.fromtimestamp(wall, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def _pace(run: RecordedRun) -> tuple[str, str]:
    duration = run.commits.lasted_s()
    known = duration[np.isfinite(duration)]
    if not len(known) or known.sum() <= 0:
        return _pace_of_steps(run), "by the fastest peer"
    return number(
        len(known) / float(known.sum())
    ), f"median round {lasted(float(np.median(known)))}"


def _pace_of_steps(run: RecordedRun) -> str:
    """Return the rounds a second of the fastest peer, for a topology without commits."""
    rates = [0.0]
    for peer in run.series.steps.peers:
        x, steps = run.series.steps.x(peer), run.series.steps.y(peer)
        if x[-1] > x[0]:
            rounds = float(steps[-1] - steps[0]) / run.view.local_steps
            rates.append(rounds / float(x[-1] - x[0]))
    return number(max(rates) or None)


def _last(run: RecordedRun, name: str) -> tuple[str, str] | None:
    """Return the mean of the last tenth of what honest peers logged, and the mean of the first
    tenth; None: they logged nothing."""
    points = run.series.logged.by_time.get(name) or run.series.losses
    ends, firsts = [], []
    for peer in points.peers:
        row, y = run.view.rows.get(peer), points.y(peer)
        if row is None or not row.lie:
            part = max(1, len(y) // 10)
            ends.append(float(y[-part:].mean()))
            firsts.append(float(y[:part].mean()))
    if not ends:
        return None
    return number(float(np.mean(ends))), f"{number(float(np.mean(firsts)))} at the start"


def incidents_section(run: RecordedRun, incidents: list[Incident], prefix: str) -> Section:
    found = Section("incidents", "What went wrong")
    if not incidents:
        found.text.append("No fault was injected, and nobody noticed any.")
        return found
    rows = tuple(_row(run, one) for one in incidents[:LISTED_MAX])
    head = ("No.", "Time", "Round", "Who", "What", "Noticed", "Back", "Effect")
    anchors = tuple(f"{prefix}incident-{one.number}" for one in incidents[:LISTED_MAX])
    found.parts.append(
        TextTable("Faults, and what became of them", head, rows, frozenset({0, 1, 2}), anchors)
    )
    if len(incidents) > LISTED_MAX:
        found.text.append(f"The table has the first {LISTED_MAX} of {len(incidents)}.")
    found.text.append("The numbers are those above the pictures below. Times count from the start.")
    if origin := times_of_faults(run, incidents):
        found.text.append(origin)
    return found


def times_of_faults(run: RecordedRun, incidents: list[Incident]) -> str:
    """Return a sentence on the moment from which the times of a fault plan count; "": it has
    none."""
    trained = training_began(run)
    timed = any(re.search(r"planned: .*@[\d.]+(ms|s|m)\b", one.what) for one in incidents)
    if trained is None or not timed:
        return ""
    at = clock(run.since(trained), exact=True)
    return f"The times of planned faults (as in @20s) count from when training began, at {at}."


def training_began(run: RecordedRun) -> float | None:
    """When the first peer had everybody whom it waited for; seconds since 1970."""
    return min((event.t for event in select(run.events, events.Ready)), default=None)


def _row(run: RecordedRun, one: Incident) -> tuple[str, ...]:
    when = NONE if one.t is None else clock(run.since(one.t), exact=True)
    return (
        str(one.number),
        when,
        NONE if one.round is None or one.round < 0 else f"{one.round:,}",
        who(run, one).replace("peers ", "").replace("peer ", "") or NONE,
        one.what,
        one.noticed,
        one.back,
        one.effect or NONE,
    )


def marks(run: RecordedRun, incidents: list[Incident]) -> tuple[Mark, ...]:
    """The gravest incidents, for the pictures."""
    timed = [one for one in incidents if one.t is not None]
    chosen = sorted(timed, key=lambda one: (-one.grave, one.number))[:MARKED_MAX]
    return tuple(
        Mark(
            one.number,
            run.since(one.t or 0.0),
            f"{one.number}: {peers(one.who) if one.who else 'rounds'}: {one.what}",
        )
        for one in sorted(chosen, key=lambda one: one.number)
    )
