"""Readers of files of JSON lines that grow while they are read, and of the folder of a run with
these files.

Processes of this or another machine may append to a file of a run while it is read. A row is
yielded once, as soon as its line is complete. A line that a crash left incomplete is skipped and
counted.
"""

from __future__ import annotations

import heapq
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from gossip.errors import ConfigError
from gossip.observe import PEERS_MAX, CommitRow, Event, Row, check_row, read_commits, read_event
from gossip.run import open_in, parse_json, shown, unpacked

from .words import counted

BLOCK_BYTES = 256 * 1024
LINE_BYTES_MAX = 2**20
REFUSED_BYTES_MAX = 16 * 2**20
"""Maximum total bytes of lines in one file that are not rows. Beyond it, the file is not read
further."""
TAILS_KEPT = 16
LATE_S_MAX = 5.0
"""Maximum delay of a row behind later rows in a launcher's file, in seconds. A launcher reads the
messages of one peer after the other."""
TAIL_BEGIN = b',"contributors":'
"""Start of the part of a line about a commit that is the same in the files of all peers."""
_DECODER = json.JSONDecoder()
_PEER = re.compile(r"peer-(0|[1-9]\d{0,3})")


def parse_line(line: bytes, file: str) -> Row:
    """Parse a line of the file named ``file``. Part of the line is the same for all peers of a
    round; with hundreds of peers this is most of the line. It is parsed and checked once, and the
    rows share its values. Raises: ValueError: The line is not a row."""
    at = line.find(TAIL_BEGIN)
    if at < 0:
        return check_row(_parsed(str(line, "utf-8")), file)
    try:
        row = check_row(_parsed(str(line[:at], "utf-8") + "}"), file)
        # In files that have no events, the field ``event`` may be any text.
        row.update(_parse_tail(line[at:], str(row.get("event")), file))
    except ValueError:
        return check_row(parse_json(line), file)  # The tail began inside a nested object.
    return row


@lru_cache(TAILS_KEPT)
def _parse_tail(text: bytes, event: str, file: str) -> Row:
    """Return the fields in ``text``, the end of a line about an event of the type ``event``."""
    found = check_row({"event": event, **parse_json(b"{" + text[1:])}, file)
    if found.pop("event") != event:
        raise ValueError("the line has two fields event")
    return found


def _parsed(text: str) -> Any:
    """Parse JSON as ``parse_json`` does, in two thirds of the time."""
    try:
        found, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return parse_json(text)  # The text begins with blanks, or is not JSON.
    return found if end == len(text) else parse_json(text)


class GrowingFile:
    """Reader of the file ``folder / name``, which yields each row once, in order. The file must be
    neither a link nor a pipe.

    Rotated segments are read first: ``name.000001.gz``, ``name.000002`` and so on, then ``name``.
    If the file is rotated between two calls, the reader continues in its segment.

    Attributes:
        why_not: Why the file cannot be read; "" if it can be read, or does not exist yet.
        refused: Number of lines that are not rows, because of a crash during writing, or a later
            edit. ``why_refused``: number and error of the first such line.
        replaced: Whether another file has replaced this file. The other file is not read.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        self._folder, self._name = folder, name
        self.why_not = ""
        self.refused, self.why_refused = 0, ""
        self._refused_bytes = 0
        self.replaced = False
        self._segments = 0  # Number of segments that were read to their ends.
        self._lines = 0  # Number of lines read in the next segment, or in the file itself.
        self._at = 0  # Offset in the next segment, or in the file itself.
        self._rest = b""  # Incomplete last line.
        self._seen = -1, -1, -1  # Inode, size and modification time at the last reading.
        self._inode = -1  # Inode of the file that ``_at`` belongs to.

    def rows(self) -> Iterator[Row]:
        """Yield the rows that have arrived since the last call."""
        if self.why_not or self.replaced or not self._changed():
            return
        try:
            while (segment := self._open_segment()) is not None:
                yield from self._read_segment(*segment)
                self._segments, self._at, self._rest, self._inode = self._segments + 1, 0, b"", -1
                self._lines = 0
            yield from self._read_rest()
        except FileNotFoundError:
            self._seen = -1, -1, -1  # just rotated or removed: the next call tries again
        except (ConfigError, OSError, EOFError, zlib.error) as error:
            self.why_not = str(error)

    def _changed(self) -> bool:
        """Whether the file has changed since the last call. Usually most of hundreds of files have
        not, and ``stat`` is cheaper than opening them."""
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return False
        now = found.st_ino, found.st_size, found.st_mtime_ns
        seen, self._seen = self._seen, now
        # An empty file counts, because its data may just have been rotated. Links and pipes also
        # count: opening them raises an error.
        return seen != now

    def _open_segment(self) -> tuple[str, BinaryIO] | None:
        """Open the next segment; None if there is none."""
        while (name := self._next_segment()) is not None:
            with suppress(FileNotFoundError):  # The segment was compressed in between.
                return name, open_in(self._folder, name)
        return None

    def _next_segment(self) -> str | None:
        folder, _, base = self._name.rpartition("/")
        for end in ("", ".gz"):
            name = f"{base}.{self._segments + 1:06d}{end}"
            if os.path.lexists(self.path.with_name(name)):
                return f"{folder}/{name}" if folder else name
        return None

    def _read_segment(self, name: str, file: BinaryIO) -> Iterator[Row]:
        with file:
            whole = unpacked(file, name)
            whole.seek(self._at)
            while block := whole.read(BLOCK_BYTES):
                yield from self._parse_block(block)

    def _read_rest(self) -> Iterator[Row]:
        """Yield new rows of the file itself. The file is opened for each block and closed again,
        because a swarm may have more files than a process can hold open."""
        while block := self._next_block():
            yield from self._parse_block(block)

    def _next_block(self) -> bytes:
        with open_in(self._folder, self._name) as file:
            found = os.fstat(file.fileno())
            if self._inode not in (-1, found.st_ino) or found.st_size < self._at:
                rotated = self._next_segment() is not None
                self.replaced, self._seen = not rotated, (-1, -1, -1)
                return b""
            self._inode = found.st_ino
            file.seek(self._at)
            return file.read(BLOCK_BYTES)

    def _parse_block(self, block: bytes) -> Iterator[Row]:
        self._at += len(block)
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._lines += 1
            if line and (row := self._row(line)) is not None:
                yield row

    def _row(self, line: bytes) -> Row | None:
        try:
            if len(line) > LINE_BYTES_MAX:
                raise ValueError(f"it has more than {LINE_BYTES_MAX} bytes")
            row = parse_line(line, self.path.name)
        except ValueError as error:
            self.why_refused = self.why_refused or f"line {self._lines}: {error}"
            self.refused += 1
            self._refused_bytes += len(line)
            if self._refused_bytes > REFUSED_BYTES_MAX:
                raise ConfigError(
                    f"{shown(self.path)} is not a file of a run: {self.why_refused}"
                ) from None
            return None
        return None if "schema" in row else row


class RunFiles:
    """Reader of all files of a run. Its methods yield new rows.

    The field ``t`` of each row is replaced by seconds since 1970, from the clock of the machine
    that wrote the row, because monotonic clocks of several machines cannot be compared.

    Attributes:
        folder: Folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, GrowingFile] = {}

    @property
    def broken(self) -> list[str]:
        """A line of text for each file that cannot be read, or that contains lines which are not
        rows."""
        return [
            file.why_not
            or f"{counted(file.refused, 'line')} of {name} could not be read, the first in "
            f"{file.why_refused}"
            for name, file in self._files.items()
            if file.why_not or file.refused
        ]

    @property
    def replaced(self) -> bool:
        """Whether a file has been replaced by another, so that the run must be read again."""
        return any(file.replaced for file in self._files.values())

    def peers(self) -> list[int]:
        """Return the peers that have a folder here, ascending."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []  # The folder was removed, or is no longer readable.
        found = sorted(int(match[1]) for name in names if (match := _PEER.fullmatch(name)))
        return found[:PEERS_MAX]

    def events(self) -> Iterator[Event]:
        """Yield the new events of the launchers, by time. Without a launcher, as under torchrun,
        yield the events that the peers have written."""
        return map(read_event, self._by_time(self._event_files(), in_order))

    def commits(self) -> Iterator[CommitRow]:
        """Yield the new commits of all shards and branches, by the time at which peers recorded
        them. A commit that two peers recorded appears twice."""
        return read_commits(self._by_time(self._files_of("commits")))

    def metrics(self) -> Iterator[Row]:
        """Yield new rows that scripts have logged, by time."""
        return self._by_time(self._files_of("metrics"))

    def _event_files(self) -> list[GrowingFile]:
        return [*map(self._file, event_files(self.folder))] or self._files_of("events")

    def _files_of(self, kind: str) -> list[GrowingFile]:
        """Return the files of this kind of all peers. If there are none, return the merged file."""
        names = [f"peer-{peer}/{kind}.jsonl" for peer in self.peers()]
        there = [name for name in names if os.path.lexists(self.folder / name)]
        return [self._file(name) for name in there or [f"{kind}.jsonl"]]

    def _file(self, name: str) -> GrowingFile:
        return self._files.setdefault(name, GrowingFile(self.folder, name))

    def _by_time(
        self,
        files: list[GrowingFile],
        of_each: Callable[[Iterable[Row]], Iterator[Row]] = iter,
    ) -> Iterator[Row]:
        rows = (of_each(map(_on_wall_clock, file.rows())) for file in files)
        return heapq.merge(*rows, key=_time_of)


def event_files(folder: Path) -> list[str]:
    """Return the names of the files to which the launchers of the run append events: one file, or
    one for each task of a scheduler."""
    names = ["events.jsonl", *sorted(path.name for path in folder.glob("events-*.jsonl"))]
    return [name for name in names if os.path.lexists(folder / name)]


def in_order(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows in order of ``t``. Input rows may be out of order by at most ``LATE_S_MAX``
    seconds."""
    waiting: list[tuple[float, int, Row]] = []
    newest = 0.0
    for number, row in enumerate(rows):
        heapq.heappush(waiting, (row["t"], number, row))
        newest = max(newest, row["t"])
        while waiting[0][0] < newest - LATE_S_MAX:
            yield heapq.heappop(waiting)[2]
    while waiting:
        yield heapq.heappop(waiting)[2]


def _on_wall_clock(row: Row) -> Row:
    row["t"] = float(row.get("wall") or row.get("t") or 0.0)
    return row


def _time_of(row: Row) -> float:
    t: float = row["t"]
    return t
