"""Collection of the files of all hosts of a run (logs, metrics, commits and events) in the
launcher's folder."""

from __future__ import annotations

import base64
from collections.abc import Container, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from gossip.errors import Malformed
from gossip.run import JsonLines, read_lines, to_json

FETCHED = "fetched"
"""Folder for files that exist once on each host, such as events. Files of peers are written to
their usual paths."""
SAME_CLOCK_S = 0.002


class Collector:
    """Writes the files of one host. It rejects paths outside the folder, and files of peers of
    other hosts.

    Args:
        peers: Peers that run on the host.
    """

    def __init__(self, folder: Path, host: str, peers: Container[int]) -> None:
        self._folder, self._host, self._peers = folder, host, peers
        self._open: tuple[str, BinaryIO] | None = None
        self.paths: list[Path] = []
        self.left_out: list[str] = []

    def write_piece(self, frame: Mapping[str, Any]) -> None:
        """Write a piece of a file. An empty piece ends the file. Raises: Malformed: The path is not
        allowed."""
        name, data = str(frame["path"]), base64.b64decode(frame["data"])
        if self._open is None or self._open[0] != name:
            self.close()
            path = self._path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open = name, path.open("wb")
            self.paths.append(path)
            if frame.get("left_out"):
                self.left_out.append(name)
        if data:
            self._open[1].write(data)
        else:
            self.close()

    def _path(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or parts[0].startswith("/"):
            raise Malformed(f"{self._host} sent a file that does not belong to the run: {name!r}")
        is_peers = parts[0].startswith("peer-") and len(parts) > 1
        number = parts[0].removeprefix("peer-")
        if is_peers and not (number.isdecimal() and int(number) in self._peers):
            raise Malformed(f"{self._host} sent a file of a peer that does not exist: {name!r}")
        return (
            self._folder.joinpath(*parts)
            if is_peers
            else self._folder.joinpath(FETCHED, self._host, *parts)
        )

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def to_our_clock(self, shift_s: float) -> None:
        """Convert the monotonic times in the fetched files from the clock of the host to that of
        this machine."""
        for path in self.paths if abs(shift_s) > SAME_CLOCK_S else ():
            if path.suffix == ".jsonl":
                lines = path.read_text("utf-8", "replace").splitlines(keepends=True)
                schema = [line for line in lines[:1] if '"schema"' in line]
                rows = "".join(f"{to_json(shifted(row, shift_s))}\n" for row in read_lines(path))
                path.write_text("".join(schema) + rows, "utf-8")


def shifted(row: Mapping[str, Any], shift_s: float) -> dict[str, Any]:
    return {**row, "t": row["t"] + shift_s} if isinstance(row.get("t"), int | float) else dict(row)


def merge_events(folder: Path, hosts: Iterable[str]) -> None:
    """Rewrite ``events.jsonl`` with the fetched events of each host. If the file of a host was not
    fetched, keep the events that the host has sent."""
    rows, have = [], set()
    for host in hosts:
        path = folder / FETCHED / host / "events.jsonl"
        if path.exists():
            have.add(host)
            rows += [{**row, "host": host} for row in read_lines(path)]
    rows += [row for row in read_lines(folder / "events.jsonl") if row.get("host") not in have]
    scratch = folder / "events.jsonl.new"
    scratch.unlink(missing_ok=True)
    merged = JsonLines(scratch, "events")
    for row in sorted(rows, key=lambda row: float(row.get("t") or 0.0)):
        merged.write(row)
    merged.close()
    scratch.replace(folder / "events.jsonl")
