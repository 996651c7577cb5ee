"""``gossip logs``: what the peers of a run have written, each line with its peer in front; as it comes, if wanted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from gossip.errors import ConfigError
from gossip.run import open_in, shown

LOG = "out.log"
LOOK_EVERY_S = 0.1
BLOCK_BYTES = 64 * 1024
LINE_BYTES_MAX = 64 * 1024

Write = Callable[[int, str], None]
"""Takes a peer and a line of it."""


def peers_with_logs(folder: Path) -> list[int]:
    """Whose log there is, ascending."""
    try:
        names = [name.removeprefix("peer-") for name in os.listdir(folder) if name.startswith("peer-")]
    except OSError:
        return []  # somebody has removed it meanwhile, or closed it
    own = [name for name in names if name.isdecimal() and name == str(int(name))]
    return sorted(int(name) for name in own if os.path.lexists(folder / f"peer-{name}" / LOG))


def show(folder: Path, peers: Iterable[int], lines: int | None, write: Write) -> dict[int, Tail]:
    """Writes the last ``lines`` of each (None: all). Returns where to go on."""
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
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Writes what comes, of those too who join later, until the run is over and all is read."""
    while True:
        last = not goes_on()  # asked first: what was written before the end is read after it
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
    """A file that grows, read line by line, from its ``lines`` last ones on: no link, and no pipe (``gossip.run.untrusted``).

    ``why_not``: it is one, or cannot be read any more; "": it can.
    """

    def __init__(self, folder: Path, name: str, lines: int | None) -> None:
        self._folder, self._name = folder, name
        self.why_not = ""
        self._at = 0
        self._rest = b""
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
        """What has come since. ``whole``: a last line without its end is kept for the next time, when it may have one."""
        file = self._open()
        if file is None:
            return
        with file:
            file.seek(self._at)
            while block := file.read(BLOCK_BYTES):
                self._at += len(block)
                *done, self._rest = (self._rest + block).split(b"\n")
                for line in done:
                    yield _text(line)
                if len(self._rest) > LINE_BYTES_MAX:  # a line that has no end
                    yield _text(self._rest)
                    self._rest = b""
        if self._rest and not whole:
            yield _text(self._rest)
            self._rest = b""


def _text(line: bytes) -> str:
    """As a terminal would end up with it: of a progress bar, its last state."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", "replace")


def _begin_of_last(file: BinaryIO, lines: int) -> int:
    """Where the last so many lines begin, of which each has ``LINE_BYTES_MAX`` at most when it is shown."""
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
