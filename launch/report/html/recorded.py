"""All that a report needs of one run's folder, read once."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError, GossipError
from gossip.faults import FaultPlan, parse
from gossip.launch.report import notes, run_state
from gossip.launch.report.growing import RunFiles
from gossip.launch.report.machines import Machines
from gossip.launch.report.run_model import RunModel
from gossip.launch.report.stages import stages_in
from gossip.observe import PEERS_MAX, Event, PeerEvent, events
from gossip.run import checkpoints, open_in, read_object, real, shown, whole

from .columns import CommitColumns, Logged, Points, columns_of

EVENTS_MAX = 200_000
"""Maximum number of events that are kept one by one. Events that come with every round are
counted without limit."""
USED = ("sent_bytes", "received_bytes", "cpu_s", "memory")
TEXT_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True)
class SavedState:
    """A checkpoint that is on disk now.

    Attributes:
        spared: Before it no round lacked the update of a peer, and of later ones that is not so:
            it stays however many there are.
    """

    step: int
    wall: float | None
    nbytes: int | None
    problem: str
    spared: bool = False


@dataclass(slots=True)
class RecordedRun:
    """A run as its folder tells it. Times are seconds since 1970.

    Attributes:
        config, environment, summary: As written; empty where there is none.
        settings: (key, value, where it came from) of each setting.
        view: What the launcher would know.
        lines: What happened, in words, and when.
        events: Events that do not come with every round.
        steps: Round reports: how many steps of its script each peer has done, several a round
            with local steps.
        losses: Of the same reports.
        consensus: Consensus distances that peers measured.
        used: Of each name in ``USED`` what peers told of themselves; counters begin anew with
            each life of a peer.
        attempts: (round, attempt) -> reasons for it, and how many peers gave each. Where the round
            was made by an earlier server, its peers have come back to that.
        handed_on: round that another server than the first has made -> why.
        late: round -> (who was waited for, seconds).
        broken: A line on each file that is none of a run's.
        label: Its name on a page with others of the same name; "": its own.
    """

    folder: Path
    state: run_state.RunState
    config: Mapping[str, Any]
    settings: tuple[tuple[str, str, str], ...]
    environment: Mapping[str, Any]
    summary: Mapping[str, Any]
    plan: FaultPlan
    view: RunModel
    lines: list[tuple[float, str]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    commits: CommitColumns = field(default_factory=CommitColumns)
    logged: Logged = field(default_factory=Logged)
    steps: Points = field(default_factory=Points)
    losses: Points = field(default_factory=Points)
    trust: Points = field(default_factory=Points)
    consensus: Points = field(default_factory=Points)
    used: dict[str, Points] = field(default_factory=lambda: {name: Points() for name in USED})
    attempts: dict[tuple[int, int], Counter[str]] = field(default_factory=dict)
    handed_on: dict[int, str] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    late: dict[int, tuple[tuple[int, ...], float]] = field(default_factory=dict)
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

    def since(self, t: float) -> float:
        """Seconds from the start of the run to a moment."""
        return max(0.0, t - self.began)


def read(folder: Path) -> RecordedRun:
    """The run in ``folder``: what it has written so far, whether it goes on or not.

    Raises: ConfigError: There is no such folder, or its settings cannot be read.
    """
    config = read_object(folder, "config.json") or {}
    run = RecordedRun(
        folder=folder,
        state=run_state.read_state(folder),
        config=config,
        settings=tuple(_settings(folder)),
        # ``read_state`` says what is wrong with them
        environment=run_state.read_known(folder, "environment.json", []) or {},
        summary=run_state.read_known(folder, "summary.json", []) or {},
        plan=_plan(config),
        view=RunModel(
            0,
            local_steps=_steps_of_round(config),
            stages=stages_in(config.get("pipeline")),
        ),
    )
    if run.state.state != "ended":
        run.summary = {}  # of one launcher of several, or of none that has seen the end
    run.view.machines = Machines(run.environment)
    files = RunFiles(folder)
    _read_events(run, files)
    run.commits = columns_of(files.commits())
    _set_handed_on(run)
    for row in files.metrics():
        run.logged.add(row)
    run.notes = notes.read(files.notes())
    _list_checkpoints(run)
    _set_times(run)
    run.broken += [*run.state.broken, *files.broken]
    return run


def _steps_of_round(config: Mapping[str, Any]) -> int:
    """Return the script's steps in a round, as ``RunConfig.steps_per_round``, from a config that
    may hold anything."""
    local, fragments = whole(config.get("local_steps")), whole(config.get("fragments"))
    return max(1, (local or 1) // max(1, fragments or 1))


def _plan(config: Mapping[str, Any]) -> FaultPlan:
    words = config.get("faults")
    try:
        return parse([str(word) for word in words]) if isinstance(words, list) else FaultPlan()
    except GossipError:  # of another version
        return FaultPlan()


def _settings(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Key, value and source of each line of ``config.toml``."""
    try:
        with open_in(folder, "config.toml") as file:
            text = file.read(TEXT_BYTES_MAX).decode("utf-8", "replace")
    except (FileNotFoundError, ConfigError):
        return
    for line in text.splitlines():
        told, _, source = line.rpartition("  # ")
        key, equals, value = told.partition(" = ")
        if equals and not key.startswith("#"):
            yield shown(key), shown(value), shown(source)


def _read_events(run: RecordedRun, files: RunFiles) -> None:
    _expect(run)
    for event in files.events():
        if event.peer is not None:
            _add_sender(run.view, event.peer, event)
        if not _count(run, event):
            _keep(run, event)
        elif not isinstance(event, events.Round):
            continue
        run.lines += [(event.t, shown(line)) for line in run.view.apply(event)]


def _expect(run: RecordedRun) -> None:
    """Those who began, and what they are to lie about."""
    view = run.view
    for peer in range(min(whole(run.config.get("peers")) or 0, PEERS_MAX)):
        view.expect(peer)
    for peer in run.plan.byzantine:
        if peer in view.rows:
            view.rows[peer].lie = "+".join(run.plan.attack_kinds(peer))


def _add_sender(view: RunModel, peer: int, event: Event) -> None:
    """Add a peer that joined later to the view at its first row."""
    row = view.rows.get(peer)
    if row is None or (row.state == "elsewhere" and isinstance(event, events.Started)):
        view.expect(peer)


def _keep(run: RecordedRun, event: Event) -> None:
    if len(run.events) < EVENTS_MAX:
        run.events.append(event)
    if isinstance(event, events.Halted) and event.traffic is not None:
        _add_used(run, event, event.traffic)


def _record_round(run: RecordedRun, event: events.Round) -> None:
    if event.round is None:
        return
    steps = event.step or event.round + 1
    run.steps.add(event.peer, event.t, steps * run.view.local_steps)
    if event.loss is not None:
        run.losses.add(event.peer, event.t, event.loss)
    if event.consensus_distance is not None:
        run.consensus.add(event.peer, event.t, event.consensus_distance)
    if event.server is None:
        for subject, score in event.scores.items():
            run.trust.add(subject, event.t, score)


def _add_used(run: RecordedRun, event: PeerEvent, used: Mapping[str, Any]) -> None:
    for name, points in run.used.items():
        if (value := used.get(name)) is not None:
            points.add(event.peer, event.t, value)


def _count(run: RecordedRun, event: Event) -> bool:
    """Record an event that comes with every round. Return whether it is one: these are not kept one
    by one."""
    match event:
        case events.Round():
            _record_round(run, event)
        case events.Usage():
            run.view.apply(event)
            _add_used(run, event, vars(event))
        case events.Attempt() if event.round is not None:
            turn = event.round, event.attempt or 0
            run.attempts.setdefault(turn, Counter())[shown(event.reason)] += 1
        case events.RefusedResult() if event.server is not None:
            run.refused[event.server] += 1
        case events.Late() if event.round is not None:
            missing = tuple(event.missing or ())
            run.late.setdefault(event.round, (missing, event.waited_s or 0.0))
        case events.Epoch():
            run.view.apply(event)  # without a line: they would outnumber all others
        case events.Metrics():  # metrics.jsonl has each of them, and these are only some
            pass
        case _:
            return False
    return True


def _list_checkpoints(run: RecordedRun) -> None:
    try:
        run.saves_to = checkpoints.folder_of(run.folder)
        there = checkpoints.listed(run.saves_to) if run.saves_to is not None else []
    except ConfigError as error:
        run.broken.append(str(error))
        return
    lacks_none: int | None = None  # the newest before which no round lacked an update
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


def _set_handed_on(run: RecordedRun) -> None:
    """Set the reason why each round was handed on: the reason that most peers reported for its
    first attempt after attempt 0."""
    earliest = {number: turn for number, turn in sorted(run.attempts, reverse=True) if turn}
    handed = run.commits.attempt > 0
    for round_id, made_at in zip(
        run.commits.round[handed].tolist(), run.commits.attempt[handed].tolist(), strict=True
    ):
        turn = earliest.get(round_id, made_at + 1)
        reasons = run.attempts[round_id, turn] if turn <= made_at else None
        run.handed_on[round_id] = reasons.most_common(1)[0][0] if reasons else "no reason was told"


def _set_times(run: RecordedRun) -> None:
    """Set the start and the end of the run: the times of the first and the last row of a launcher
    or peer."""
    times = [event.t for event in (run.events[:1] + run.events[-1:]) if event.t > 0]
    for points in (run.steps, *run.logged.by_time.values()):
        for peer in points.peers:
            x = points.x(peer)
            times += [float(x[0]), float(x[-1])]
    if len(run.commits):
        times += [float(run.commits.t.min()), float(run.commits.t.max())]
    run.began = min(times, default=run.state.began or time.time())
    run.ended = max(times, default=run.began)
