"""Reads files and text that other users may control, such as files in a run's folder, and makes
text safe for a terminal.

A process with write access can replace a file by a link, an endless pipe, a device or a gigabyte of
brackets. These functions do not follow links inside a folder, never wait for a writer, and read at
most the requested number of bytes.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

from gossip.errors import ConfigError
from gossip.observe import REAL_MAX, WHOLE_MAX, Event, check_row, read_event

RECORD_BYTES_MAX = 2 * 2**20
"""Maximum size in bytes of a file with one JSON object. A summary of 64 peers has 100 kB."""
TEXT_MAX = 200
_COLOURS = re.compile("\x1b\\[[0-9;:]*m")
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_in(folder: Path, name: str, owners: set[int] | None = None) -> BinaryIO:
    """Open ``folder / name`` for reading. ``name`` may have several parts. None of them may be a
    link.

    Args:
        owners: If given, the user ids that own the folder, its subfolders in ``name`` and the file
            are added to this set.
    Raises:
        FileNotFoundError: There is no such file.
        ConfigError: The file is a link or not a plain file, or cannot be read. The message has the
            reason.
    """
    *folders, last = name.split("/")
    at = -1
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        known = {owner_of(at)}
        for part in folders:
            above, at = at, os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=at)
            os.close(above)
            known.add(owner_of(at))
        file = _plain_file(os.open(last, _FLAGS, dir_fd=at), folder / name, owner_of(at))
        if owners is not None:
            owners |= known | {owner_of(file.fileno())}
        return file
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused(folder / name, error) from error
    finally:
        if at >= 0:
            os.close(at)


def open_file(path: Path | str) -> BinaryIO:
    """Open a file as ``open_in`` does. The file itself may not be a link, but folders in its path
    may be."""
    path = Path(path)
    return open_in(path.parent, path.name)


def _plain_file(fd: int, path: Path, folders_owner: int) -> BinaryIO:
    found = os.fstat(fd)
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        os.close(fd)
        raise ConfigError(
            f"{shown(path)} is {_KINDS.get(kind, 'no plain file')}, where a file is expected"
        )
    # Any user with write access to this folder may have linked another user's file into it.
    if found.st_nlink > 1 and found.st_uid != folders_owner:
        os.close(fd)
        raise ConfigError(f"{shown(path)} is a hard link to another user's file: it is not read")
    return os.fdopen(fd, "rb")


def _refused(path: Path, error: OSError) -> ConfigError:
    why = {
        errno.ELOOP: "is a link, or below a link: links in a run's folder are not followed",
        errno.ENOTDIR: "is below a link or a file: links in a run's folder are not followed",
        errno.ENXIO: "is a socket, where a file is expected",
    }
    return ConfigError(
        f"{shown(path)} {why.get(error.errno or 0) or f'cannot be read: {error.strerror}'}"
    )


def owner_of(fd: int) -> int:
    """Return the user id of the owner of an open file. Its path may by now name another file."""
    return os.fstat(fd).st_uid


def read_at_most(file: BinaryIO, most: int, path: Path | str) -> bytes:
    """Return the contents of a file. Raises: ConfigError: The file has more than ``most`` bytes."""
    data = file.read(most + 1)
    if len(data) > most:
        raise ConfigError(f"{shown(path)} has more than {most} bytes")
    return data


def read_file(path: Path) -> bytes:
    """Return the contents of a small file. Raises: ConfigError: The file cannot be read, or is too
    large."""
    try:
        with open_file(path) as file:
            return read_at_most(file, RECORD_BYTES_MAX, path)
    except OSError as error:
        raise _refused(path, error) from error


def parse_json(data: bytes | str) -> Any:
    """Return the value in a JSON text. Raises: ValueError: The text is not JSON, or has thousands
    of nested brackets."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("too many nested brackets") from error


def read_object(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the JSON object in ``folder / name``; None if there is no such file.

    Raises: ConfigError: The file cannot be read, is too large, or is not a JSON object.
    """
    try:
        with open_in(folder, name) as file:
            data = read_at_most(file, RECORD_BYTES_MAX, folder / name)
    except FileNotFoundError:
        return None
    return object_in(data, folder / name)


def object_in(data: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object in ``data``, which was read from ``path``. Raises: ConfigError:
    ``data`` is not a JSON object."""
    try:
        found = parse_json(data)
    except ValueError as error:
        raise ConfigError(f"{shown(path)} is not JSON: {shown(error)}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{shown(path)} is not a JSON object")
    return found


def last_events(file: BinaryIO, tail_bytes: int) -> list[Event]:
    """Return the events in the last ``tail_bytes`` bytes of a file of events."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - tail_bytes))
    found = []
    for line in file.read(tail_bytes).splitlines():
        try:
            found.append(read_event(check_row(parse_json(line), "events")))
        except ValueError:
            continue  # an incomplete line: the first line may be cut, and the last unfinished
    return found


def whole(value: object) -> int | None:
    """Return the value if it is a whole number from 0; otherwise None."""
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < WHOLE_MAX
        else None
    )


def real(value: object) -> float | None:
    """Return the value as a float if it is a finite number; otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < REAL_MAX:
        return None
    return float(value)


def text_of(value: object) -> str | None:
    """Return the beginning of a text, made safe for a terminal; None if ``value`` is not text."""
    return shown(value[:TEXT_MAX]) if isinstance(value, str) else None


def shown(text: object) -> str:
    """Make a text safe for a terminal: escape control and format characters, which could change the
    terminal."""
    plain = str(text)
    if plain.isprintable():
        return plain
    plain = plain.translate(_CONTROL)  # fast: a log may be a megabyte of zeros
    rest = plain.translate(_BLANKS)
    return (
        plain
        if rest.isprintable()
        else "".join([each if _is_plain(each) else _escaped(each) for each in plain])
    )


def shown_lines(text: object) -> str:
    """Make a text of several lines safe for a terminal."""
    return "\n".join(map(shown, str(text).split("\n")))


def shown_line(text: str) -> str:
    """Make a line of a script's output safe for a terminal, and remove its colours."""
    return text if text.isprintable() else shown(_COLOURS.sub("", text))


def _is_plain(character: str) -> bool:
    return character.isprintable() or character in "\t\u00a0"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


_CONTROL = {code: _escaped(chr(code)) for code in range(0xA0) if not _is_plain(chr(code))}
_BLANKS = {ord("\t"): " ", 0xA0: " "}
