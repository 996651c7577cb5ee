"""All that a report needs of one run's folder, read once."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError, GossipError
from gossip.faults import FaultPlan, parse
from gossip.launch.report import notes, run_state
from gossip.launch.report.growing import RunFiles
from gossip.launch.report.machines import Machines
from gossip.launch.report.stages import stages_in
from gossip.launch.report.view import RunView
from gossip.run import PEERS_MAX, checkpoints, open_in, read_object, real, shown, text_of, whole

from .columns import CommitColumns, Logged, Points, columns_of

EVENTS_MAX = 200_000
"""Maximum number of events that are kept one by one. Events of ``COUNTED`` are counted without
limit."""
FED_EVERY_S = 1.0
"""Seconds between rows of a peer's rounds that reach the view: a peer reports progress ten times a
second. A row on rounds that no other peer has reported always reaches the view."""
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
        events: Rows that are not told of every round.
        steps: Round reports: how many steps of its script each peer has done, several a round
            with local steps.
        losses: Of the same reports.
        consensus: Consensus distances that peers measured.
        used: Of each name in ``USED`` what peers told of themselves; counters begin anew with
            each life of a peer.
        hosts: On which each peer runs, where a launcher has said so; ``machines``: what peers have
            told of them.
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
    view: RunView
    lines: list[tuple[float, str]] = field(default_factory=list)
    events: list[Mapping[str, Any]] = field(default_factory=list)
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
    epochs: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    notes: list[notes.Note] = field(default_factory=list)
    saved: list[SavedState] = field(default_factory=list)
    saves_to: Path | None = None
    hosts: dict[int, str] = field(default_factory=dict)
    machines: Machines = field(default_factory=Machines)
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
        view=RunView(
            0,
            local_steps=_steps_of_round(config),
            stages=stages_in(config.get("pipeline")),
        ),
    )
    if run.state.state != "ended":
        run.summary = {}  # of one launcher of several, or of none that has seen the end
    run.machines = Machines(run.environment)
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
    fed: dict[int, float] = {}  # peer -> when a round of it is news for the view again
    for row in files.events():
        name, peer = str(row.get("event")), row.get("peer")
        if peer is not None:
            _add_sender(run.view, peer, name)
        if name in COUNTED:
            if peer is not None:
                COUNTED[name](run, peer, row)
            if name != "round" or peer is None:
                continue
            if row["t"] < fed.get(peer, 0.0) and not _is_news(run.view, row):
                continue
            fed[peer] = row["t"] + FED_EVERY_S
        else:
            if peer is not None:
                fed[peer] = 0.0  # its next round may be the first after a return
            _keep(run, name, peer, row)
        run.lines += [(row["t"], line) for line in _lines_of(run.view, row)]


def _is_news(view: RunView, row: Mapping[str, Any]) -> bool:
    """Whether a row tells of rounds that no row has told of. Those before the newest are missing
    where somebody was killed, or came back: the others may tell of them a moment later."""
    return (whole(row.get("round")) or 0) > view.round or view.has_new_participation(row)


def _expect(run: RecordedRun) -> None:
    """Those who began, and what they are to lie about."""
    view = run.view
    for peer in range(min(whole(run.config.get("peers")) or 0, PEERS_MAX)):
        view.expect(peer)
    for peer in run.plan.byzantine:
        if peer in view.rows:
            view.rows[peer].lie = "+".join(run.plan.attack_kinds(peer))


def _add_sender(view: RunView, peer: int, name: str) -> None:
    """Add a peer that joined later to the view at its first row."""
    row = view.rows.get(peer)
    if row is None or (row.state == "elsewhere" and name == "started"):
        view.expect(peer)


def _keep(run: RecordedRun, name: str, peer: int | None, row: Mapping[str, Any]) -> None:
    if len(run.events) < EVENTS_MAX:
        run.events.append(row)
    if name in ("spawned", "started") and peer is not None and (host := text_of(row.get("host"))):
        run.hosts[peer] = host
    traffic = row.get("traffic")
    if name == "halted" and peer is not None and traffic is not None:
        _record_usage(run, peer, {**traffic, "t": row["t"]})


def _lines_of(view: RunView, row: Mapping[str, Any]) -> list[str]:
    return [shown(line) for line in view.feed(row)]


def _record_round(run: RecordedRun, peer: int, row: Mapping[str, Any]) -> None:
    round_id = row.get("round")
    if round_id is None:
        return
    steps = row.get("step") or round_id + 1
    run.steps.add(peer, row["t"], steps * run.view.local_steps)
    if (loss := row.get("loss")) is not None:
        run.losses.add(peer, row["t"], loss)
    if (distance := row.get("consensus_distance")) is not None:
        run.consensus.add(peer, row["t"], distance)
    trust = row.get("trust")
    if row.get("server") is None and isinstance(trust, dict):
        for subject, score in trust.items():
            if score is not None:
                run.trust.add(int(subject), row["t"], score)


def _record_usage(run: RecordedRun, peer: int, row: Mapping[str, Any]) -> None:
    run.machines.record_usage(run.hosts.get(peer, ""), row)
    for name, points in run.used.items():
        if (value := row.get(name)) is not None:
            points.add(peer, row["t"], value)


def _record_attempt(run: RecordedRun, peer: int, row: Mapping[str, Any]) -> None:
    if (round_id := row.get("round")) is not None:
        turn = round_id, row.get("attempt") or 0
        run.attempts.setdefault(turn, Counter())[shown(row.get("reason"))] += 1


def _record_rejection(run: RecordedRun, peer: int, row: Mapping[str, Any]) -> None:
    if (server := row.get("server")) is not None:
        run.refused[server] += 1


def _record_late_peers(run: RecordedRun, peer: int, row: Mapping[str, Any]) -> None:
    if (round_id := row.get("round")) is not None:
        missing = tuple(row.get("missing") or ())
        run.late.setdefault(round_id, (missing, row.get("waited_s") or 0.0))


def _record_epoch(run: RecordedRun, peer: int, row: Mapping[str, Any]) -> None:
    if (epoch := row.get("epoch")) is not None:
        run.epochs.setdefault(epoch, row)


def _skip_metrics(run: RecordedRun, peer: int, row: Mapping[str, Any]) -> None:
    """``metrics.jsonl`` has each of them, and these are only some."""


COUNTED: Mapping[str, Callable[[RecordedRun, int, Mapping[str, Any]], None]] = {
    "round": _record_round,
    "metrics": _skip_metrics,
    "usage": _record_usage,
    "attempt": _record_attempt,
    "refused_result": _record_rejection,
    "late": _record_late_peers,
    "epoch": _record_epoch,
}
"""Events that come with every round -> what is taken from each; they are not kept one by one."""


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
    times = [row["t"] for row in (run.events[:1] + run.events[-1:]) if row["t"] > 0]
    for points in (run.steps, *run.logged.by_time.values()):
        for peer in points.peers:
            x = points.x(peer)
            times += [float(x[0]), float(x[-1])]
    if len(run.commits):
        times += [float(run.commits.t.min()), float(run.commits.t.max())]
    run.began = min(times, default=run.state.began or time.time())
    run.ended = max(times, default=run.began)
