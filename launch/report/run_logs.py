"""``gossip logs``: output of a run's peers, each line with its peer in front."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import sleep
from typing import BinaryIO

from gossip.errors import ConfigError
from gossip.run import open_in, shown

LOG = "out.log"
LOOK_EVERY_S = 0.1
BLOCK_BYTES = 64 * 1024
LINE_BYTES_MAX = 16 * 1024
"""Maximum bytes of a line that is shown. A longer line is shown in parts."""
NULS_LEAST = 16
_NULS = re.compile(rb"\0{%d,}" % NULS_LEAST)

Write = Callable[[int, str], None]
"""Function that receives a peer and a line of its output."""


def peers_with_logs(folder: Path) -> list[int]:
    """Return the peers that have a log, ascending."""
    try:
        names = [
            name.removeprefix("peer-") for name in os.listdir(folder) if name.startswith("peer-")
        ]
    except OSError:
        return []  # It was removed, or is no longer readable.
    own = [name for name in names if name.isdecimal() and name == str(int(name))]
    return sorted(int(name) for name in own if os.path.lexists(folder / f"peer-{name}" / LOG))


def show(folder: Path, peers: Iterable[int], lines: int | None, write: Write) -> dict[int, Tail]:
    """Write the last ``lines`` of each peer; None means all. Return the tails for ``follow``."""
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
    """Write new lines, also of peers that join later, until the run is over and all is read."""
    while True:
        last = not goes_on()  # Check this first: the lines from before the end are then read below.
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
        self._rest = b""  # an incomplete line, without trailing NUL bytes
        self._nuls = 0  # number of its trailing NUL bytes
        if lines is not None and (file := self._open()) is not None:
            with file:
                self._at = _begin_of_last(file, lines)

    def _open(self) -> BinaryIO | None:
        if self.why_not:
            return None
        try:
            return open_in(self._folder, self._name)
        except FileNotFoundError:
            self.why_not = f"{shown(self._folder / self._name)} is gone"
        except ConfigError as error:
            self.why_not = str(error)
        return None

    def read(self, whole: bool = False) -> Iterator[str]:
        """Yield the lines since the last call. ``whole``: whether to keep an incomplete last line
        for the next call."""
        file = self._open()
        if file is None:
            return
        with file:
            file.seek(self._at)
            while block := file.read(BLOCK_BYTES):
                self._at += len(block)
                yield from self._split_block(block)
                if self._nuls >= BLOCK_BYTES:
                    self._skip_hole(file)
        if not whole and (rest := self._rest + _in_words(self._nuls)):
            yield _text(rest)
            self._rest, self._nuls = b"", 0

    def _split_block(self, block: bytes) -> Iterator[str]:
        """Yield the lines that end in a block, and the parts of an incomplete line that exceed
        ``LINE_BYTES_MAX``."""
        body = block.lstrip(b"\0")
        self._nuls += len(block) - len(body)
        if not body:
            return
        said = body.rstrip(b"\0")
        text = (
            self._rest + _in_words(self._nuls) + _NULS.sub(lambda run: _in_words(len(run[0])), said)
        )
        self._nuls = len(body) - len(said)
        *done, rest = text.split(b"\n")
        for line in done:
            yield from map(_text, _parts(line))
        *parts, self._rest = _parts(rest)
        yield from map(_text, parts)

    def _skip_hole(self, file: BinaryIO) -> None:
        """Skip a hole in the file: its bytes were never written. It appears if the file is
        truncated under its writer, or enlarged."""
        end = os.fstat(file.fileno()).st_size
        try:
            begin = file.seek(self._at, os.SEEK_DATA)
        except OSError as error:
            # Only the hole is left, or the file system does not report holes.
            begin = file.seek(max(self._at, end) if error.errno == errno.ENXIO else self._at)
        self._nuls += begin - self._at
        self._at = begin


def _in_words(nuls: int) -> bytes:
    """Return the text for a sequence of NUL bytes; a short one stays as it is."""
    return b"\0" * nuls if nuls < NULS_LEAST else b"(%d NUL bytes)" % nuls


def _parts(line: bytes) -> list[bytes]:
    return [line[at : at + LINE_BYTES_MAX] for at in range(0, max(1, len(line)), LINE_BYTES_MAX)]


def _text(line: bytes) -> str:
    """Return a line as a terminal finally shows it: of a progress bar only the last state."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", "replace")


def _begin_of_last(file: BinaryIO, lines: int) -> int:
    """Return the offset at which the last ``lines`` lines begin. Each line is shown with at most
    ``LINE_BYTES_MAX`` bytes."""
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
