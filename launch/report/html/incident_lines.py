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
"""Width of the number and the time of an incident, in columns."""
LISTED_MAX = 60


def lines_of(run: RecordedRun, width: int) -> list[str]:
    """Return lines about all incidents of a run, ordered by time, or a text that there are none."""
    found, width = incidents.of(run), max(width, 2 * INDENT)
    lines = [f"It continued at {run.origin}."] if run.origin else []
    if not found:
        return lines + textwrap.wrap(nothing_noticed(run), width)
    lines.append("Failures and injected faults (times count from the start of the run):")
    lines += textwrap.wrap(times_of_faults(run, found), width)
    for incident in found[:LISTED_MAX]:
        lines += _lines(run, incident, width)
    if len(found) > LISTED_MAX:
        lines.append(
            f"{len(found) - LISTED_MAX} more: gossip report {run_state.word_for(run.folder)}"
        )
    return lines


def _lines(run: RecordedRun, one: incidents.Incident, width: int) -> list[str]:
    when, at = NONE if one.t is None else run.clock(one.t), ""
    if one.round is not None and one.round >= 0 and one.t is not None:
        at = f"round {one.round}"
    text = ", ".join(filter(None, (at, incidents.who(run, one))))
    begin = f"{f'{one.number:>3}  {when}':<{INDENT - 1}} "
    lines = _wrap(": ".join(filter(None, (text, one.described))), width, begin)
    for name, said in (("noticed", one.noticed), ("back", one.back), ("effect", one.effect)):
        if said and said != NONE:
            lines += _wrap(f"{name}: {said}", width, " " * INDENT, 2)
    return lines


def _wrap(text: str, width: int, begin: str, more: int = 0) -> list[str]:
    """Return ``text`` as lines in a column to the right of ``begin``. Lines after the first are
    indented by ``more`` further blanks."""
    return textwrap.wrap(
        shown(text),
        width,
        initial_indent=begin,
        subsequent_indent=" " * (INDENT + more),
        break_on_hyphens=False,
    )
