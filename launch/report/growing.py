"""Files of JSON lines that grow while they are read, and the folder of a run with these files.

Processes of this or another machine may append to a file of a run during the reading. A row is
yielded once, as soon as its line is complete. A line that a crash has torn is skipped and counted.
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
"""Maximum bytes of lines in one file that are not rows. Beyond it the file is not read further."""
TAILS_KEPT = 16
LATE_S_MAX = 5.0
"""Maximum delay of a launcher's row behind later rows, in seconds. A launcher reads the messages of
peers one peer after the other."""
TAIL_BEGIN = b',"contributors":'
"""Start of the part of a commit's line that is the same in the files of all peers."""
_DECODER = json.JSONDecoder()
_PEER = re.compile(r"peer-(0|[1-9]\d{0,3})")


def parse_line(line: bytes, file: str) -> Row:
    """Parse a line of a file of that name. The part that is the same in the lines of all peers
    about a round is parsed and checked once, and the rows share its values. With hundreds of peers
    that is most of the line. Raises: ValueError: It is not a row."""
    at = line.find(TAIL_BEGIN)
    if at < 0:
        return check_row(_parsed(str(line, "utf-8")), file)
    try:
        row = check_row(_parsed(str(line[:at], "utf-8") + "}"), file)
        # In files without events the field ``event`` may be any text.
        row.update(_parse_tail(line[at:], str(row.get("event")), file))
    except ValueError:
        return check_row(parse_json(line), file)  # The tail began inside a nested object.
    return row


@lru_cache(TAILS_KEPT)
def _parse_tail(text: bytes, event: str, file: str) -> Row:
    """Return the fields at the end of a line of an event of that name."""
    found = check_row({"event": event, **parse_json(b"{" + text[1:])}, file)
    if found.pop("event") != event:
        raise ValueError("the line has two hard links")
    return found


def _parsed(text: str) -> Any:
    """Parse JSON as ``parse_json`` does, in two thirds of the time."""
    try:
        found, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return parse_json(text)  # It begins with blanks, or is not JSON.
    return found if end == len(text) else parse_json(text)


class GrowingFile:
    """Reader of ``folder / name`` (no link, no pipe), which yields each row once, in order.

    Rotated segments come first: ``name.000001.gz``, ``name.000002`` and so on, then ``name``. A
    file that is rotated between two calls is read further in its segment.

    Attributes:
        why_not: Why the file cannot be read; "" if it can, or does not exist yet.
        refused: Number of lines that are not rows of this file, because a crash has torn them or an
            edit has changed them. ``why_refused``: the first of them, and its error.
        replaced: Whether another file has replaced it. The other file is not read.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        self._folder, self._name = folder, name
        self.why_not = ""
        self.refused, self.why_refused = 0, ""
        self._refused_bytes = 0
        self.replaced = False
        self._segments = 0  # Segments that are read to their ends.
        self._lines = 0  # Lines read of the next segment, or of the file itself.
        self._at = 0  # Offset there.
        self._rest = b""  # An incomplete line.
        self._seen = -1, -1, -1  # Inode, size and time of the file at the last reading.
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
        """Whether the file has changed since the last call. A ``stat`` is cheap, and most of
        hundreds of files have nothing new."""
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return False
        now = found.st_ino, found.st_size, found.st_mtime_ns
        seen, self._seen = self._seen, now
        # An empty file was just rotated. Opening a link or a pipe raises.
        return seen != now

    def _open_segment(self) -> tuple[str, BinaryIO] | None:
        """Open the segment that is read next."""
        while (name := self._next_segment()) is not None:
            with suppress(FileNotFoundError):  # It was compressed between the two calls.
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
        """Yield new rows of the file itself. It is open only for each block: a swarm may have more
        files than a process can hold open."""
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
    """Reader of all files of a run, which yields new rows.

    ``t`` of each row is seconds since 1970, by the clock of the machine that has written it:
    monotonic clocks of several machines cannot be compared.

    Attributes:
        folder: Folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, GrowingFile] = {}

    @property
    def broken(self) -> list[str]:
        """A line for each file that cannot be read, or that has lines that are not rows."""
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
            return []  # It was removed, or is no longer readable.
        found = sorted(int(match[1]) for name in names if (match := _PEER.fullmatch(name)))
        return found[:PEERS_MAX]

    def events(self) -> Iterator[Event]:
        """Yield new events of launchers, by time; without a launcher (torchrun), those that the
        peers have written."""
        return map(read_event, self._by_time(self._event_files(), in_order))

    def commits(self) -> Iterator[CommitRow]:
        """Yield new commits of all shards and branches, by the time at which their makers recorded
        them. A commit appears twice if two peers recorded it."""
        return read_commits(self._by_time(self._files_of("commits")))

    def metrics(self) -> Iterator[Row]:
        """Yield new rows that scripts have logged, by time."""
        return self._by_time(self._files_of("metrics"))

    def _event_files(self) -> list[GrowingFile]:
        return [*map(self._file, event_files(self.folder))] or self._files_of("events")

    def _files_of(self, kind: str) -> list[GrowingFile]:
        """Return the files of the peers; if the folder has none, the file that merges them."""
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
    """Return the names of the event files that launchers of the run append to: one, or one for each
    task of a scheduler."""
    names = ["events.jsonl", *sorted(path.name for path in folder.glob("events-*.jsonl"))]
    return [name for name in names if os.path.lexists(folder / name)]


def in_order(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows by ``t``. No row may arrive more than ``LATE_S_MAX`` after a later one."""
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
