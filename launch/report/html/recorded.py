"""Data of one run for a report, read once from the run's folder."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError
from gossip.faults import FaultPlan
from gossip.launch.report import notes, run_state
from gossip.launch.report.machines import LOAD_HIGH
from gossip.launch.report.run_model import RunModel
from gossip.launch.report.run_reader import RunReader
from gossip.launch.report.words import counted
from gossip.observe import Event, documents, events
from gossip.run import checkpoints, open_in, read_object, real, shown

from .charts import Span
from .columns import CommitColumns, Series
from .membership import Presence

EVENTS_MAX = 200_000
"""Maximum number of events that are kept one by one. Events of every round are counted without
limit."""
TEXT_BYTES_MAX = 2**20
LOAD_AFTER_S = 15.0
"""Time after a moment in which a report of the load counts, in seconds. Nodes report every few
seconds."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """A checkpoint on disk.

    Attributes:
        spared: Whether it is the newest before which no round lacked the update of a peer. It is
            never removed in favour of later ones.
    """

    step: int
    wall: float | None
    nbytes: int | None
    problem: str
    spared: bool = False


class ServerTurns:
    """Rounds that went to further servers, or were closed without a peer.

    Attributes:
        attempts: (round, attempt) -> reasons for the attempt, and the number of peers that reported
            each. The round may have been committed by an earlier server nevertheless.
        handed_on: Round that another server than the first committed -> the reason.
        refused: Server -> number of its results that peers refused.
        late: Round -> (late peers, seconds that the server waited for them).
    """

    def __init__(self) -> None:
        self.attempts: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
        self.handed_on: dict[int, str] = {}
        self.refused: Counter[int] = Counter()
        self.late: dict[int, tuple[tuple[int, ...], float]] = {}

    def record(self, event: Event) -> bool:
        """Record the event. Return whether it is about a server's turn."""
        match event:
            case events.Attempt() if event.round is not None:
                self.attempts[event.round, event.attempt or 0][shown(event.reason)] += 1
            case events.RefusedResult() if event.server is not None:
                self.refused[event.server] += 1
            case events.Late() if event.round is not None:
                missing = tuple(event.missing or ())
                self.late.setdefault(event.round, (missing, event.waited_s or 0.0))
            case _:
                return False
        return True

    def set_handed_on(self, commits: CommitColumns) -> None:
        """Set the reason why each round was handed on: the reason that most peers reported for its
        first attempt after attempt 0."""
        earliest = {number: turn for number, turn in sorted(self.attempts, reverse=True) if turn}
        handed = commits.attempt > 0
        for round_id, made_at in zip(
            commits.round[handed].tolist(), commits.attempt[handed].tolist(), strict=True
        ):
            turn = earliest.get(round_id, made_at + 1)
            reasons = self.attempts[round_id, turn] if turn <= made_at else None
            why = reasons.most_common(1)[0][0] if reasons else "no reason was reported"
            self.handed_on[round_id] = why


@dataclass(slots=True)
class RecordedRun:
    """Record of a run, from its folder. Times are seconds since 1970.

    Attributes:
        config: Settings as written; ``settings``: the part that pages read.
        sources: (key, value, source) of each setting.
        outcome: Outcome of the run; empty unless it has ended.
        view: Model of the run. ``presence``: states of its peers over time.
        lines: Lines of the model, each with its event.
        events: Events, except those of every round.
        broken: A line about each file that cannot be read.
        label: Name on a page with other runs of the same name; "": its own name.
    """

    folder: Path
    state: run_state.RunState
    config: Mapping[str, Any]
    settings: documents.RunSettings
    sources: tuple[tuple[str, str, str], ...]
    environment: documents.RunEnvironment
    outcome: documents.Outcome
    plan: FaultPlan
    view: RunModel
    presence: Presence
    lines: list[tuple[Event, str]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    commits: CommitColumns = field(default_factory=CommitColumns)
    series: Series = field(default_factory=Series)
    turns: ServerTurns = field(default_factory=ServerTurns)
    notes: list[notes.Note] = field(default_factory=list)
    saved: list[SavedState] = field(default_factory=list)
    saves_to: Path | None = None
    broken: list[str] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or self.state.name

    @property
    def duration_s(self) -> float:
        return max(self.ended - self.began, 1e-3)

    @property
    def peers(self) -> list[int]:
        return sorted(self.view.rows)

    @property
    def spans(self) -> dict[int, tuple[Span, ...]]:
        """States of each peer over time."""
        return self.presence.spans(self.began, self.ended)

    def overload(self, peer: int, t: float) -> str:
        """Describe the load of a peer's machine shortly after ``t``; "": it was not too high, or
        was not reported."""
        row, load = self.view.rows.get(peer), self.series.used["load"]
        host = row.host if row is not None else ""
        machine = self.view.machines.machine_of(host)
        beside = [other for other in load.peers if self.view.rows[other].host == host]
        # A load is the mean of a minute, so the next report covers the moment.
        reports = [(x, y) for p in beside for x, y in zip(load.x(p), load.y(p), strict=True)]
        reports = [(x, y) for x, y in reports if t <= x <= t + LOAD_AFTER_S]
        if machine is None or not machine.cores or not reports:
            return ""
        reported = float(min(reports)[1])
        if reported <= LOAD_HIGH * machine.cores:
            return ""
        cores = counted(machine.cores, "core")
        return f"its machine was overloaded then, load {reported:.1f} on {cores}"

    def since(self, t: float) -> float:
        """Return the seconds from the start of the run to ``t``."""
        return max(0.0, t - self.began)


def read(folder: Path) -> RecordedRun:
    """Return the record of the run in ``folder``, which may still be running.

    Raises: ConfigError: There is no such folder, or its settings cannot be read.
    """
    config = read_object(folder, "config.json") or {}
    reader = RunReader(folder)
    run = RecordedRun(
        folder=folder,
        state=run_state.read_state(folder),
        config=config,
        settings=reader.settings,
        sources=tuple(_sources(folder)),
        environment=reader.environment,
        # ``read_state`` reports errors in it.
        outcome=documents.Outcome.pick(run_state.read_known(folder, "summary.json", [])),
        plan=reader.plan,
        view=reader.view,
        presence=Presence(reader.view),
    )
    if run.state.state != "ended":
        # The summary may be of one of several launchers, or of an earlier end.
        run.outcome = documents.Outcome()
    reader.read_events(lambda event, lines: _record(run, event, lines))
    for commit in reader.files.commits():
        run.commits.add(commit)
    run.commits.settle()
    run.turns.set_handed_on(run.commits)
    for row in reader.files.metrics():
        run.series.logged.add(row)
    run.notes = sorted(reader.notes, key=lambda note: note.wall)
    _list_checkpoints(run)
    _set_times(run)
    run.broken += [*run.state.broken, *reader.files.broken]
    return run


def _sources(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield key, value and source of each line of ``config.toml``."""
    try:
        with open_in(folder, "config.toml") as file:
            text = file.read(TEXT_BYTES_MAX).decode("utf-8", "replace")
    except (FileNotFoundError, ConfigError):
        return
    for line in text.splitlines():
        setting, _, source = line.rpartition("  # ")
        key, equals, value = setting.partition(" = ")
        if equals and not key.startswith("#"):
            yield shown(key), shown(value), shown(source)


def _record(run: RecordedRun, event: Event, lines: list[str]) -> None:
    """Record an event that was applied to the model. Events of every round are not kept one by one,
    nor are lines about epochs, which would outnumber all others."""
    run.presence.record(event)
    match event:
        case events.Round():
            run.series.record_round(event, run.view.local_steps)
        case events.Usage():
            run.series.record_usage(event, vars(event))
        case events.Epoch() | events.Metrics():
            return
        case _ if run.turns.record(event):
            pass
        case _ if len(run.events) < EVENTS_MAX:
            run.events.append(event)
    if isinstance(event, events.Halted) and event.traffic is not None:
        run.series.record_usage(event, event.traffic)
    run.lines += [(event, shown(line)) for line in lines]


def _list_checkpoints(run: RecordedRun) -> None:
    try:
        run.saves_to = checkpoints.folder_of(run.folder)
        there = checkpoints.listed(run.saves_to) if run.saves_to is not None else []
    except ConfigError as error:
        run.broken.append(str(error))
        return
    lacks_none: int | None = None  # the newest one before which no round lacked an update
    for step, path in there:
        try:
            found = checkpoints.open_at(path)
        except ConfigError as error:
            run.saved.append(SavedState(step, None, None, str(error)))
        else:
            wall = real(found.manifest.get("wall_time_s"))
            run.saved.append(SavedState(step, wall, found.nbytes, ""))
            lacks_none = len(run.saved) - 1 if found.everybody else lacks_none
    if lacks_none is not None and lacks_none < len(run.saved) - 1:
        run.saved[lacks_none] = replace(run.saved[lacks_none], spared=True)


def _set_times(run: RecordedRun) -> None:
    """Set start and end of the run: the times of the first and the last row of a launcher or
    peer."""
    times = [event.t for event in (run.events[:1] + run.events[-1:]) if event.t > 0]
    logged = [metric.by_time for metric in run.series.logged.found.values()]
    for points in (run.series.steps, *logged):
        for peer in points.peers:
            x = points.x(peer)
            times += [float(x[0]), float(x[-1])]
    if len(run.commits):
        times += [float(run.commits.t.min()), float(run.commits.t.max())]
    run.began = min(times, default=run.state.began or time.time())
    run.ended = max(times, default=run.began)
