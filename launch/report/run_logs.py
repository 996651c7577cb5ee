"""``gossip logs``: shows the output of peers, each line with its peer in front. Also finds the
error that ended a script."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path, PurePath
from time import sleep
from typing import BinaryIO

from gossip.errors import ConfigError
from gossip.observe import documents
from gossip.run import open_in, read_object, shown, text_of

from .growing import RunFiles

LOG = "out.log"
ERROR = "error.json"
ERROR_CHARS_MAX = 240
ERROR_LINES = 20
"""Number of last lines of output that are searched for the error of a script."""
LOOK_EVERY_S = 0.1
BLOCK_BYTES = 64 * 1024
LINE_BYTES_MAX = 16 * 1024
"""Maximum number of bytes that are shown as one line. A longer line is shown as several lines."""

Write = Callable[[int, str], None]
"""Function that receives a peer and a line of its output."""


def peers_with_logs(folder: Path) -> list[int]:
    """Return the peers that have a log, ascending."""
    peers = RunFiles(folder).peers()
    return [peer for peer in peers if os.path.lexists(folder / f"peer-{peer}" / LOG)]


def show(folder: Path, peers: Iterable[int], lines: int | None, write: Write) -> dict[int, Tail]:
    """Write the last ``lines`` lines of each peer; None means all lines. Return the tails, which
    ``follow`` takes as an argument."""
    tails = {}
    for peer in peers:
        tails[peer] = tail = Tail(folder, f"peer-{peer}/{LOG}", lines)
        for line in tail.read():
            write(peer, line)
    return tails


def follow(
    folder: Path,
    tails: dict[int, Tail],
    wanted: Callable[[int], bool],
    goes_on: Callable[[], bool],
    write: Write,
) -> None:
    """Write new lines, also of peers that join later, until the run is over and all lines were
    written."""
    while True:
        # Check this before reading, so that all lines from before the end are read.
        last = not goes_on()
        for peer in peers_with_logs(folder):
            if wanted(peer) and peer not in tails:
                tails[peer] = Tail(folder, f"peer-{peer}/{LOG}", None)
        for peer, tail in sorted(tails.items()):
            for line in tail.read(whole=not last):
                write(peer, line)
        if last:
            return
        sleep(LOOK_EVERY_S)


class Tail:
    """Reader of a growing file, line by line, starting with its last ``lines`` lines. The file must
    be neither a link nor a pipe (``gossip.run.untrusted``).

    ``why_not``: why the file cannot be read; "" if it can.
    """

    def __init__(self, folder: Path, name: str, lines: int | None) -> None:
        self._folder, self._name = folder, name
        self.why_not = ""
        self._at = 0
        self._rest = b""  # an incomplete line
        if lines is not None and (file := self._open()) is not None:
            with file:
                self._at = _begin_of_last(file, lines)

    def _open(self) -> BinaryIO | None:
        if self.why_not:
            return None
        path = shown(self._folder / self._name)
        try:
            file = open_in(self._folder, self._name)
            # ``size`` is a lower bound: a launcher may append at any time.
            size = os.fstat(file.fileno()).st_size
            if self._at >= size or _hole_from(file, self._at) >= size:
                return file
            # A launcher only appends, so it leaves no hole. In a tampered folder, a hole could
            # simulate any number of bytes.
            file.close()
            self.why_not = f"{path} has a hole, which no launcher has written"
        except FileNotFoundError:
            self.why_not = f"{path} is gone"
        except ConfigError as error:
            self.why_not = str(error)
        return None

    def read(self, whole: bool = False) -> Iterator[str]:
        """Yield the lines that were written since the last call. ``whole``: whether to keep an
        incomplete last line for the next call."""
        file = self._open()
        if file is None:
            return
        with file:
            file.seek(self._at)
            while block := file.read(BLOCK_BYTES):
                self._at += len(block)
                *done, rest = (self._rest + block).split(b"\n")
                # An incomplete line that is too long is shown in parts, except for its last part.
                *parts, self._rest = _parts(rest)
                yield from map(_text, [*chain.from_iterable(map(_parts, done)), *parts])
        if not whole and self._rest:
            yield _text(self._rest)
            self._rest = b""


def _hole_from(file: BinaryIO, at: int) -> float:
    """Return the offset at which the first hole after ``at`` begins. In a file without holes this
    is its end."""
    try:
        return file.seek(at, os.SEEK_HOLE)
    except OSError as error:
        # The file has shrunk, or this file system does not report holes.
        if error.errno not in (errno.ENXIO, errno.EINVAL):
            raise
        return math.inf


def _parts(line: bytes) -> list[bytes]:
    return [line[at : at + LINE_BYTES_MAX] for at in range(0, max(1, len(line)), LINE_BYTES_MAX)]


def _text(line: bytes) -> str:
    """Return a line as a terminal shows it in the end. For example, only the last state of a
    progress bar is left."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", "replace")


def _begin_of_last(file: BinaryIO, lines: int) -> int:
    """Return the offset at which the last ``lines`` lines begin. At most ``LINE_BYTES_MAX`` bytes
    are searched for each line."""
    end = at = file.seek(0, os.SEEK_END)
    if lines <= 0 or end == 0:
        return end
    file.seek(end - 1)
    need = lines + 1 if file.read(1) == b"\n" else lines
    first = max(0, end - need * LINE_BYTES_MAX)
    while at > first:
        size = min(BLOCK_BYTES, at - first)
        at -= size
        file.seek(at)
        block = file.read(size)
        if (found := block.count(b"\n")) < need:
            need -= found
            continue
        place = size
        for _ in range(need):
            place = block.rfind(b"\n", 0, place)
        return at + place + 1
    return first


def script_error(folder: Path, peer: int) -> str:
    """Return the error of a peer's script, such as ``NameError: name 'x' is not defined
    (train.py:24)``. If the script ended before ``gossip.init()``, return its last line of output;
    "" if there is no output.

    Args:
        folder: Folder of the run.
    """
    try:
        written = read_object(folder, f"peer-{peer}/{ERROR}") or {}
    except ConfigError:
        written = {}  # If the file is invalid, use the log, which also contains the error.
    said = _message_of(documents.ScriptError.pick(written)) if written else _last_line(folder, peer)
    return said if len(said) <= ERROR_CHARS_MAX else f"{said[: ERROR_CHARS_MAX - 3]}..."


def _message_of(error: documents.ScriptError) -> str:
    first = error.message.strip().splitlines()[:1]
    last = documents.ScriptFrame.pick(error.frames[-1] if error.frames else None)
    name = text_of(last.file)
    where = f" ({PurePath(name).name}:{last.line})" if name else ""
    return shown(": ".join([text_of(error.type) or "error", *first])) + where


def _last_line(folder: Path, peer: int) -> str:
    lines = list(Tail(folder, f"peer-{peer}/{LOG}", ERROR_LINES).read())
    return shown(next((each.strip() for each in reversed(lines) if each.strip()), ""))
