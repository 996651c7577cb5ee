"""Records of a run: files of JSON lines, a description of the run's environment, and a logbook.

A file of JSON lines begins with its schema, ``{"schema": "gossip.events/2"}``. Only
``metrics.jsonl`` has no schema line: all its lines are rows of a table. Every line is flushed when
it is written, so that a killed process leaves only complete lines. If a crash has cut off the last
line, readers drop it.
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
    """Report on stderr that a file cannot be written."""
    message, hint = in_words(path, why)
    print(f"! {message}\n  {hint}", file=sys.stderr, flush=True)


class JsonLines:
    """Writer that appends JSON objects to a file, one per line. A new file begins with its schema,
    unless it is a file of metrics, which is read as a table.

    Args:
        troubles: Record of failures to write the file. If ``troubles`` is None, failures are
            printed to stderr.
    """

    def __init__(
        self, path: Path | str, schema: str, troubles: WriteFailures | None = None
    ) -> None:
        self.path = Path(path)
        troubles = troubles or WriteFailures(print_write_failure)
        self._file = Appender(self.path, troubles, header(schema), rotate_bytes=ROTATE_BYTES)

    def write(self, row: Mapping[str, Any]) -> None:
        """Write one line, and flush it. NaN and infinities become ``null``."""
        self._file.append(json_line(row))

    def close(self) -> None:
        self._file.close()


def header(schema: str) -> bytes:
    """Return the first bytes of a new file of lines. A file of metrics has only rows, so that
    pandas and similar tools can read it as a table."""
    return b"" if schema == "metrics" else json_line({"schema": SCHEMAS[schema]})


def json_line(row: Mapping[str, Any]) -> bytes:
    """Return ``to_json(row)`` as a line of bytes."""
    return (to_json(row) + "\n").encode()


def to_json(value: Any, indent: int | None = None) -> str:
    """Return strict JSON. Without ``indent`` it is one line. NaN and infinities become null, and
    bytes become hex digits."""
    separators = (",", ":") if indent is None else None
    how: Any = {"separators": separators, "indent": indent, "allow_nan": False}
    try:
        return json.dumps(value, default=_plain, **how)
    except ValueError:
        return json.dumps(_without_nan(value), default=lambda it: _without_nan(_plain(it)), **how)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    return value.item() if hasattr(value, "item") else str(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return value


def read_lines(path: Path | str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of JSON lines and of its segments, without the schema. If there is
    no file, yield nothing.

    Lines that are not complete JSON are skipped: a crash may have cut off the last line before a
    restart. Rows that do not belong in the file are skipped, too (``check_row``).
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
    """Yield the open segments of a file, and then the open file. The file is opened before its
    segments are listed, so that no line is missed or repeated if another process rotates the file
    at the same time."""
    try:
        last = open_file(path)
    except FileNotFoundError:
        last = None
    whole = os.fstat(last.fileno()) if last is not None else None
    for segment in segments(path):
        for each in (segment, segment.with_name(f"{segment.name}.gz")):
            with suppress(FileNotFoundError):  # just compressed
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
    """Write a JSON file atomically. Raises OSError."""
    scratch = Path(f"{path}.{os.getpid()}.new")
    try:
        scratch.write_text(to_json(value, indent=1) + "\n", "utf-8")
        scratch.replace(path)
    except OSError:
        with suppress(OSError):
            scratch.unlink()
        raise


def write_error(path: Path, error: BaseException, **fields: Any) -> None:
    """Write the error that ended this process to a file, for the launcher and the report. If the
    file cannot be written, print the error to stderr."""
    kind = type(error).__name__
    about = {"wall": time.time(), "type": kind, "message": str(error)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**fields, **about, "hint": getattr(error, "hint", None)})
    except OSError as failure:
        text = f"{kind}: {error} (cannot write {path}: {failure})"
        print(f"gossip: {text}", file=sys.stderr, flush=True)


def read_json(path: Path | str) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is no such file. Raises: ConfigError: The
    file is a link, is not a plain file, or has no JSON object."""
    path = Path(path)
    return read_object(path.parent, path.name)


def environment(command: Sequence[str], code: Path | str | None = None) -> dict[str, Any]:
    """Return the facts on which the result of the run may depend, for ``environment.json``.

    Args:
        command: Command, as typed.
        code: Folder of the script. The git version of this folder is recorded, if it is in a
            repository.
    """
    import psutil  # imported here, because it would add 50 ms to ``gossip --help``

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
    """Return the git commit of a folder, and the number of changed files. Return None if git is not
    installed, or the folder is not in a repository."""

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
    """File ``logbook.md`` for users, with a line for each start, death, rejoin and stop."""

    def __init__(self, path: Path | str, title: str, troubles: WriteFailures | None = None) -> None:
        self._file = Appender(
            Path(path), troubles or WriteFailures(print_write_failure), f"# {title}\n\n".encode()
        )

    def note(self, text: str) -> None:
        now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        self._file.append(f"- {now} {' '.join(text.split())}\n".encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        self._file.close()
