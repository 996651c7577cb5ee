"""Conversion of a run's files to values of curves and events, while the files grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError
from gossip.launch.report import CommitRecord, RunModel, RunRecord, counted, lineage, words
from gossip.observe import Event, events
from gossip.run import checkpoints, real, whole

from .base import Point, RunDescription, Told

SWARM_EVERY_S = 1.0
"""Values of the swarm that follow from no single row are taken so often."""
BATCH = 1000
NOT_VALUES = frozenset(("t", "wall", "peer", "round", "step"))
SETTING_CHARACTERS = 500
"""MLflow takes no more of a parameter."""
AUTO = "auto"


class RunPoints:
    """Reads a run's folder on, and hands out what is new.

    Args:
        points: Gets up to ``BATCH`` values at a time.
        log_event: Gets each event.
    """

    def __init__(
        self,
        folder: Path,
        points: Callable[[Sequence[Point]], None],
        log_event: Callable[[Told], None],
    ) -> None:
        self.record = RunRecord(folder)
        self._points, self._log_event = points, log_event
        self._waiting: list[Point] = []
        self._swarm_at = self._shares_at = 0.0
        self._last: dict[str, float] = {}
        self._happened = 0
        self._saved: set[int] = set()
        self._begun = False
        self.given = 0

    def about(self) -> RunDescription:
        """Return the settings and the origin of the run."""
        config, environment = (
            self.record.object("config.json"),
            self.record.object("environment.json"),
        )
        return RunDescription(
            run=str(config.get("run") or ""),
            name=str(config.get("name") or self.record.folder.name),
            settings={key: _in_words(value) for key, value in config.items()},
            tags=_tags(config, environment, self.record.folder),
            began=real(environment.get("started")) or 0.0,
        )

    def read_on(self) -> None:
        """Hands out what has come since the last time."""
        self.record.update(self._export_event, self._commit)
        for row in self.record.files.metrics():
            self._logged(row)
        self._checkpoints()
        self._flush()

    def end(self) -> None:
        """Hands out what the run looks like at its end, and tells who came to it. Called once, when
        nothing more comes."""
        at, step = self.record.last_at, max(self.record.view.round, 0)
        self._add_swarm_points(step, at)
        self._flush()
        self._log_event(Told(step, at, _end_in_words(self.record.view)))

    def _logged(self, row: Mapping[str, Any]) -> None:
        peer, step = whole(row.get("peer")), whole(row.get("round"))
        if step is None:
            return
        where = "swarm" if peer is None else f"peer-{peer}"
        for name, value in row.items():
            if name not in NOT_VALUES and (number := real(value)) is not None:
                self._add_point(f"{name}/{where}", step, number, row["t"])

    def _commit(self, commit: CommitRecord) -> None:
        commits = self.record.commits
        before = commits[-2] if len(commits) > 1 else None
        if commit.loss is not None:
            self._add_point("swarm/loss", commit.round, commit.loss, commit.at)
        self._add_point("swarm/contributors", commit.round, len(commit.contributors), commit.at)
        self._add_point("swarm/server", commit.round, commit.server, commit.at)
        self._add_if_changed("swarm/attempt", commit.round, commit.attempt, commit.at)
        if before is not None and before.round + 1 == commit.round and commit.at >= before.at:
            self._add_point("swarm/round_s", commit.round, commit.at - before.at, commit.at)
        if commit.rule_s is not None:
            self._add_point("swarm/rule_s", commit.round, commit.rule_s, commit.at)
        if commit.at >= self._shares_at + SWARM_EVERY_S:
            self._shares_at = commit.at
            for peer, known in self.record.peers.items():
                if (share := known.participation) is not None:
                    self._add_point(f"participation/peer-{peer}", commit.round, share, commit.at)

    def _export_event(self, event: Event) -> None:
        """After each event: what it made happen, and every now and then how the swarm stands."""
        view, at = self.record.view, event.t
        step = max(view.round, 0)
        if not self._begun and isinstance(event, events.Round):
            self._begun = True
            self._report_resume(at)
        new = self.record.happened - self._happened
        for happening in list(self.record.happenings)[-new:] if new else ():
            self._log_event(Told(step, happening.at, happening.text.strip()))
        self._happened += new
        if at >= self._swarm_at + SWARM_EVERY_S and view.round >= 0:
            self._swarm_at = at
            self._add_swarm_points(step, at)

    def _report_resume(self, at: float) -> None:
        """Once the first round is there: what the run goes on from, if it does not begin anew."""
        view, config = self.record.view, self.record.object("config.json")
        done = (view.step - 1) * view.local_steps
        resume = str(config.get("resume") or "")
        if not resume or done <= 0:
            return
        source = f"from {resume}" if resume != AUTO else "from a checkpoint"
        began = real(self.record.object("environment.json").get("started"))
        if resume == AUTO and began is not None:
            before = lineage.last_before(self.record.folder, self._saves_to(), began)
            source += f" of run {before}" if before is not None else ""
        self._log_event(Told(view.round, at, f"= goes on at step {done}, {source}"))

    def _add_swarm_points(self, step: int, at: float) -> None:
        """How the swarm and each peer stand."""
        view = self.record.view
        dead = sum(blow.kind != "hang" for blow in view.blows)
        suspected = sum(row.suspected for row in view.rows.values())
        self._add_if_changed("swarm/alive", step, view.alive, at)
        self._add_if_changed("swarm/deaths", step, dead, at)
        self._add_if_changed("swarm/rounds_lost", step, len(view.lost_rounds), at)
        self._add_if_changed("swarm/suspected", step, suspected, at)
        if (rate := view.pace.per_s(at)) is not None:
            self._add_point("swarm/steps_per_s", step, rate, at)
        for peer, row in view.rows.items():
            known = self.record.of(peer)
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
            folder = self._saves_to()
            there = checkpoints.listed(folder) if folder is not None else []
        except ConfigError:
            return  # it is told of by whoever lists them
        for step, path in there:
            began = self.record.began
            if step in self._saved or began is None or path.stat().st_mtime < began:
                continue
            self._saved.add(step)
            at = path.stat().st_mtime
            self._log_event(Told(step, at, f"checkpoint of step {step}: {path}"))
            self._add_point("swarm/checkpoint", step, step, at)

    def _saves_to(self) -> Path | None:
        return checkpoints.folder_of(self.record.folder)

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
            self._points(waiting)
            self.given += len(waiting)


def _tags(
    config: Mapping[str, Any], environment: Mapping[str, Any], folder: Path
) -> dict[str, str]:
    code = environment.get("code")
    found = {
        "gossip.run": config.get("run"),
        "gossip.folder": str(folder),
        "gossip.resumed_from": config.get("resume"),
        "host": environment.get("host"),
        "command": " ".join(map(str, environment.get("command") or ())),
        "code.commit": code.get("commit") if isinstance(code, dict) else None,
        "code.changed_files": code.get("changed_files") if isinstance(code, dict) else None,
    }
    return {key: _in_words(value) for key, value in found.items() if value not in (None, "")}


def _end_in_words(view: RunModel) -> str:
    """Return a line with the number of peers that finished and the ends of the others."""
    rows = [row for row in view.rows.values() if row.state != "elsewhere"]
    done = [row.peer for row in rows if row.state == "done"]
    ended: dict[str, list[int]] = {}
    for row in rows:
        if row.state == "gone":
            ended.setdefault("stopped" if row.asked else row.exit or "gone", []).append(row.peer)
        elif row.state != "done":
            ended.setdefault("nothing more was heard of", []).append(row.peer)
    mark = "=" if len(done) == len(rows) else "x"
    others = "".join(f"; {how}: {words.numbers(peers)}" for how, peers in ended.items())
    last = f" in round {view.round}" if view.round >= 0 else ""
    return f"{mark} over{last}: {len(done)} of {counted(len(rows), 'peer')} came to the end{others}"


def _in_words(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= SETTING_CHARACTERS else text[: SETTING_CHARACTERS - 3] + "..."
