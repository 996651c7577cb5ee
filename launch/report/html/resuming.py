"""Which run went on from a checkpoint of another."""

from __future__ import annotations

from collections.abc import Sequence

from gossip.errors import GossipError
from gossip.launch.report import run_state
from gossip.run import checkpoints, read_object, real

from .incidents import Continuation
from .recorded import RecordedRun, read

LOOKED_AT_MAX = 200
"""So many runs beside one are looked at, the latest first."""


def resumed(runs: Sequence[RecordedRun]) -> list[tuple[RecordedRun, RecordedRun, float]]:
    """Pairs of runs of which the second went on from a checkpoint of the first, and the seconds
    between them: both save to the same folder, and the second was told to resume."""
    found = []
    ordered = sorted(runs, key=lambda run: run.began)
    for at, run in enumerate(ordered):
        later = [
            other
            for other in ordered[at + 1 :]
            if other.config.get("resume")
            and run.saves_to is not None
            and other.saves_to == run.saves_to
            and other.began >= run.ended
        ]
        if later:
            found.append((run, later[0], later[0].began - run.ended))
    return found


def resumed_by(run: RecordedRun) -> Continuation | None:
    """The first run beside this one that went on from a checkpoint of it; None: there is none that
    is known."""
    later = [
        (began, name) for name, began, resumes in _beside(run) if resumes and began >= run.ended
    ]
    return continuation(read(run.folder.parent / min(later)[1])) if later else None


def continuation(later: RecordedRun) -> Continuation:
    """What a run that was told to resume is to the one before."""
    return Continuation(later.name, later.began, _begins_after(later))


def _begins_after(run: RecordedRun) -> int:
    """How many steps lie behind a run when it begins; 0 or less: it begins anew."""
    firsts = [float(run.steps.y(peer)[0]) for peer in run.steps.peers]
    return int(run.commits.round.min()) if len(run.commits) else int(min(firsts, default=1)) - 1


def resumed_from(run: RecordedRun) -> tuple[str, int] | None:
    """Name of the last run beside this one from whose checkpoint it went on, and after how many
    steps; None: it began anew, or that is not known."""
    step = _begins_after(run)
    earlier = [(began, name) for name, began, _ in _beside(run) if began < run.began]
    if not run.config.get("resume") or step <= 0 or not earlier:
        return None
    return max(earlier)[1], step


def _beside(run: RecordedRun) -> list[tuple[str, float, bool]]:
    """Of the runs in the same folder that save to the same one: name, beginning, and whether it was
    to go on from a checkpoint."""
    found = []
    folders = run_state.folders(run.folder.parent)[:LOOKED_AT_MAX] if run.saves_to else []
    for folder in folders:
        try:
            saves_to = checkpoints.folder_of(folder)
            config = read_object(folder, "config.json") or {}
            began = real((read_object(folder, "environment.json") or {}).get("started"))
        except GossipError:
            continue  # whoever lists the runs is told of it
        if saves_to == run.saves_to and began is not None and folder.name != run.folder.name:
            found.append((folder.name, began, bool(config.get("resume"))))
    return found
