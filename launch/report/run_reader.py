"""Incremental reader of a run's folder, for ``gossip top``, ``explain`` and the trackers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
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
    keeps data for reports. Events and commits are not read before ``update`` is called.

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

    def update(
        self,
        event_taken: Callable[[Event, list[str]], None] | None = None,
        commit_taken: Callable[[CommitRow], None] | None = None,
    ) -> None:
        """Read new rows and apply them to the model.

        Args:
            event_taken: Called with each applied event, and the lines that the model returned for
                it.
            commit_taken: Called with the first commit of each round.
        """
        self.read_events(event_taken)
        for commit in self.files.commits():
            if self.view.apply_commit(commit) and commit_taken is not None:
                commit_taken(commit)

    def read_events(self, event_taken: Callable[[Event, list[str]], None] | None = None) -> None:
        """Read new events, as ``update`` does, but no commits."""
        for event in self.files.events():
            lines = self.view.apply_recorded(event)
            self.happenings.extend(Happening(event.t, line) for line in lines)
            self.happened += len(lines)
            if event_taken is not None:
                event_taken(event, lines)


def _read_plan(settings: documents.RunSettings) -> FaultPlan:
    try:
        return parse(settings.faults or [])
    except GossipError:  # a plan of another version
        return FaultPlan()
