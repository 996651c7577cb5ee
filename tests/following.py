"""Waiting for what a run writes down, until its files say so, their writer has ended or the time is over. Nothing sleeps."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
MODIFY, MOVED_TO, CREATE = 0x2, 0x80, 0x100  # of inotify(7)


class Rows:
    """The rows of a file of JSON lines, read as it grows: every line once, and none before it is whole."""

    def __init__(self, path: Path) -> None:
        self._path, self._read, self._rows = path, 0, list[dict[str, Any]]()

    def so_far(self) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            found = map(json.loads, whole.splitlines())
            self._rows += [row for row in found if "schema" not in row]
        return self._rows


class Following:
    """A folder that processes write into, with what is in it."""

    def __init__(self, root: Path) -> None:
        self._root, self._files, self._watched = root, dict[Path, Rows](), set[Path]()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._fd >= 0, os.strerror(ctypes.get_errno())

    def rows(self, name: str, *events: str) -> list[dict[str, Any]]:
        """Of a file in the folder; with ``events`` those of that kind only."""
        rows = self._files.setdefault(self._root / name, Rows(self._root / name)).so_far()
        return [row for row in rows if not events or row.get("event") in events]

    def until(
        self, what: Callable[[], T], about: str, within_s: float, writer: int | None = None, story: Callable[[], str] = str
    ) -> T:
        """What ``what`` returns as soon as it is true, looked at whenever a file in the folder has changed.

        Args:
            about: What is waited for, to be said when it does not come.
            writer: The pid of a process whose end is the end of all hope.
            story: What to tell beside it.
        """
        ends = time.monotonic() + within_s
        with _open(writer) as gone:
            while True:
                while self._watch_new():
                    pass  # until there is nothing new: what came before its folder was watched told us nothing
                hopeless = gone is not None and bool(select.select([gone], [], [], 0)[0])
                if found := what():
                    return found
                left_s = ends - time.monotonic()
                if hopeless or left_s <= 0:
                    pytest.fail(f"{about} never came{' and its writer has ended' if hopeless else ''}\n{story()}")
                select.select([self._fd, *([gone] if gone is not None else [])], [], [], left_s)
                with contextlib.suppress(BlockingIOError):
                    os.read(self._fd, 2**16)

    def close(self) -> None:
        os.close(self._fd)

    def _watch_new(self) -> bool:
        """Watches folders that have come; whether there were any."""
        root = self._root
        while not root.is_dir():
            root = root.parent
        folders = {root, *(path for path in root.iterdir() if path.is_dir())} if root == self._root else {root}
        new = folders - self._watched
        for folder in new:
            added = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), MODIFY | MOVED_TO | CREATE)
            assert added >= 0, os.strerror(ctypes.get_errno())
        self._watched |= new
        return bool(new)


@contextlib.contextmanager
def _open(writer: int | None) -> Iterator[int | None]:
    """A descriptor that can be read when a process has ended."""
    try:
        handle = os.pidfd_open(writer) if writer is not None else None
    except ProcessLookupError:
        handle = os.open(os.devnull, os.O_RDONLY)  # it has ended before we looked: always readable
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
