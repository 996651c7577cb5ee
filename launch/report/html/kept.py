"""Samples and checkpoints of a run."""

from __future__ import annotations

from gossip.launch.report.words import bytes_word, clock

from .charts import Section, TextTable
from .figures import NONE
from .recorded import RecordedRun, SavedState

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
        f"{left:,} of all epochs were left over at the end."
    )
    shown = rows[-EPOCHS_MAX:]
    return_rows = tuple(
        (str(epoch), f"{once:,}", f"{more:,}", f"{rest:,}", f"{rounds:,}")
        for epoch, more, rest, once, rounds in shown
    )
    caption = "Completed epochs"
    if len(shown) < len(rows):
        caption = f"The last {len(shown)} of {len(rows):,} completed epochs"
    head = ("Epoch", "Used once", "Twice or more", "Left over", "Rounds")
    found.parts.append(
        TextTable(caption, head, return_rows, frozenset(range(5)), folded=len(shown) > 5)
    )
    return found


def _epochs(run: RecordedRun) -> list[tuple[int, int, int, int, int]]:
    """Return epoch, samples used twice, samples left, samples used once, and rounds, as peers
    reported them."""
    return [
        (epoch, event.twice or 0, event.left or 0, event.once or 0, event.rounds or 0)
        for epoch, event in sorted(run.view.epochs.ended.items())
    ]


def saved_states(run: RecordedRun) -> Section:
    found = Section("checkpoints", "Checkpoints")
    if run.saves_to is None:
        found.text.append(
            "The script of this run saved none (peer.steps(N, save=FOLDER) saves them)."
        )
        return found
    every = run.view.progress.saves_every
    found.text.append(
        f"Saved to {run.saves_to}"
        + (f", every {every:,} steps." if every else ".")
        + f" {len(run.saved)} exist now."
    )
    if whole_ones := [one for one in run.saved if not one.problem]:
        newest = whole_ones[-1]
        by = f", written {_written(run, newest.wall)}" if newest.wall is not None else ""
        found.text.append(
            f"The newest checkpoint{by}: {run.saves_to}/step-{newest.step:09d}. gossip checkpoints "
            "export makes one file of its model, which safetensors.torch.load_file reads."
        )
    if run.view.lives.not_saved:
        found.text.append(f"The last one was not written: {run.view.lives.not_saved}")
    rows = tuple(
        (
            f"{one.step:,}",
            NONE if one.wall is None else _written(run, one.wall),
            NONE if one.nbytes is None else bytes_word(one.nbytes),
            one.problem or _state(one),
        )
        for one in run.saved[-SAVED_MAX:]
    )
    if rows:
        head = ("Step", "Written", "Size", "State")
        found.parts.append(TextTable("Checkpoints on disk", head, rows, frozenset({0, 2})))
    return found


def _state(one: SavedState) -> str:
    return "complete; no earlier round lacked an update" if one.spared else "complete"


def _written(run: RecordedRun, wall: float) -> str:
    if wall < run.began:
        return "before this run"
    return "after this run" if wall > run.ended + 1 else f"at {clock(run.since(wall))}"
