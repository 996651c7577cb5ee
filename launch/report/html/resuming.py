"""The run from whose checkpoint another one went on."""

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
    """Name of the last run beside this one from whose checkpoint it went on, and after how many
    steps; None: it began anew, or that is not known."""
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
    """Return when a run began that saves to that folder, in seconds since 1970; of another run
    infinity."""
    try:
        if checkpoints.folder_of(folder) != saves_to:
            return float("inf")
        environment = documents.RunEnvironment.pick(read_object(folder, "environment.json"))
    except GossipError:
        return float("inf")  # ``gossip ls`` names the file
    return float("inf") if environment.started is None else environment.started


def _begins_after(run: RecordedRun) -> int:
    """Return how many steps of the script lie behind a run when it begins; 0 or less: it begins
    anew."""
    each = run.view.local_steps
    if len(run.commits):
        return int(run.commits.round.min()) * each
    steps = run.series.steps
    return int(min([float(steps.y(peer)[0]) for peer in steps.peers], default=each)) - each
