"""Data of one run for a report, read once from the run's folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from gossip.errors import ConfigError
from gossip.launch.report.machines import LOAD_HIGH
from gossip.launch.report.run_reader import RunReader
from gossip.launch.report.words import clock, counted
from gossip.observe import Event, events
from gossip.run import open_in, read_object, shown

from .charts import Span
from .columns import CommitColumns, Series
from .membership import Presence

TEXT_BYTES_MAX = 2**20
LOAD_AFTER_S = 15.0
"""Time after an event in which a report of the load is taken as the load at the event, in seconds.
Nodes report every few seconds."""


class RecordedRun(RunReader):
    """Record of a run, read from its folder. The run may still be running. Times are seconds since
    1970.

    Attributes:
        sources: (key, value, source) of each setting.
        presence: States of the peers over time.
        lines: Lines that the model returned, each with its event.
        handed_on: Reason why a round went to another server than its first, by round.
    Raises: ConfigError: The folder does not exist, or its settings cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        # Raise an error for an unreadable file, which the reader only records.
        read_object(folder, "config.json")
        super().__init__(folder, details=True)
        self.sources = tuple(_sources(folder))
        self.presence = Presence(self.view)
        self.lines: list[tuple[Event, str]] = []
        self.commits, self.series = CommitColumns(), Series()
        # Lines about epochs are dropped: they would outnumber all other lines.
        for event, lines in self.read_events():
            self.presence.record(event)
            self.series.record(event, self.view.local_steps)
            if not isinstance(event, events.Epoch):
                self.lines += [(event, shown(line)) for line in lines]
        for commit in self.files.commits():
            self.commits.add(commit)
        self.commits.settle()
        self.handed_on = self.view.turns.reasons_of(self.commits.handed_on())
        for row in self.files.metrics():
            self.series.logged.add(row)
        self._set_times()

    def _set_times(self) -> None:
        """Set start and end of the run. It starts with its launcher, or with the first row if that
        is earlier, and ends with the last row."""
        times = [t for t in (self.view.began, self.view.last_at) if t]
        if len(self.commits):
            times += [float(self.commits.t.min()), float(self.commits.t.max())]
        self.began = min(times, default=time.time())
        self.ended = max(times, default=self.began)

    @property
    def origin(self) -> str:
        """Step and checkpoint from which the run continued; "" if it did not resume."""
        first = self.view.progress.first or 0
        step = (
            int(self.commits.round.min()) if len(self.commits) else first
        ) * self.view.local_steps
        resume = shown(self.settings.resume)
        return f"step {step:,}, from checkpoint {resume}" if resume and step > 0 else ""

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
        """Describe the load of a peer's machine shortly after ``t``; "" if the load was not too
        high, or was not reported."""
        row, load = self.view.rows.get(peer), self.series.load
        host = row.host if row is not None else ""
        machine = self.view.machines.machine_of(host)
        beside = [other for other in load.peers if self.view.rows[other].host == host]
        # A reported load is the mean of a minute, so the next report also covers ``t``.
        reports = [(x, y) for p in beside for x, y in zip(load.x(p), load.y(p), strict=True)]
        reports = [(x, y) for x, y in reports if t <= x <= t + LOAD_AFTER_S]
        if machine is None or not machine.cores or not reports:
            return ""
        reported = float(min(reports)[1])
        if reported <= LOAD_HIGH * machine.cores:
            return ""
        cores = counted(machine.cores, "core")
        return f"its machine was overloaded then, load {reported:.1f} on {cores}"

    def clock(self, t: float) -> str:
        """Return the time from the start of the run to ``t`` as text, with tenths of a second;
        "before" if ``t`` is before the start."""
        return "before" if t < self.began else clock(t - self.began, exact=True)

    def since(self, t: float) -> float:
        """Return the seconds from the start of the run to ``t``."""
        return max(0.0, t - self.began)


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
