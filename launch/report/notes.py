"""Notes of users about a run: ``notes.jsonl`` in its folder, and a line each in its logbook.

Any user with write access to the folder may add a note, during the run or years later.
"""

from __future__ import annotations

import datetime
import getpass
import os
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError
from gossip.run import shown, text_of, to_json

FILE, LOGBOOK = "notes.jsonl", "logbook.md"
SCHEMA = "gossip.notes/1"
NOTE_MAX = 2000
"""Maximum number of characters of a note."""
NOTES_MAX = 10_000
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Note:
    """``wall``: when it was written, in seconds since 1970. ``by``: user and host."""

    wall: float
    by: str
    text: str


def write(folder: Path, text: str) -> Note:
    """Add a note to the run in ``folder``.

    Raises: ConfigError: The note is empty or too long, or its files cannot be written, or are not
        plain files of this folder.
    """
    said = " ".join(text.split())
    if not said:
        raise ConfigError("the note is empty", 'gossip note RUN "what you want to remember"')
    if len(said) > NOTE_MAX:
        raise ConfigError(f"a note has at most {NOTE_MAX} characters, this one has {len(said)}")
    note = Note(time.time(), f"{_user()}@{socket.gethostname()}", said)
    row = to_json({"wall": note.wall, "by": note.by, "text": note.text}) + "\n"
    now = datetime.datetime.fromtimestamp(note.wall).astimezone()
    when = now.isoformat(sep=" ", timespec="seconds")
    _append(folder, FILE, row.encode(), (to_json({"schema": SCHEMA}) + "\n").encode())
    line = f"- {when} note by {note.by}: {note.text}\n"
    _append(folder, LOGBOOK, line.encode("utf-8", "backslashreplace"), b"")
    return note


def note_of(row: Mapping[str, Any]) -> Note | None:
    """Return the note of a row of the file; None if the row is not a note."""
    text = row.get("text")
    if text is None:
        return None
    return Note(row["t"], text_of(row.get("by")) or "", shown(text[:NOTE_MAX]))


def _append(folder: Path, name: str, line: bytes, header: bytes) -> None:
    """Append with one write: a launcher may append at the same time, and must not split the
    line."""
    try:
        fd = os.open(folder / name, _FLAGS, 0o666)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise ConfigError(f"{shown(folder / name)} is not a plain file of this run")
            os.write(fd, line if found.st_size else header + line)
        finally:
            os.close(fd)
    except OSError as error:
        raise ConfigError(f"cannot write {shown(folder / name)}: {error.strerror}") from error


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # In a container the user may have no name.
        return str(os.getuid())
