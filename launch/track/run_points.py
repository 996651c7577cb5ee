"""Conversion of the files of a run to values of curves and to events, while the files grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError
from gossip.launch.report import RunModel, RunReader, counted, words
from gossip.observe import CommitRow, Event, documents
from gossip.run import checkpoints, real, whole

from .base import Point, RunDescription, Tracker

SWARM_EVERY_S = 1.0
"""Minimum time between two values of a curve about the swarm or a peer's state, in seconds."""
BATCH = 1000
"""Maximum number of values that a tracker gets at a time. It is the limit of a request to
MLflow."""
NOT_VALUES = frozenset(("t", "wall", "peer", "round", "step"))
SETTING_CHARACTERS = 500
"""Maximum number of characters of a parameter in MLflow."""


class RunPoints:
    """Incremental reader of a run's folder. It passes new values and events to a tracker, up to
    ``BATCH`` values at a time."""

    def __init__(self, folder: Path, tracker: Tracker) -> None:
        self.reader, self._tracker = RunReader(folder), tracker
        self._waiting: list[Point] = []
        self._swarm_at = self._shares_at = 0.0
        self._last: dict[str, float] = {}
        self._saved: set[int] = set()
        self.given = 0

    def about(self) -> RunDescription:
        """Return the settings and the origin of the run."""
        config = self.reader.state.object("config.json") or {}
        settings, environment = self.reader.settings, self.reader.environment
        return RunDescription(
            run=settings.run,
            name=self.reader.state.name,
            settings={key: _in_words(value) for key, value in config.items()},
            tags=_tags(settings, environment, self.reader.folder),
            began=environment.started or 0.0,
        )

    def read_on(self) -> None:
        """Export the new rows."""
        for event, lines in self.reader.read_events():
            self._export_event(event, lines)
        for commit in self.reader.read_commits():
            self._commit(commit)
        for row in self.reader.files.metrics():
            self._logged(row)
        self._checkpoints()
        self._flush()

    def end(self) -> None:
        """Export the final state of the run, and the peers that finished. This is called once."""
        at, step = self.reader.view.last_at, max(self.reader.view.progress.round, 0)
        self._add_swarm_points(step, at)
        self._flush()
        self._tracker.log_event(step, at, _end_in_words(self.reader.view))

    def _logged(self, row: Mapping[str, Any]) -> None:
        peer, step = whole(row.get("peer")), whole(row.get("round"))
        if step is None:
            return
        where = "swarm" if peer is None else f"peer-{peer}"
        for name, value in row.items():
            if name not in NOT_VALUES and (number := real(value)) is not None:
                self._add_point(f"{name}/{where}", step, number, row["t"])

    def _commit(self, commit: CommitRow) -> None:
        commits = self.reader.view.commits
        before = commits[-2] if len(commits) > 1 else None
        if commit.loss is not None:
            self._add_point("swarm/loss", commit.round, commit.loss, commit.t)
        self._add_point("swarm/contributors", commit.round, len(commit.contributors), commit.t)
        self._add_point("swarm/server", commit.round, commit.server, commit.t)
        self._add_if_changed("swarm/attempt", commit.round, commit.made_at, commit.t)
        if before is not None and before.round + 1 == commit.round and commit.t >= before.t:
            self._add_point("swarm/round_s", commit.round, commit.t - before.t, commit.t)
        if commit.rule_s is not None:
            self._add_point("swarm/rule_s", commit.round, commit.rule_s, commit.t)
        if commit.t >= self._shares_at + SWARM_EVERY_S:
            self._shares_at = commit.t
            for peer, row in self.reader.view.rows.items():
                if (share := row.figures.participation) is not None:
                    self._add_point(f"participation/peer-{peer}", commit.round, share, commit.t)

    def _export_event(self, event: Event, lines: Sequence[str]) -> None:
        """Export the lines about an event. Every ``SWARM_EVERY_S``, also export the state of the
        swarm."""
        view, at = self.reader.view, event.t
        step = max(view.progress.round, 0)
        for line in lines:
            self._tracker.log_event(step, at, line.strip())
        if at >= self._swarm_at + SWARM_EVERY_S and view.progress.round >= 0:
            self._swarm_at = at
            self._add_swarm_points(step, at)

    def _add_swarm_points(self, step: int, at: float) -> None:
        """Add the state of the swarm and of each peer."""
        view = self.reader.view
        dead = sum(blow.kind != "hang" for blow in view.failures.blows)
        suspected = sum(row.suspected for row in view.rows.values())
        self._add_if_changed("swarm/alive", step, view.progress.alive, at)
        self._add_if_changed("swarm/deaths", step, dead, at)
        self._add_if_changed("swarm/rounds_lost", step, len(view.progress.lost), at)
        self._add_if_changed("swarm/suspected", step, suspected, at)
        if (rate := view.progress.pace.per_s(at)) is not None:
            self._add_point("swarm/steps_per_s", step, rate, at)
        for peer, row in view.rows.items():
            known = row.figures
            self._add_if_changed(f"trust/peer-{peer}", step, row.trust, at)
            missed_by = 0 if row.left or row.state == "done" else len(row.skipped_by)
            self._add_if_changed(f"skipped_by/peer-{peer}", step, missed_by, at)
            self._add_if_changed(f"starts/peer-{peer}", step, row.incarnation + 1, at)
            if known.usage is not None:
                self._add_if_changed(f"sent_bytes/peer-{peer}", step, known.usage.sent_bytes, at)
                self._add_if_changed(f"memory_bytes/peer-{peer}", step, known.usage.memory, at)
            if (cpu := known.cpu()) is not None:
                self._add_if_changed(f"cpu/peer-{peer}", step, cpu, at)
            if (rate := row.pace.per_s(at)) is not None and row.state == "training":
                self._add_point(f"steps_per_s/peer-{peer}", step, rate, at)

    def _checkpoints(self) -> None:
        try:
            there = checkpoints.listed(checkpoints.folder_of(self.reader.folder))
        except ConfigError:
            return  # ``gossip checkpoints`` reports the error.
        for step, path in there:
            began = self.reader.view.began
            if step in self._saved or began is None or path.stat().st_mtime < began:
                continue
            self._saved.add(step)
            at = path.stat().st_mtime
            self._tracker.log_event(step, at, f"checkpoint of step {step}: {path}")
            self._add_point("swarm/checkpoint", step, step, at)

    def _add_if_changed(self, name: str, step: int, value: float, at: float) -> None:
        if self._last.get(name) != value:
            self._last[name] = value
            self._add_point(name, step, value, at)

    def _add_point(self, name: str, step: int, value: float, at: float) -> None:
        self._waiting.append(Point(name, step, float(value), at))
        if len(self._waiting) >= BATCH:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._tracker.points(waiting)
            self.given += len(waiting)


def _tags(
    settings: documents.RunSettings, environment: documents.RunEnvironment, folder: Path
) -> dict[str, str]:
    code = documents.CodeVersion.pick(environment.code)
    found = {
        "gossip.run": settings.run,
        "gossip.folder": str(folder),
        "gossip.resumed_from": settings.resume,
        "host": environment.host,
        "command": " ".join(environment.command or ()),
        "code.commit": code.commit,
        "code.changed_files": code.changed_files,
    }
    return {key: _in_words(value) for key, value in found.items() if value not in (None, "")}


def _end_in_words(view: RunModel) -> str:
    """Return a line with the number of peers that finished, and the ids of all other peers."""
    rows = [row for row in view.rows.values() if row.state != "elsewhere"]
    others = [row.peer for row in rows if row.state != "done"]
    done = f"{len(rows) - len(others)} of {counted(len(rows), 'peer')} finished"
    return f"x over: {done}; not: {words.numbers(others)}" if others else f"= over: {done}"


def _in_words(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= SETTING_CHARACTERS else text[: SETTING_CHARACTERS - 3] + "..."
