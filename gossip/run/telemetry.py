"""Records of a run: lines of JSON that people and scripts read later, the environment it ran in,
and its logbook.

A file of JSON lines begins with its schema, ``{"schema": "gossip.events/2"}``. Only
``metrics.jsonl`` has none: its lines are all rows of a table. Every line is flushed when it is
written, so that a killed process leaves whole lines behind. A reader drops a last line that is not
whole.
"""

from __future__ import annotations

import datetime
import gzip
import importlib.metadata
import json
import math
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from gossip.observe import check_row

from .records import Appender, WriteFailures, in_words
from .rotation import ROTATE_BYTES, segments
from .untrusted import open_file, parse_json, read_object

LINE_BYTES_MAX = 2**20
SCHEMAS: Mapping[str, str] = {
    "events": "gossip.events/2",
    "commits": "gossip.commits/2",
    "metrics": "gossip.metrics/2",
}
PACKAGES = (
    "gossip-train",
    "torch",
    "numpy",
    "pyzmq",
    "msgpack",
    "psutil",
    "pydantic",
    "safetensors",
    "scikit-learn",
)


def print_write_failure(path: str, why: str) -> None:
    """Report on stderr a file that cannot be written, where nothing else would report it."""
    message, hint = in_words(path, why)
    print(f"! {message}\n  {hint}", file=sys.stderr, flush=True)


class JsonLines:
    """Appends JSON objects to a file, one a line. A new file gets its schema as first line, but for
    ``metrics``, which people read as a table.

    Args:
        troubles: Hears of it when the file cannot be written to; None: stderr does.
    """

    def __init__(
        self, path: Path | str, schema: str, troubles: WriteFailures | None = None
    ) -> None:
        self.path = Path(path)
        troubles = troubles or WriteFailures(print_write_failure)
        self._file = Appender(self.path, troubles, header(schema), rotate_bytes=ROTATE_BYTES)

    def write(self, row: Mapping[str, Any]) -> None:
        """One line, flushed. Numbers that JSON has no word for become ``null``."""
        self._file.append((to_json(row) + "\n").encode())

    def close(self) -> None:
        self._file.close()


def header(schema: str) -> bytes:
    """Return the beginning of a new file of lines. Files of metrics have nothing but rows: each is
    a row of a table to pandas and similar tools."""
    if schema == "metrics":
        return b""
    return (to_json({"schema": SCHEMAS[schema]}) + "\n").encode()


def to_json(value: Any) -> str:
    """One line of strict JSON: NaN and infinities become null, bytes hex."""
    return json.dumps(_plain(value), separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    match value:
        case bool() | int() | str() | None:
            return value
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return value.hex()
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case _:
            raise TypeError(f"a {type(value).__name__} has no place in a line of JSON")


def read_lines(path: Path | str) -> Iterator[dict[str, Any]]:
    """The rows of a file of JSON lines and of the segments that were cut from it, without its
    schema; nothing when there is no such file.

    A line that is not whole JSON was cut off by a crash: only the last line of a life can be,
    and it is left out, as is a row that has no place in such a file (``rows``).
    """
    for name, file in _opened(Path(path)):
        with file, unpacked(file, name) as lines:
            while line := lines.readline(LINE_BYTES_MAX):
                try:
                    row = check_row(parse_json(line.decode("utf-8", "replace")), name)
                except ValueError:
                    continue
                if "schema" not in row:
                    yield row


def _opened(path: Path) -> Iterator[tuple[str, BinaryIO]]:
    """A file after its segments, each once, also while somebody cuts it or compresses one. It is
    opened first: what is cut from it from then on is in it."""
    try:
        last = open_file(path)
    except FileNotFoundError:
        last = None
    whole = os.fstat(last.fileno()) if last is not None else None
    for segment in segments(path):
        for each in (segment, segment.with_name(f"{segment.name}.gz")):
            with suppress(FileNotFoundError):  # it was compressed a moment ago
                file = open_file(each)
                if whole is None or not os.path.samestat(os.fstat(file.fileno()), whole):
                    yield each.name, file
                else:
                    file.close()
                break
    if last is not None:
        yield path.name, last


def unpacked(file: BinaryIO, name: str) -> IO[bytes]:
    """Return the content of a segment, compressed or not."""
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if name.endswith(".gz") else file


def write_json(path: Path | str, value: Mapping[str, Any]) -> None:
    """Writes a JSON file, whole or not at all."""
    scratch = Path(f"{path}.new")
    scratch.write_text(json.dumps(_plain(value), indent=1, allow_nan=False) + "\n", "utf-8")
    scratch.replace(path)


def read_json(path: Path | str) -> dict[str, Any] | None:
    """A JSON object; None when there is no such file. Raises: ConfigError: It is something else,
    or no plain file."""
    path = Path(path)
    return read_object(path.parent, path.name)


def environment(command: Sequence[str], code: Path | str | None = None) -> dict[str, Any]:
    """Return what the result of the run may depend on, for ``environment.json``.

    Args:
        command: The command that was typed.
        code: A folder whose git version is recorded, when it is in git.
    """
    import psutil  # here: 50 ms that `gossip --help` need not pay

    return {
        "schema": "gossip.environment/1",
        "command": list(command),
        "folder": os.getcwd(),
        "started": time.time(),
        "code": code_version(Path(code) if code is not None else Path.cwd()),
        "python": sys.version.split()[0],
        "packages": _packages(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "hardware": {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)),
            "memory_bytes": psutil.virtual_memory().total,
        },
    }


def _packages() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def code_version(folder: Path) -> dict[str, Any] | None:
    """Commit and number of changed files; None outside git, or where git is not installed."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words],
                capture_output=True,
                text=True,
                timeout=5,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    status = git("status", "--porcelain")
    return {
        "commit": commit.strip(),
        "changed_files": len(status.splitlines()) if status is not None else None,
    }


class Logbook:
    """``logbook.md``: starts, deaths, rejoins and stops, a line each, for people."""

    def __init__(self, path: Path | str, title: str, troubles: WriteFailures | None = None) -> None:
        self._file = Appender(
            Path(path), troubles or WriteFailures(print_write_failure), f"# {title}\n\n".encode()
        )

    def note(self, text: str) -> None:
        now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        self._file.append(f"- {now} {' '.join(text.split())}\n".encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        self._file.close()
