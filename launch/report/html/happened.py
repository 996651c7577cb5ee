"""The time line of a run in words: what happened to machines and training, and people's notes."""

from __future__ import annotations

from gossip.launch.report.folding import EventFolder

from .charts import Section, TextTable
from .figures import clock
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
"""The first letter of a line -> of which kind it is."""


def section(run: RecordedRun) -> Section:
    found = Section("events", "Time line")
    lines = _folded(run)
    notes = [(note.wall, "note", f"{note.text} ({note.by})") for note in run.notes]
    rows = sorted([*lines, *notes])
    if run.notes:
        found.parts.append(
            TextTable(
                "Notes",
                ("Time", "Note"),
                tuple((_when(run, wall), text) for wall, _, text in sorted(notes)),
                frozenset({0}),
            )
        )
    left_out = len(rows) - LINES_MAX
    if left_out > 0:
        rows = [*rows[: LINES_MAX // 2], *rows[-LINES_MAX // 2 :]]
        found.text.append(
            f"{left_out:,} events in the middle are left out; events.jsonl has all of them."
        )
    if rows:
        head = ("Time", "Kind", "What happened")
        told = tuple((_when(run, wall), kind, text) for wall, kind, text in rows)
        caption = f"{len(rows):,} events, those of a kind folded"
        found.parts.append(TextTable(caption, head, told, frozenset({0}), folded=True))
    else:
        found.text.append("Nothing was written down.")
    return found


def _when(run: RecordedRun, wall: float) -> str:
    if wall < run.began:
        return "before"
    return clock(run.since(wall), exact=True)


def _folded(run: RecordedRun) -> list[tuple[float, str, str]]:
    folder, found = EventFolder(), []
    t = run.began
    for t, line in run.lines:
        found += [(t, text) for text in folder.said(line, t)]
    found += [(t, text) for text in folder.rest(t)]
    return [(t, WORDS.get(text[:1], "event"), text.lstrip("+-x!?~=*| ")) for t, text in found]
