"""Incidents of a run as lines for a terminal, for ``gossip top`` and ``explain``."""

from __future__ import annotations

import textwrap

from gossip.launch.report import run_state
from gossip.run import shown

from . import incidents
from .figures import NONE
from .overview import nothing_noticed, times_of_faults
from .recorded import RecordedRun

INDENT = 13
"""Width of number and time, in columns."""
LISTED_MAX = 60


def lines_of(run: RecordedRun, width: int) -> list[str]:
    """Return lines about all incidents of a run by time, or a line that there are none."""
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
    return lines


def _lines(run: RecordedRun, one: incidents.Incident, width: int) -> list[str]:
    when = NONE if one.t is None else run.clock(one.t)
    at = (
        f"round {one.round}"
        if one.round is not None and one.round >= 0 and one.t is not None
        else ""
    )
    text = ", ".join(filter(None, (at, incidents.who(run, one))))
    described = ": ".join(filter(None, (text, one.described)))
    lines = _under(f"{one.number:>3}  {when}", described, width)
    for name, said in (("noticed", one.noticed), ("back", one.back), ("effect", one.effect)):
        if said and said != NONE:
            lines += _under("", f"{name}: {said}", width)
    return lines


def _under(begin: str, text: str, width: int) -> list[str]:
    """Return ``text`` in a column to the right of ``begin``."""
    return textwrap.wrap(
        shown(text),
        max(width, 2 * INDENT),
        initial_indent=f"{begin:<{INDENT - 1}} ",
        subsequent_indent=" " * INDENT,
        break_on_hyphens=False,
    )
