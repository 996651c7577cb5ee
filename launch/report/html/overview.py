"""First screen of a report: the outcome of the run, and its incidents."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from gossip.launch.report.participation import WINDOW
from gossip.launch.report.words import bytes_word, clock, counted, lasted

from . import curves
from .charts import Mark, Section, TextTable
from .figures import NONE, number, peers
from .incidents import Incident, who
from .learning import unseen_liars
from .participation import sent_in_all
from .recorded import RecordedRun

HEAD = ("No.", "Time", "Round", "Peers", "What", "Noticed", "Back", "Effect")
LISTED_MAX = 40
HEADLINE_KINDS = 4
MARKED_MAX = 20
STATE_WORDS = {
    "running": "is running",
    "elsewhere": "is running on other machines",
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


def headline(run: RecordedRun, incidents: list[Incident]) -> str:
    """Return a line with the result of a run and its most serious incidents."""
    steps, planned = _steps(run)
    after = f"{steps:,.0f} steps"
    accuracy, loss = run.state.accuracy, _last(run, "loss")
    code = run.state.outcome.exit_code
    finished = run.state.state == "ended" and not code
    if not finished:
        of = f" of {planned:,}" if planned else ""
        how = STATE_WORDS[run.state.state]
        if code:
            how = f"ended with exit code {code} ({run.state.status})"
        found = f"The run {how}, after {steps:,.0f}{of} steps"
    elif accuracy is not None:
        found = f"Accuracy {number(accuracy)} after {after}"
    else:
        found = f"Loss {loss[0]} after {after}" if loss else f"Finished {after}"
    counts: Counter[str] = Counter()
    for one in sorted(incidents, key=lambda one: -one.grave):
        if one.kind and one.t is not None:
            counts[one.kind] += one.count
    told = [_article(count, kind) for kind, count in counts.items()]
    rest = sum(list(counts.values())[HEADLINE_KINDS:])
    told = [*told[:HEADLINE_KINDS], *([counted(rest, "other incident")] if rest else [])]
    if not told:
        return found
    listed = f"{', '.join(told[:-1])} and {told[-1]}" if told[1:] else told[0]
    return f"{found}, {'in spite of' if finished else 'with'} {listed}"


def _article(count: int, kind: str) -> str:
    if count == 1:
        return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    return f"{count:,} {kind}s"


def verdict(run: RecordedRun, incidents: list[Incident]) -> str:
    """Return a text about attacks that no peer noticed, or a text that there was no incident at
    all; "" if neither applies."""
    told = []
    if unseen := unseen_liars(run):
        were = "was" if len(unseen) == 1 else "were"
        told.append(f"{peers(unseen).capitalize()} {were} Byzantine but never suspected.")
    if not any(one.t is not None for one in incidents):
        told.append(nothing_noticed(run))
    return " ".join(told)


def nothing_noticed(run: RecordedRun) -> str:
    """Return the text about a run without incidents."""
    refused = sum(run.view.turns.refused.values())
    if run.view.progress.round < 0 and not len(run.commits):
        return "No round has been trained."
    nothing = "Nothing went wrong that any peer noticed"
    if not refused:
        return f"{nothing}."
    return (
        f"{nothing}. Peers rejected results {counted(refused, 'time')}, and accepted the next "
        "server's. Noisy updates cause this, but so does a server that rarely sends wrong results."
    )


def facts(run: RecordedRun) -> list[Fact]:
    """Return the facts about a run, the most important first."""
    steps, planned = _steps(run)
    found = [
        Fact("Steps", f"{steps:,.0f}", f"of {planned:,}" if planned else ""),
        Fact("Duration", clock(run.duration_s), _when(run.began)),
        *_pace(run),
    ]
    loss = _last(run, "loss")
    if loss:
        found.append(Fact("Loss at the end", *loss))
    accuracy = run.state.accuracy
    if accuracy is not None:
        found.append(Fact("Accuracy", number(accuracy)))
    liars = len(run.plan.byzantine)
    found.append(
        Fact("Peers", f"{len(run.peers):,}", f"{liars} Byzantine (planned)" if liars else "")
    )
    took_part = run.view.progress.participation
    if took_part.mean is not None:
        about = "of those alive"
        if took_part.least is not None:
            about += f"; at least {took_part.least:.0%} in any {WINDOW} rounds"
        found.append(Fact("Took part in a round", f"{took_part.mean:.0%}", about))
    outcome, lost = run.state.outcome, run.state.outcome.rounds_lost
    lost = len(run.view.progress.lost) if lost is None else lost
    handed = f"{len(run.handed_on):,} went to another server" if run.handed_on else ""
    found.append(Fact("Rounds lost", f"{lost:,}", handed))
    known = outcome.bytes_sent or sent_in_all(run)
    if known:
        found.append(Fact("Sent", bytes_word(known)))
    same = outcome.replicas_identical
    if same is not None:
        found.append(Fact("Replicas", "identical" if same else "different"))
    return found


def _steps(run: RecordedRun) -> tuple[float, int]:
    """Return the numbers of completed and of planned steps; 0 if not known."""
    each = run.view.local_steps
    return max(run.view.progress.step * each, run.series.steps.highest), (
        run.view.progress.steps or 0
    ) * each


def _when(wall: float) -> str:
    moment = datetime.datetime.fromtimestamp(wall, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def _pace(run: RecordedRun) -> list[Fact]:
    duration = run.commits.lasted_s
    known = duration[np.isfinite(duration)]
    if known.sum() <= 0:
        return []
    median = f"median round {lasted(run.commits.usual_s)}"
    return [Fact("Rounds per second", number(len(known) / float(known.sum())), median)]


def _last(run: RecordedRun, name: str) -> tuple[str, str] | None:
    """Return the mean of the last tenth of the values of honest peers, and the mean of the first
    tenth, as text. Return None if they logged no value."""
    if (metric := run.series.metrics.get(name)) is None:
        return None
    each = [metric.by_time.y(peer) for peer in curves.honest(run, metric.by_time.peers)]
    if not each:
        return None
    first = np.mean([y[: max(1, len(y) // 10)].mean() for y in each])
    last = np.mean([y[-max(1, len(y) // 10) :].mean() for y in each])
    return number(float(last)), f"{number(float(first))} at the start"


def incidents_section(run: RecordedRun, incidents: list[Incident]) -> Section:
    found = Section("incidents", "What went wrong")
    if not incidents:
        found.text.append("No fault was injected, and no peer noticed any.")
        return found
    for caption, is_fault in (("Injected faults", True), ("Not injected", False)):
        group = [one for one in incidents if bool(one.fault) is is_fault]
        if len(group) > LISTED_MAX:
            caption += f": the first {LISTED_MAX} of {len(group)}"
        rows = tuple(_row(run, one) for one in group[:LISTED_MAX])
        anchors = tuple(f"incident-{one.number}" for one in group[:LISTED_MAX])
        if rows:
            found.parts.append(TextTable(caption, HEAD, rows, frozenset({0, 1, 2}), anchors))
    found.text.append("The charts below show the numbers of incidents. Times count from the start.")
    if origin := times_of_faults(run, incidents):
        found.text.append(origin)
    return found


def times_of_faults(run: RecordedRun, incidents: list[Incident]) -> str:
    """Return a sentence that states when the times of the fault plan began to count; "" if the plan
    has no times."""
    trained = run.view.lives.began_at
    timed = any(re.search(r"@[\d.]+(ms|s|m)\b", one.fault) for one in incidents)
    if trained is None or not timed:
        return ""
    at = run.clock(trained)
    return f"The times of planned faults (such as @20s) count from the start of training, at {at}."


def _row(run: RecordedRun, one: Incident) -> tuple[str, ...]:
    when = NONE if one.t is None else run.clock(one.t)
    return (
        str(one.number),
        when,
        NONE if one.round is None or one.round < 0 else f"{one.round:,}",
        who(run, one).replace("peers ", "").replace("peer ", "") or NONE,
        one.described,
        one.noticed,
        one.back,
        one.effect or NONE,
    )


def marks(run: RecordedRun, incidents: list[Incident]) -> tuple[Mark, ...]:
    """Return marks for the most serious incidents, for charts."""
    timed = [one for one in incidents if one.t is not None]
    chosen = sorted(timed, key=lambda one: (-one.grave, one.number))[:MARKED_MAX]
    return tuple(
        Mark(
            one.number,
            run.since(one.t or 0.0),
            f"{one.number}: {peers(one.who) if one.who else 'rounds'}: {one.described}",
        )
        for one in sorted(chosen, key=lambda one: one.number)
    )
