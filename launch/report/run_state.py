"""State of a run, from the files in its folder. This module must be fast, so it has few imports,
and reads only small parts of the files."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from gossip.errors import ConfigError, suggest_name
from gossip.observe import PEERS_MAX, Event, documents
from gossip.run import (
    NodeRecord,
    last_events,
    node_in,
    open_file,
    open_in,
    peers_in,
    read_object,
    read_seed,
    segments,
    shown,
    text_of,
)

from .exit_codes import status_of
from .growing import event_files
from .launchers import Launcher, of as launchers_of
from .progress import RoundProgress
from .run_model import RunModel
from .stages import stages_in
from .words import near

RUNS = "runs"
NODES_MAX = 10_000
BEGIN_S = 300.0
"""Time after which a run that no launcher has started counts as over, in seconds."""
# bytes at the end of events.jsonl that are read: more than all peers write in a second
TAIL_BYTES = 256 * 1024
TAIL_BYTES_MIN = 16 * 1024  # bytes at the end of each file that are read if every peer has its own
State = Literal["running", "elsewhere", "copy", "ended", "killed", "not begun"]
"""State of a run. ``elsewhere``: its launchers are on other machines, and have not recorded their
end. ``copy``: a recorded launcher is alive, but leads another folder. ``killed``: a launcher has
ended without recording its end, and there is no summary."""


class RunState:
    """State of a run, from the files in its folder. The progress is read from the events when it is
    first needed, because this takes most of the time.

    Attributes:
        settings: Settings of the run. ``environment``: facts about the host and the process that
            started the run.
        broken: Lines about files that cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broken: list[str] = []
        self.settings = documents.RunSettings.pick(self.object("config.json"))
        self._summary = self.object("summary.json")
        self.environment = documents.RunEnvironment.pick(self.object("environment.json"))
        self.launchers = launchers_of(folder, self.broken)
        # Only a run without a launcher of gossip, for example under torchrun, is judged by its
        # nodes.
        self._nodes = () if self.launchers else tuple(nodes_in(folder))
        self.state: State = (
            _state_of_nodes(self._nodes)
            if self._nodes
            else _state(self.launchers, self._summary is not None)
        )
        self.hosts = sorted({one.host for one in self.launchers or self._nodes})

    def object(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object in a file of the folder; None if the file does not exist, or
        cannot be read."""
        try:
            return read_object(self.folder, name)
        except ConfigError as error:
            if str(error) not in self.broken:
                self.broken.append(str(error))
            return None

    @property
    def name(self) -> str:
        return text_of(self.settings.name) or shown(self.folder.name)

    @property
    def over(self) -> bool:
        """Whether the run is over. A run that no launcher has started counts as over after
        ``BEGIN_S``."""
        if self.state != "not begun":
            return self.state not in ("running", "elsewhere")
        return time.time() - (written_at(self.folder) or 0.0) > BEGIN_S

    @property
    def in_words(self) -> str:
        """State in a few words, with the status or the hosts of the run."""
        if self.state == "elsewhere":
            return f"on {', '.join(self.hosts)}"
        return f"ended: {self.status}" if self.status else self.state

    @cached_property
    def outcome(self) -> documents.Outcome:
        """Outcome in the summary; empty if the run has not ended: the summary may then be from one
        of several launchers, or from an earlier end. A run without a launcher has no summary; its
        exit code is the lowest exit code of its peers."""
        if self.state != "ended":
            return documents.Outcome()
        codes = [node.exit_code for node in self._nodes if node.exit_code is not None]
        if self._summary is not None or not codes:
            return documents.Outcome.pick(self._summary)
        return documents.Outcome(exit_code=min(codes), status=status_of(min(codes)))

    @property
    def status(self) -> str | None:
        return text_of(self.outcome.status)

    @cached_property
    def _progress(self) -> RoundProgress:
        view = RunModel(
            min(self.settings.peers, PEERS_MAX), stages=stages_in(self.settings.pipeline)
        )
        if self.outcome.rounds is None:
            _read_progress(view, self.folder, self.broken)
        return view.progress

    @property
    def peers(self) -> int:
        """Number of peers, including those that joined."""
        joined = {peer for one in self.launchers for peer in one.peers}
        return max(self.settings.peers, len(joined))

    @property
    def alive(self) -> int | None:
        """Number of live peers in the last round; None if there was no round, or the run is
        over."""
        runs = self.state in ("running", "elsewhere") and self._progress.round >= 0
        return self._progress.alive if runs else None

    @property
    def round(self) -> int | None:
        """Number of completed rounds; None if there was none yet."""
        completed = self._progress.round + 1 or None
        return completed if self.outcome.rounds is None else self.outcome.rounds

    @property
    def ended(self) -> float | None:
        ends = [one.ended for one in (*self.launchers, *self._nodes)]
        return (max(ends, default=0.0) or None) if self.state == "ended" else None

    @property
    def accuracy(self) -> float | None:
        known = documents.Accuracy.pick(self.outcome.accuracy)
        return _first(known.mean_model, known.worst_replica, self._progress.accuracy)

    @property
    def loss(self) -> float | None:
        return _first(self.outcome.loss, self._progress.loss)

    def to_json(self) -> dict[str, Any]:
        launchers = [
            {"pid": one.pid, "host": one.host, "running": one.running} for one in self.launchers
        ]
        return {
            "name": self.name,
            "state": self.state,
            "peers": self.peers,
            "alive": self.alive,
            "round": self.round,
            "rounds": self.settings.rounds,
            "began": self.environment.started,
            "ended": self.ended,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "exit_code": self.outcome.exit_code,
            "status": self.status,
            "folder": str(self.folder),
            "launchers": launchers,
        }


def find(run: str, runs: Path = Path(RUNS)) -> Path:
    """Return the folder of a run. ``run`` is its path, or its name under ``runs``.

    Raises: ConfigError: There is no run of that name, or its settings cannot be read.
    """
    for folder in (Path(run), runs / run):
        if written_at(folder) is not None:
            open_in(folder, "config.json").close()
            return folder.resolve()
    suggestion = suggest_name(Path(run).name, [folder.name for folder in folders(runs)])
    raise ConfigError(
        f"there is no run {shown(run)!r}{suggestion}",
        f"use its folder, or its name under {runs}/: gossip ls",
    )


def word_for(folder: Path) -> str:
    """Return the argument with which a command names the run in ``folder``: the name of the run
    under ``runs``, or else its path.

    Args:
        folder: Result of ``find``.
    """
    is_usual = folder.parent == Path(RUNS).resolve()
    return shlex.quote(folder.name if is_usual else near(str(folder)))


def folders(runs: Path) -> list[Path]:
    """Return the folders of all runs, the latest run first."""
    found = [(at, folder) for folder in _folders_in(runs) if (at := written_at(folder)) is not None]
    return [folder for _, folder in sorted(found, key=itemgetter(0), reverse=True)]


def _folders_in(runs: Path) -> list[Path]:
    try:
        return [runs / name for name in os.listdir(runs)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(
            f"the runs in {shown(runs)} cannot be listed: {error.strerror}"
        ) from error


def written_at(folder: Path) -> float | None:
    """Return the time at which the settings of a run were written, in seconds since 1970; None if
    ``folder`` is not the folder of a run. The settings may be a link or a pipe here; reading them
    raises an error."""
    try:
        return (folder / "config.json").stat(follow_symlinks=False).st_mtime
    except (OSError, ValueError):  # The file does not exist, or the name is invalid.
        return None


def nodes_in(folder: Path) -> Iterator[NodeRecord]:
    """Yield the records that the nodes of a run have written about themselves."""
    for path in sorted(folder.glob("peer-*"))[:NODES_MAX]:
        if (node := node_in(path)) is not None:
            yield node


def _state_of_nodes(nodes: Sequence[NodeRecord]) -> State:
    """Return the state of a run that has no launcher of gossip, for example under torchrun."""
    if any(node.alive for node in nodes):
        return "running"
    if any(not node.ended and not node.here for node in nodes):
        return "elsewhere"
    return "ended" if any(node.ended for node in nodes) else "killed"


def _state(launchers: Sequence[Launcher], summarised: bool) -> State:
    if any(one.running for one in launchers):
        return "running"
    if any(not one.here and not one.ended for one in launchers):
        return "elsewhere"
    if any(one.strays for one in launchers):
        return "copy"
    if summarised:
        return "ended"
    if not launchers:
        return "not begun"
    # Each launcher records its end before the last one writes the summary, so a run with all ends
    # recorded may have no summary yet.
    return "ended" if all(one.ended for one in launchers) else "killed"


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def still_here(folder: Path) -> list[int]:
    """Return the peers with a recorded address, but without a recorded end."""
    seeds = folder / "seeds"
    return [
        peer
        for peer in peers_in(seeds)
        if (seed := read_seed(seeds, peer)) is not None and not seed.ended
    ]


def _read_progress(view: RunModel, folder: Path, broken: list[str]) -> None:
    """Apply the last events of a run to a model of it."""
    files = [*map(folder.joinpath, event_files(folder))] or sorted(
        folder.glob("peer-*/events.jsonl")
    )[:NODES_MAX]
    each_bytes = max(TAIL_BYTES // max(1, len(files)), TAIL_BYTES_MIN)
    for path in files:
        for event in _last_events(path, each_bytes, broken):
            view.apply_recorded(event)


def _last_events(path: Path, tail_bytes: int, broken: list[str]) -> list[Event]:
    try:
        with open_file(path) as file:
            found = last_events(file, tail_bytes)
            if file.tell() < TAIL_BYTES_MIN and (cut := segments(path)) and cut[-1].suffix != ".gz":
                with open_file(cut[-1]) as rotated:  # The file was just rotated.
                    return last_events(rotated, tail_bytes) + found
            return found
    except FileNotFoundError:
        return []
    except ConfigError as error:
        broken.append(str(error))
        return []  # The progress of the run is unknown then.
