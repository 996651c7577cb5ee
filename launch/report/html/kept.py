"""Samples and checkpoints: what was read, and what is left."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from gossip.launch.report.words import bytes_word
from gossip.run import whole

from .charts import Section, TextTable
from .figures import NONE, clock
from .recorded import RecordedRun

EPOCHS_MAX = 20
SAVED_MAX = 20


def samples(run: RecordedRun) -> Section:
    found = Section("samples", "Samples")
    rows = _epochs(run)
    if not rows:
        found.text.append(
            "No epoch was completed, or the data was not sharded (peer.shard(loader))."
        )
        return found
    twice = sum(row[1] for row in rows)
    left = rows[-1][2]
    found.text.append(
        f"{len(rows):,} epochs were completed. {twice:,} samples were used twice or more; "
        f"{left:,} were left unread at the end of the last one."
    )
    total = run.summary.get("samples")
    if isinstance(total, dict):
        found.text.append(
            f"Over the whole run, counted from commits: {_count(total, 'once')} used once, "
            f"{_count(total, 'twice')} twice or more, {_count(total, 'never')} never."
        )
    shown = rows[-EPOCHS_MAX:]
    return_rows = tuple(
        (str(epoch), f"{once:,}", f"{more:,}", f"{rest:,}", f"{rounds:,}")
        for epoch, more, rest, once, rounds in shown
    )
    caption = "Completed epochs"
    if len(shown) < len(rows):
        caption = f"The last {len(shown)} of {len(rows):,} completed epochs"
    head = ("Epoch", "Used once", "Twice or more", "Left for the next", "Rounds")
    found.parts.append(
        TextTable(caption, head, return_rows, frozenset(range(5)), folded=len(shown) > 5)
    )
    return found


def _epochs(run: RecordedRun) -> list[tuple[int, int, int, int, int]]:
    """Epoch, samples used twice, left, used once, rounds: as the peers told it."""

    def count(row: Mapping[str, Any], name: str) -> int:
        return whole(row.get(name)) or 0

    return [
        (epoch, count(row, "twice"), count(row, "left"), count(row, "once"), count(row, "rounds"))
        for epoch, row in sorted(run.epochs.items())
    ]


def _count(found: Mapping[str, Any], name: str) -> str:
    value = whole(found.get(name))
    return NONE if value is None else f"{value:,}"


def saved_states(run: RecordedRun) -> Section:
    found = Section("checkpoints", "Checkpoints")
    if run.saves_to is None:
        found.text.append("The script of this run saved none (peer.steps(N, save=FOLDER) does).")
        return found
    every = run.view.saves_every
    found.text.append(
        f"Saved to {run.saves_to}"
        + (f", every {every:,} steps." if every else ".")
        + f" {len(run.saved)} are there now."
    )
    if run.view.not_saved:
        found.text.append(f"The last one is not there: {run.view.not_saved}")
    rows = []
    for one in run.saved[-SAVED_MAX:]:
        when, by = NONE, NONE
        if one.wall is not None:
            moment = datetime.datetime.fromtimestamp(one.wall, datetime.UTC)
            when = moment.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00") + " UTC"
            by = _written(run, one.wall)
        size = NONE if one.nbytes is None else bytes_word(one.nbytes)
        rows.append((f"{one.step:,}", when, by, size, one.problem or "complete"))
    if rows:
        head = ("Step", "Written", "In this run", "Size", "State")
        found.parts.append(TextTable("Checkpoints on disk", head, tuple(rows), frozenset({0, 3})))
    return found


def _written(run: RecordedRun, wall: float) -> str:
    if wall < run.began:
        return "before it"
    return "after it" if wall > run.ended + 1 else f"at {clock(run.since(wall))}"
