"""Incidents of a run as lines for a terminal, for ``gossip top`` and ``explain``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from gossip.launch.report import notes, run_state
from gossip.launch.report.words import clock
from gossip.run import shown

from . import incidents
from .figures import NONE
from .overview import nothing_noticed, times_of_faults
from .recorded import RecordedRun

INDENT = 13
"""Width of number and time, in columns."""
LISTED_MAX = 60


def lines_of(run: RecordedRun, width: int) -> list[str]:
    """Return lines about all incidents of a run by time, or a line that there are none, and its
    notes."""
    found = incidents.of(run)
    lines: list[str] = []
    if run.origin:
        lines.append(f"It continued at {run.origin}.")
    if found:
        lines.append("Failures and injected faults (times count from the start of the run):")
        if origin := times_of_faults(run, found):
            lines += textwrap.wrap(origin, max(width, 2 * INDENT))
        for incident in found[:LISTED_MAX]:
            lines += _lines(run, incident, width)
    else:
        lines += textwrap.wrap(nothing_noticed(run), max(width, 2 * INDENT))
    if len(found) > LISTED_MAX:
        lines.append(
            f"{len(found) - LISTED_MAX} more: gossip report {run_state.word_for(run.folder)}"
        )
    if run.notes:
        lines += ["", "Notes:"] if lines else ["Notes:"]
        for note in run.notes:
            lines += _under(note_time(note, run.began), f"{note.text} ({note.by})", width)
    return lines


def note_time(note: notes.Note, began: float) -> str:
    """Return the time of a note since the beginning of the run."""
    return "before" if note.wall < began else clock(note.wall - began, exact=True)


def _lines(run: RecordedRun, one: incidents.Incident, width: int) -> list[str]:
    when = NONE if one.t is None else run.clock(one.t)
    at = (
        f"round {one.round}"
        if one.round is not None and one.round >= 0 and one.t is not None
        else ""
    )
    who = incidents.who(run, one)
    text = ", ".join(filter(None, (at, who)))
    lines = _under(
        f"{one.number:>3}  {when}", ": ".join(filter(None, (text, one.described))), width
    )
    for name, said in _effects(one):
        lines += textwrap.wrap(
            f"{name}: {shown(said)}",
            max(width, 2 * INDENT),
            initial_indent=" " * INDENT,
            subsequent_indent=" " * (INDENT + 2),
            break_on_hyphens=False,
        )
    return lines


def _effects(one: incidents.Incident) -> Iterator[tuple[str, str]]:
    for name, said in (("noticed", one.noticed), ("back", one.back), ("effect", one.effect)):
        if said and said != NONE:
            yield name, said


def _under(begin: str, text: str, width: int) -> list[str]:
    """Return ``text`` in a column to the right of ``begin``."""
    return textwrap.wrap(
        shown(text),
        max(width, 2 * INDENT),
        initial_indent=f"{begin:<{INDENT - 1}} ",
        subsequent_indent=" " * INDENT,
        break_on_hyphens=False,
    )
