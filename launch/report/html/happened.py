"""Time line of a run as text: events of machines and training, and notes of users."""

from __future__ import annotations

from gossip.launch.report.folding import EventFolder

from .charts import Section, TextTable
from .figures import peers
from .incidents import Incident
from .recorded import RecordedRun

LINES_MAX = 300
WORDS = {
    "+": "came",
    "-": "out",
    "x": "death",
    "!": "trouble",
    "?": "suspicion",
    "~": "change",
    "=": "progress",
    "*": "fault",
    "|": "pause",
}
"""First character of a line -> kind of the event."""


def section(run: RecordedRun, incidents: list[Incident]) -> Section:
    found = Section("events", "Time line")
    lines = [*_folded(run), *_milestones(run, incidents)]
    notes = [(note.wall, "note", f"{note.text} ({note.by})") for note in run.notes]
    rows = sorted([*lines, *notes])
    found.text += [f"Note ({run.clock(wall)}): {text}" for wall, _, text in notes]
    found.text += [f"{line}." for line in run.broken]
    left_out = len(rows) - LINES_MAX
    if left_out > 0:
        rows = [*rows[: LINES_MAX // 2], *rows[-LINES_MAX // 2 :]]
        found.text.append(
            f"{left_out:,} events in the middle are left out; events.jsonl has all of them."
        )
    if rows:
        head = ("Time", "Kind", "What happened")
        told = tuple((run.clock(wall), kind, text) for wall, kind, text in rows)
        caption = f"{len(rows):,} events; those of one kind are folded"
        found.parts.append(TextTable(caption, head, told, frozenset({0}), folded=True))
    else:
        found.text.append("No event was recorded.")
    return found


def _milestones(run: RecordedRun, incidents: list[Incident]) -> list[tuple[float, str, str]]:
    """Return milestones that no line of the run reports: its start, attacks, restarts of peers,
    checkpoints and its end."""
    trained = run.view.lives.began_at
    begins = f"training continues at {run.origin}" if run.origin else "training begins"
    found = [] if trained is None else [(trained, "progress", begins)]
    found += [
        (each.started_at, "came", f"{each.peer} is restarted, life {each.incarnation + 1}")
        for each in run.view.lives.rejoins
        if each.started_at is not None
    ]
    found += [
        (each.wall, "progress", f"checkpoint of step {each.step:,} (still on disk)")
        for each in run.saved
        if each.wall is not None and run.began <= each.wall <= run.ended + 1
    ]
    found += [
        (one.t, "fault", f"{peers(one.who)}: {one.described}")
        for one in incidents
        if one.t is not None and one.untold
    ]
    if run.state.over and run.state.state != "killed":
        how = run.state.status or run.state.state
        found.append((run.ended, "progress", f"the run is over: {how}"))
    return found


def _folded(run: RecordedRun) -> list[tuple[float, str, str]]:
    folder, found = EventFolder(), []
    t = run.began
    for event, line in run.lines:
        t = event.t
        if not line.startswith("  "):  # Otherwise it is a hint, useful only during the run.
            found += [(t, text) for text in folder.fold(line, t)]
    found += [(t, text) for text in folder.rest(t)]
    return [(t, WORDS.get(text[:1], "event"), text.lstrip("+-x!?~=*| ")) for t, text in found]
