"""Origin of a resumed run."""

from __future__ import annotations

from pathlib import Path

from gossip.errors import GossipError
from gossip.launch.report import run_state
from gossip.observe import documents
from gossip.run import checkpoints, read_object

from .recorded import RecordedRun

LOOKED_AT_MAX = 200
"""Maximum number of run folders that are examined, the latest first."""


def resumed_from(run: RecordedRun) -> tuple[str, int] | None:
    """Return the run from which this one resumed, and the step of the checkpoint; None: the run did
    not resume, or the other run is not known."""
    step = _begins_after(run)
    if not run.settings.resume or step <= 0 or run.saves_to is None:
        return None
    beside = run_state.folders(run.folder.parent)[:LOOKED_AT_MAX]
    began = {
        folder.name: at
        for folder in beside
        if folder.name != run.folder.name and (at := _began(folder, run.saves_to)) < run.began
    }
    return (max(began, key=began.__getitem__), step) if began else None


def _began(folder: Path, saves_to: Path) -> float:
    """Return when a run that saves to the folder ``saves_to`` began, in seconds since 1970;
    infinity for another run."""
    try:
        if checkpoints.folder_of(folder) != saves_to:
            return float("inf")
        environment = documents.RunEnvironment.pick(read_object(folder, "environment.json"))
    except GossipError:
        return float("inf")  # ``gossip ls`` reports the file.
    return float("inf") if environment.started is None else environment.started


def _begins_after(run: RecordedRun) -> int:
    """Return the number of steps before the first one of this run; 0 or less: it did not resume."""
    each = run.view.local_steps
    if len(run.commits):
        return int(run.commits.round.min()) * each
    steps = run.series.steps
    return int(min([float(steps.y(peer)[0]) for peer in steps.peers], default=each)) - each
