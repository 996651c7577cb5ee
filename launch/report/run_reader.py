"""Incremental reader of a run's folder, for ``gossip top``, ``explain`` and the trackers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from gossip.errors import GossipError
from gossip.faults import FaultPlan, parse
from gossip.observe import PEERS_MAX, CommitRow, Event, documents

from .growing import RunFiles
from .run_model import RunModel
from .run_state import RunState
from .stages import stages_in

HAPPENINGS_KEPT = 500


@dataclass(frozen=True, slots=True)
class Happening:
    """Line that ``RunModel`` returned. ``at``: time of its event in seconds since 1970."""

    at: float
    text: str


class RunReader:
    """Reader of a run's folder, which keeps a model of the run. ``details``: whether the model
    keeps data for reports. No row is read before it is requested.

    Attributes:
        state: State of the run.
        plan: Planned faults; empty if another version of gossip wrote the plan.
        view: Model of the run. Its times are seconds since 1970.
        happenings: Last lines of the model. ``happened``: number of all lines so far.
        broken: Lines about files that cannot be read.
    """

    def __init__(self, folder: Path, details: bool = False) -> None:
        self.folder = folder
        self.files = RunFiles(folder)
        self.state = RunState(folder)
        self.settings, self.environment = self.state.settings, self.state.environment
        self.plan = _read_plan(self.settings)
        self.view = RunModel(
            min(self.settings.peers, PEERS_MAX),
            self.plan,
            self.settings.steps_per_round,
            stages_in(self.settings.pipeline),
            details,
        )
        self.view.machines.environment = self.environment
        self.view.began = self.environment.started  # so that times are as on the launcher's screen
        self.happenings: deque[Happening] = deque(maxlen=HAPPENINGS_KEPT)
        self.happened = 0

    @property
    def broken(self) -> list[str]:
        return list(dict.fromkeys((*self.state.broken, *self.files.broken)))

    def read_events(self) -> Iterator[tuple[Event, list[str]]]:
        """Apply the new events to the model. Yield each event with the lines that the model
        returned for it."""
        for event in self.files.events():
            lines = self.view.apply_recorded(event)
            self.happenings.extend(Happening(event.t, line) for line in lines)
            self.happened += len(lines)
            yield event, lines

    def read_commits(self) -> Iterator[CommitRow]:
        """Apply the new commits to the model. Yield the first commit of each round."""
        yield from filter(self.view.apply_commit, self.files.commits())

    def update(self) -> None:
        """Apply all new rows to the model."""
        deque(chain(self.read_events(), self.read_commits()), 0)


def _read_plan(settings: documents.RunSettings) -> FaultPlan:
    try:
        return parse(settings.faults or [])
    except GossipError:  # a plan of another version
        return FaultPlan()
