"""Writes the records of a run. The disk may fill up, and the folder may be deleted, but training
does not depend on the records.

If a file cannot be written, this is reported once. The newest lines for the file, at most 1 MiB,
stay in memory, and are written when there is space again. If a file is deleted, its lines are lost.
The number of lost lines is recorded.
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
"""Maximum number of bytes of lines that wait in memory, for each file that cannot be written."""
AGAIN_S = 1.0
"""Seconds between two attempts to write."""

ROOM_HINT = "make room on the disk, or find out what changed the folder"

Tell = Callable[[str, str], None]
"""Function that gets a path, and the reason why it cannot be written."""


def in_words(path: str, why: str) -> tuple[str, str]:
    """Return a message to the user about a file that cannot be written, and a hint."""
    message = (
        f"cannot write {path} ({why}): training goes on; the newest content is kept in "
        "memory, and written later"
    )
    return message, ROOM_HINT


class WriteFailures:
    """Record of the files that this process could not write. For each reason, ``tell`` is called
    once, with the first file."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._reported: set[str] = set()
        self.lacking: dict[str, int] = {}
        """Number of lines that each file has lost permanently; the key is the path. The number is 0
        if writing has failed, but no line is lost yet."""

    def failed(self, path: Path, error: OSError) -> None:
        """Record that a file cannot be written. Report it if the reason is new."""
        self.lacks(path)
        why = error.strerror or type(error).__name__
        if why not in self._reported:
            self._reported.add(why)
            self._tell(str(path), why)

    def lacks(self, path: Path) -> None:
        """Record that a file cannot be written, but do not report it."""
        self.lacking.setdefault(str(path), 0)

    def dropped(self, path: Path, lines: int) -> None:
        """Record that ``lines`` lines of a file are lost."""
        self.lacking[str(path)] = self.lacking.get(str(path), 0) + lines

    def recovered(self, path: Path) -> None:
        """Record that all waiting lines were written to the file."""
        if not self.lacking.get(str(path), 1):
            del self.lacking[str(path)]

    def try_to(self, path: Path, act: Callable[[], object]) -> bool:
        """Call ``act``, which writes ``path``. Return whether it has succeeded."""
        try:
            act()
        except OSError as error:
            self.failed(path, error)
            return False
        return True


class Appender:
    """Writer that appends complete lines to a file. It never raises ``OSError``: lines that cannot
    be written wait in memory.

    Args:
        header: First bytes of a new file.
        gather: Whether to write lines only when ``flush`` is called. Otherwise each line is written
            at once.
        rotate_bytes: Size at which the file is rotated (``rotation``); 0 means never.
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
        # Rest of the header that is not in the file yet. The header is never dropped.
        self._head = b""
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._begun = 0  # Number of written bytes of the first waiting line.
        self._written = 0  # Number of complete lines in the file.
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
        """Write the waiting lines. Do not try if writing has failed less than ``AGAIN_S`` ago."""
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
        """Try to write the waiting lines for the last time. Record how many lines are lost."""
        if self._closed:
            return
        self._again_at = min(self._again_at, time.monotonic())
        self._next_check = 0.0
        self.flush()
        self._closed = True
        if self._waiting:
            self._troubles.dropped(self.path, len(self._waiting))
            self._waiting.clear()
        self._close_file()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _check_file(self) -> None:
        """Check once a second, and at the end, whether the file was deleted or rotated. Without
        this check, all later lines would be written to a deleted file."""
        if self._fd < 0 or (now := time.monotonic()) < self._next_check:
            return
        self._next_check = now + AGAIN_S
        if os.fstat(self._fd).st_nlink:
            if self._rotate_bytes and not self._begun and not self._is_in_place():
                self._close_file()  # another process has rotated it
                self._written = 0
            return
        self._close_file()
        if self._written:
            self._troubles.failed(
                self.path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            )
            self._troubles.dropped(self.path, self._written)
        self._written = self._begun = 0

    def _is_in_place(self) -> bool:
        """Whether the open file still has its name."""
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
        """Return a line end if a crash has cut off the last one, so that the next line does not
        continue a partial line. Otherwise return b""."""
        with open(self.path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return b"" if file.read(1) == b"\n" else b"\n"

    def _rotate(self) -> None:
        """Rotate the file if it is large enough and ends with a complete line. If another process
        has already rotated it, only open the new file."""
        if not self._rotate_bytes or self._size < self._rotate_bytes or self._begun:
            return
        if self._is_in_place():
            rotate(self.path)
        self._close_file()
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
        """Remove the first ``written`` bytes of the waiting lines, which are in the file now."""
        while self._waiting and written >= len(self._waiting[0]):
            line = self._waiting.popleft()
            written -= len(line)
            self._bytes -= len(line)
            self._written += 1
        self._begun = written

    def _drop(self) -> None:
        """Drop the oldest waiting lines if there are more than ``KEPT_BYTES``. The rest of a partly
        written line is kept."""
        dropped = 0
        half = self._waiting.popleft() if self._begun and self._waiting else None
        while self._bytes > KEPT_BYTES and self._waiting:
            self._bytes -= len(self._waiting.popleft())
            dropped += 1
        if half is not None:
            self._waiting.appendleft(half)
        if dropped:
            self._troubles.dropped(self.path, dropped)
