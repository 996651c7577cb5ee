"""Runs that save to the same folder: of which one may have gone on from a checkpoint of another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gossip.errors import GossipError
from gossip.observe import documents
from gossip.run import checkpoints, read_object

from . import run_state

LOOKED_AT_MAX = 200
"""Maximum number of run folders that are examined, the latest first."""


@dataclass(frozen=True, slots=True)
class RunBeside:
    """A run in the same folder as another one that saves to the same place.

    Attributes:
        began: Seconds since 1970.
        resumes: Whether it was to go on from a checkpoint.
    """

    name: str
    began: float
    resumes: bool


def runs_beside(run: Path, saves_to: Path | None) -> list[RunBeside]:
    """Those beside the run in a folder. ``saves_to``: where its checkpoints are; None: nowhere."""
    found = []
    for folder in run_state.folders(run.parent)[:LOOKED_AT_MAX] if saves_to else []:
        try:
            place = checkpoints.folder_of(folder)
            settings = documents.RunSettings.pick(read_object(folder, "config.json"))
            environment = documents.RunEnvironment.pick(read_object(folder, "environment.json"))
        except GossipError:
            continue  # whoever lists the runs is told of it
        began = environment.started
        if place == saves_to and began is not None and folder.name != run.name:
            found.append(RunBeside(folder.name, began, bool(settings.resume)))
    return found


def last_before(run: Path, saves_to: Path | None, began: float) -> str | None:
    """Name of the last run beside this one that began before it; None: there is none."""
    earlier = [each for each in runs_beside(run, saves_to) if each.began < began]
    return max(earlier, key=lambda each: each.began).name if earlier else None
