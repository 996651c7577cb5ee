"""Records of a run, on disks that fill up, in folders that may be deleted: training does not depend
on the records.

A file that cannot be written is reported once. Its lines are kept in memory, the newest mebibyte of
them, and written when there is room again. The content of a deleted file is lost, and counted.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from .rotation import rotate

KEPT_BYTES = 2**20
"""Bytes of the newest lines that are kept for each file that cannot be written."""
AGAIN_S = 1.0
"""Seconds between two attempts to write."""

ROOM_HINT = "make room on the disk, or find out what changed the folder"

Tell = Callable[[str, str], None]
"""Takes a path and why it cannot be written."""


def in_words(path: str, why: str) -> tuple[str, str]:
    """Return the message to the user, and a hint."""
    message = (
        f"cannot write {path} ({why}): training goes on without it; what is newest is kept in "
        "memory, and written later"
    )
    return message, ROOM_HINT


class WriteFailures:
    """Files that one process could not write. ``tell`` receives the first file of each reason."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._told: set[str] = set()
        self.lacking: dict[str, int] = {}
        """Files that are not as they should be -> lines that each lacks for good; 0: it could not
        be written at some time."""

    def failed(self, path: Path, error: OSError) -> None:
        """Training goes on."""
        self.lacks(path)
        why = error.strerror or type(error).__name__
        if why not in self._told:
            self._told.add(why)
            self._tell(str(path), why)

    def lacks(self, path: Path) -> None:
        """It cannot be written, and somebody else tells of it."""
        self.lacking.setdefault(str(path), 0)

    def dropped(self, path: Path, lines: int) -> None:
        """They are lost: what is kept has a bound."""
        self.lacking[str(path)] = self.lacking.get(str(path), 0) + lines

    def recovered(self, path: Path) -> None:
        """All that was kept is in its file."""
        if not self.lacking.get(str(path), 1):
            del self.lacking[str(path)]

    def try_to(self, path: Path, act: Callable[[], object]) -> bool:
        """Whether ``act``, which writes ``path``, came through."""
        try:
            act()
        except OSError as error:
            self.failed(path, error)
            return False
        return True


class Appender:
    """Appends whole lines to a file. Never raises ``OSError``: what cannot be written waits.

    Args:
        header: What a new file begins with.
        gather: Lines are written when ``flush`` is called, all at once; otherwise each at once.
        rotate_bytes: A file that is larger is cut (``rotation``); 0: it never is.
    """

    def __init__(
        self,
        path: Path,
        troubles: WriteFailures,
        header: bytes = b"",
        gather: bool = False,
        rotate_bytes: int = 0,
    ) -> None:
        self.path, self._troubles, self._header, self._gather = path, troubles, header, gather
        self._fd = -1
        # of the header, what is not in the file yet: it is never dropped, and no line
        self._head = b""
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._begun = 0  # bytes of the first line that are written already
        self._written = 0  # whole lines that are in the file
        self._again_at = 0.0
        self._next_check = 0.0
        self._rotate_bytes, self._size = rotate_bytes, 0
        self._closed = False
        self.flush()

    def append(self, line: bytes) -> None:
        self._waiting.append(line)
        self._bytes += len(line)
        if not self._gather:
            self.flush()
        elif self._again_at:
            self._drop()

    def flush(self) -> None:
        """Writes what waits, unless that was tried in vain a moment ago."""
        if self._closed or (self._again_at and time.monotonic() < self._again_at):
            self._drop()
            return
        try:
            self._check_file()
            self._open()
            self._write()
            self._rotate()
        except OSError as error:
            self._again_at = time.monotonic() + AGAIN_S
            self._troubles.failed(self.path, error)
            self._drop()
            return
        if self._again_at:
            self._again_at = 0.0
            self._troubles.recovered(self.path)

    def close(self) -> None:
        """Tries for the last time. What still waits then is lost, and counted."""
        if self._closed:
            return
        self._again_at = min(self._again_at, time.monotonic())
        self._next_check = 0.0
        self.flush()
        self._closed = True
        if self._waiting:
            self._troubles.dropped(self.path, len(self._waiting))
            self._waiting.clear()
        self._let_go()

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _check_file(self) -> None:
        """Once a second, and at the end: of a file that was deleted all is lost, and whatever was
        written on would be."""
        if self._fd < 0 or (now := time.monotonic()) < self._next_check:
            return
        self._next_check = now + AGAIN_S
        if os.fstat(self._fd).st_nlink:
            if self._rotate_bytes and not self._begun and not self._is_in_place():
                self._let_go()  # another process has cut it
                self._written = 0
            return
        self._let_go()
        if self._written:
            self._troubles.failed(
                self.path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            )
            self._troubles.dropped(self.path, self._written)
        self._written = self._begun = 0

    def _is_in_place(self) -> bool:
        """Whether what is open has its name still."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _open(self) -> None:
        if self._fd >= 0:
            return
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._size = os.fstat(self._fd).st_size
        self._head = self._mend() if self._size else self._header

    def _mend(self) -> bytes:
        """The end of a line that a crash has torn: what comes next is a line of its own."""
        with open(self.path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return b"" if file.read(1) == b"\n" else b"\n"

    def _rotate(self) -> None:
        """A file that is large enough is cut between two lines. Another process that appends to it
        may have done that before: then this one goes on in the new file, too."""
        if not self._rotate_bytes or self._size < self._rotate_bytes or self._begun:
            return
        if self._is_in_place():
            rotate(self.path)
        self._let_go()
        self._written = 0
        self._open()

    def _write(self) -> None:
        while self._head:
            written = os.write(self._fd, self._head)
            self._head, self._size = self._head[written:], self._size + written
        while self._waiting:
            data = b"".join(self._waiting)[self._begun :]
            written = os.write(self._fd, data)
            self._size += written
            self._drop_written(self._begun + written)

    def _drop_written(self, written: int) -> None:
        """Drop ``written`` bytes of the waiting lines, which are in the file now."""
        while self._waiting and written >= len(self._waiting[0]):
            line = self._waiting.popleft()
            written -= len(line)
            self._bytes -= len(line)
            self._written += 1
        self._begun = written

    def _drop(self) -> None:
        """The oldest lines, where too much waits; of one that is in the file by half,
        the rest is kept."""
        dropped = 0
        half = self._waiting.popleft() if self._begun and self._waiting else None
        while self._bytes > KEPT_BYTES and self._waiting:
            self._bytes -= len(self._waiting.popleft())
            dropped += 1
        if half is not None:
            self._waiting.appendleft(half)
        if dropped:
            self._troubles.dropped(self.path, dropped)
