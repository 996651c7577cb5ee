"""State of a run, from the files in its folder. This module must be fast, so it has few imports,
and reads only small parts of the files."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a run. ``peers``: number of peers, including those that joined. ``alive``: number of
    live peers in the last round; None if there was no round, or the run is over. ``broken``: lines
    about files that cannot be read."""

    name: str
    folder: Path
    state: State
    peers: int
    alive: int | None
    round: int | None
    rounds: int | None
    began: float | None
    ended: float | None
    accuracy: float | None
    loss: float | None
    exit_code: int | None
    status: str | None
    launchers: tuple[Launcher, ...]
    hosts: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        return self.state in ("ended", "killed")

    def to_json(self) -> dict[str, Any]:
        fields = (
            "name",
            "state",
            "peers",
            "alive",
            "round",
            "rounds",
            "began",
            "ended",
            "accuracy",
            "loss",
            "exit_code",
            "status",
        )
        launchers = [
            {"pid": one.pid, "host": one.host, "running": one.running} for one in self.launchers
        ]
        return {
            **{field: getattr(self, field) for field in fields},
            "folder": str(self.folder),
            "launchers": launchers,
        }


@dataclass(frozen=True)
class RunStatus:
    """State of the run as a whole.

    Attributes:
        state: State in a few words, as in ``gossip ls``.
        over: Whether the run is over.
        where: Hosts of its launchers.
    """

    state: str
    over: bool
    where: str = ""


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


def read_state(folder: Path) -> RunState:
    """Return the state of a run, from its files. Its ``broken`` has lines about files that cannot
    be read."""
    broken: list[str] = []
    settings = documents.RunSettings.pick(read_known(folder, "config.json", broken))
    summary = read_known(folder, "summary.json", broken)
    environment = documents.RunEnvironment.pick(read_known(folder, "environment.json", broken))
    launchers, nodes, state = _state_of(folder, broken, summary is not None)
    ends = [one.ended or 0.0 for one in launchers] + [node.ended or 0.0 for node in nodes]
    ended = max(ends, default=0.0) if state == "ended" else 0.0
    outcome = _outcome(summary if state == "ended" else None, nodes, state)
    view = RunModel(min(settings.peers, PEERS_MAX), stages=stages_in(settings.pipeline))
    if outcome.rounds is None:
        _read_progress(view, folder, broken)
    progress = view.progress
    seen = progress.round >= 0
    accuracy = documents.Accuracy.pick(outcome.accuracy)
    return RunState(
        name=text_of(settings.name) or shown(folder.name),
        folder=folder,
        state=state,
        peers=max(settings.peers, len({peer for one in launchers for peer in one.peers})),
        alive=progress.alive if seen and state in ("running", "elsewhere") else None,
        round=(progress.round if seen else None) if outcome.rounds is None else outcome.rounds,
        rounds=settings.rounds,
        began=environment.started,
        ended=ended or None,
        accuracy=_first(accuracy.mean_model, accuracy.worst_replica, progress.accuracy),
        loss=_first(outcome.loss, progress.loss),
        exit_code=outcome.exit_code,
        status=text_of(outcome.status),
        launchers=tuple(launchers),
        hosts=tuple(sorted({one.host for one in launchers or nodes})),
        broken=tuple(broken),
    )


def standing_of(folder: Path) -> RunStatus:
    """Return the state of the run in a folder. This is cheaper than ``read_state``."""
    broken: list[str] = []
    summary = read_known(folder, "summary.json", broken)
    launchers, nodes, state = _state_of(folder, broken, summary is not None)
    hosts = ", ".join(sorted({one.host for one in launchers or nodes}))
    has_waited = time.time() - (written_at(folder) or 0.0) > BEGIN_S
    over = state in ("ended", "killed", "copy") or (state == "not begun" and has_waited)
    if state == "elsewhere":
        return RunStatus(f"on {hosts}", over)
    status = text_of(_outcome(summary, nodes, state).status) if state == "ended" else None
    return RunStatus(f"ended: {status}" if status else state, over, hosts)


def _state_of(
    folder: Path, broken: list[str], summarised: bool
) -> tuple[Sequence[Launcher], Sequence[NodeRecord], State]:
    """Return the launchers of a run, its nodes (only if it has no launcher), and its state."""
    launchers = launchers_of(folder, broken)
    nodes = () if launchers else tuple(nodes_in(folder))
    return launchers, nodes, _state_of_nodes(nodes) if nodes else _state(launchers, summarised)


def nodes_in(folder: Path) -> Iterator[NodeRecord]:
    """Yield the records that the nodes of a run have written about themselves."""
    for path in sorted(folder.glob("peer-*"))[:NODES_MAX]:
        if (node := node_in(path)) is not None:
            yield node


def _state_of_nodes(nodes: Sequence[NodeRecord]) -> State:
    """Return the state of a run that has no launcher of gossip, for example under torchrun."""
    if any(node.alive for node in nodes):
        return "running"
    if any(node.ended is None and not node.here for node in nodes):
        return "elsewhere"
    return "ended" if any(node.ended is not None for node in nodes) else "killed"


def _outcome(
    summary: Mapping[str, Any] | None, nodes: Sequence[NodeRecord], state: State
) -> documents.Outcome:
    """Return the outcome in the summary. A run without a launcher has no summary; its exit code is
    the lowest exit code of its peers."""
    codes = [node.exit_code for node in nodes if node.exit_code is not None]
    if summary is not None or state != "ended" or not codes:
        return documents.Outcome.pick(summary)
    code = min(codes)
    return documents.Outcome(exit_code=code, status=status_of(code))


def read_known(folder: Path, name: str, broken: list[str]) -> dict[str, Any] | None:
    """Return the JSON object in a file. Return None if the file does not exist or cannot be read.
    If it cannot be read, add a line to ``broken``."""
    try:
        return read_object(folder, name)
    except ConfigError as error:
        if str(error) not in broken:
            broken.append(str(error))
        return None


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
