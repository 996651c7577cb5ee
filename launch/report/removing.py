"""``gossip rm``: removal of a run's files.

It removes only files that gossip itself writes into a run's folder. Checkpoints and last states of
peers (``peer-N/last_state``) stay, unless the user requests their removal.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from gossip.errors import ConfigError
from gossip.run import checkpoints, shown

from . import launchers
from .run_state import RunState, folders

OURS = (
    *("config.json", "config.toml", "environment.json", "command.json", "checkpoints.json"),
    *("summary.json", "evaluation.json", "notes.jsonl", "comparison.json", "begun", "logbook.md"),
    *("swarm.key", "swarm.log", "fetched", "seeds", "faults", "launchers", "hosts", "drill*.sock"),
    *("events.jsonl*", "events-*.jsonl*", "commits.jsonl*", "metrics.jsonl*", "verdict.*"),
    *("report.html", "comparison.html", "tensorboard", "mlflow.db", "mlflow", "wandb"),
    *("prometheus.url", "tracker-*.log", "screen.log", "peer-*", "plain", "alone"),
)
"""Patterns of the names of files that gossip writes into a run's folder."""
LAST_STATE = "last_state"


@dataclass(frozen=True, slots=True)
class Removal:
    """Files of one run to remove.

    Attributes:
        paths: Files and folders of the run.
        checkpoints: Checkpoints of the run; () if they stay.
        kept: Lines about files that stay.
        nbytes: Total bytes of ``paths`` and ``checkpoints``.
    """

    run: RunState
    paths: tuple[Path, ...]
    checkpoints: tuple[Path, ...]
    kept: tuple[str, ...]
    nbytes: int


def plan(run: RunState, with_checkpoints: bool) -> Removal:
    """Return the files to remove. Raises: ConfigError: The run is still running, or its folder
    cannot be read."""
    _refuse_living(run)
    paths, kept = [], []
    try:
        there = sorted(run.folder.iterdir())
    except OSError as error:
        raise ConfigError(f"{shown(run.folder)} cannot be read: {error.strerror}") from error
    for path in there:
        if not any(fnmatch(path.name, pattern) for pattern in OURS):
            kept.append(f"{path.name}: not gossip's")
            continue
        state = path / LAST_STATE
        if path.name.startswith("peer-") and state.is_dir() and not with_checkpoints:
            kept.append(f"{path.name}/{LAST_STATE}: the last state of a peer")
            paths += [each for each in sorted(path.iterdir()) if each != state]
        else:
            paths.append(path)
    saved, where = _checkpoints(run)
    gone = saved if with_checkpoints else ()
    if saved and not with_checkpoints:
        kept.append(f"{len(saved)} checkpoints in {where} (--checkpoints removes them)")
    nbytes = sum(map(size_of, (*paths, *gone)))
    return Removal(run, tuple(paths), gone, tuple(kept), nbytes)


def _refuse_living(run: RunState) -> None:
    if run.state in ("running", "elsewhere"):
        where = f"on {', '.join(run.hosts)}" if run.state == "elsewhere" else "here"
        raise ConfigError(
            f"{run.name} trains {where}: nothing was removed", f"gossip stop {run.name}"
        )
    if left := launchers.processes_of(run.folder):
        pids = ", ".join(map(str, left))
        raise ConfigError(
            f"processes of {run.name} are still running: {pids}", f"gossip stop {run.name} --now"
        )


def _checkpoints(run: RunState) -> tuple[tuple[Path, ...], Path | None]:
    """Return the checkpoints of the run, and their folder. A copy of a run has none: the
    checkpoints belong to the original run."""
    folder = checkpoints.folder_of(run.folder) if run.state != "copy" else None
    return tuple(path for _, path in checkpoints.listed(folder)), folder


def shared_with(run: RunState) -> list[str]:
    """Return the names of the runs in the same parent folder that save checkpoints into the same
    folder."""
    own = _folder_of(run.folder)
    others = [each for each in folders(run.folder.parent) if each != run.folder]
    return [each.name for each in others if own is not None and _folder_of(each) == own]


def _folder_of(folder: Path) -> Path | None:
    try:
        return checkpoints.folder_of(folder)
    except ConfigError:
        return None


def carry_out(removal: Removal) -> None:
    """Remove the files. If a file is a link, only the link is removed. The settings of the run are
    removed after all other files, so that an interrupted removal can be repeated. Then the folder
    is removed if it is empty. Raises: ConfigError: A file cannot be removed.
    """
    _refuse_living(RunState(removal.run.folder))  # The run may have been resumed since.
    last = removal.run.folder / "config.json"
    try:
        for path in (*removal.checkpoints, *(each for each in removal.paths if each != last)):
            _remove(path)
        for path in removal.checkpoints[:1]:
            (path.parent / "latest").unlink(missing_ok=True)
        _remove(last)
        for folder in (*removal.run.folder.glob("peer-*"), removal.run.folder):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    except OSError as error:
        raise ConfigError(f"cannot remove {shown(error.filename)}: {error.strerror}") from error


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def size_of(path: Path) -> int:
    """Return the size of a file, or of all files in a folder, in bytes. Links are not followed. The
    size of a file with several hard links is divided by their number."""
    try:
        if not path.is_dir() or path.is_symlink():
            return path.lstat().st_size
        return sum(_sizes_in(path))
    except OSError:
        return 0  # The path no longer exists, or is not readable.


def _sizes_in(folder: Path) -> Iterator[int]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield size_of(Path(entry.path))
            else:
                found = entry.stat(follow_symlinks=False)
                yield found.st_size // max(1, found.st_nlink)
