"""Samples and checkpoints of a run."""

from __future__ import annotations

from gossip.launch.report.words import bytes_word, clock

from .charts import Section, TextTable
from .figures import NONE
from .recorded import RecordedRun

EPOCHS_MAX = 20
SAVED_MAX = 20


def samples(run: RecordedRun) -> Section:
    found = Section("samples", "Samples")
    ended = sorted(run.view.epochs.ended.items())
    if not ended:
        found.text.append(
            "No epoch was completed, or the data was not sharded (peer.shard(loader))."
        )
        return found
    twice = sum(event.twice or 0 for _, event in ended)
    left = {-1: 0} | {epoch: event.left or 0 for epoch, event in ended}
    found.text.append(
        f"{len(ended):,} epochs were completed. {twice:,} samples were used twice or more. After "
        f"epoch {max(left)}, {left[max(left)]:,} samples of all epochs together were unused."
    )
    if [*left.values()] != sorted(left.values()):
        found.text.append("Below 0: the epoch used samples that earlier epochs had left.")
    rows = tuple(
        (
            str(epoch),
            f"{each.once or 0:,}",
            f"{each.twice or 0:,}",
            f"{left[epoch] - left[epoch - 1]:,}" if epoch - 1 in left else NONE,
            f"{each.rounds or 0:,}",
        )
        for epoch, each in ended[-EPOCHS_MAX:]
    )
    caption = "Completed epochs"
    if len(rows) < len(ended):
        caption = f"The last {len(rows)} of {len(ended):,} completed epochs"
    head = ("Epoch", "Used once", "Twice or more", "Left over", "Rounds")
    found.parts.append(TextTable(caption, head, rows, frozenset(range(5)), folded=len(rows) > 5))
    return found


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
            one.problem or "complete" + "; no earlier round lacked an update" * one.spared,
        )
        for one in run.saved[-SAVED_MAX:]
    )
    if rows:
        head = ("Step", "Written", "Size", "State")
        found.parts.append(TextTable("Checkpoints on disk", head, rows, frozenset({0, 2})))
    return found


def _written(run: RecordedRun, wall: float) -> str:
    if wall < run.began:
        return "before this run"
    return "after this run" if wall > run.ended + 1 else f"at {clock(run.since(wall))}"
