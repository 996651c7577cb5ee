"""Waits for rows in the files of a run, until they appear, their writer ends or a timeout. Nothing
sleeps."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
MODIFY, MOVED_TO, CREATE = 0x2, 0x80, 0x100  # of inotify(7)


class FollowedRows:
    """The rows of a file of JSON lines, read as it grows: each line once, when it is complete."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self._rows, self._by_event = (
            list[dict[str, Any]](),
            defaultdict[str, list[dict[str, Any]]](list),
        )

    def so_far(self, *events: str) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            for row in map(json.loads, whole.splitlines()):
                if "schema" not in row:
                    self._rows.append(row)
                    self._by_event[row.get("event", "")].append(row)
        if len(events) == 1:
            return self._by_event[events[0]]
        return [row for row in self._rows if row.get("event") in events] if events else self._rows


class Following:
    """Files in a folder that processes write into. A file is followed from the first request for
    its rows."""

    def __init__(self, root: Path) -> None:
        self._root, self._files, self._watched = root, dict[Path, FollowedRows](), set[Path]()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._fd >= 0, os.strerror(ctypes.get_errno())

    def rows(self, name: str, *events: str) -> list[dict[str, Any]]:
        """Return the rows of a file in the folder; with ``events`` only those of these kinds."""
        return self._files.setdefault(self._root / name, FollowedRows(self._root / name)).so_far(
            *events
        )

    def until(
        self,
        what: Callable[[], T],
        about: str,
        within_s: float,
        writer: int | None = None,
        story: Callable[[], str] = str,
    ) -> T:
        """Call ``what`` whenever a file in the folder has changed. Return its first true result.

        Args:
            about: Name of the awaited result, for the error.
            writer: Pid of the process that writes the files; the wait fails when it has ended.
            story: Returns more text for the error.
        """
        ends = time.monotonic() + within_s
        with _open(writer) as gone:
            while True:
                hopeless = gone is not None and bool(select.select([gone], [], [], 0)[0])
                if found := what():
                    return found
                if self._watch_new():
                    continue  # earlier changes in a new folder made no event
                left_s = ends - time.monotonic()
                if hopeless or left_s <= 0:
                    pytest.fail(
                        f"{about} never came{' and its writer has ended' if hopeless else ''}\n"
                        f"{story()}"
                    )
                select.select([self._fd, *([gone] if gone is not None else [])], [], [], left_s)
                with contextlib.suppress(BlockingIOError):
                    os.read(self._fd, 2**16)

    def close(self) -> None:
        os.close(self._fd)

    def _watch_new(self) -> bool:
        """Watch the folders of the files, or their nearest existing parents. Return whether any of
        them is new."""
        folders = set()
        for path in self._files:
            folders.add(next(folder for folder in path.parents if folder.is_dir()))
        new = folders - self._watched
        for folder in new:
            added = self._libc.inotify_add_watch(
                self._fd, os.fsencode(folder), MODIFY | MOVED_TO | CREATE
            )
            assert added >= 0, os.strerror(ctypes.get_errno())
        self._watched |= new
        return bool(new)


@contextlib.contextmanager
def _open(writer: int | None) -> Iterator[int | None]:
    """Yield a descriptor that is readable when a process has ended."""
    try:
        handle = os.pidfd_open(writer) if writer is not None else None
    except ProcessLookupError:
        handle = os.open(os.devnull, os.O_RDONLY)  # the process has ended: always readable
    if handle is None:
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def following(root: Path) -> Iterator[Following]:
    made = Following(root)
    try:
        yield made
    finally:
        made.close()
