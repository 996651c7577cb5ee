"""Records of a run: JSON lines for users and scripts, the environment of the run, and its logbook.

A file of JSON lines begins with its schema, ``{"schema": "gossip.events/2"}``. Only
``metrics.jsonl`` has none: its lines are all rows of a table. Every line is flushed when it is
written, so that a killed process leaves only complete lines. A reader drops an incomplete last
line.
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
    """Report on stderr a file that cannot be written, if no other part would report it."""
    message, hint = in_words(path, why)
    print(f"! {message}\n  {hint}", file=sys.stderr, flush=True)


class JsonLines:
    """Writer that appends JSON objects to a file, one for each line. A new file begins with its
    schema, except ``metrics``, which is read as a table.

    Args:
        troubles: Receives failures to write the file; None if they are printed to stderr.
    """

    def __init__(
        self, path: Path | str, schema: str, troubles: WriteFailures | None = None
    ) -> None:
        self.path = Path(path)
        troubles = troubles or WriteFailures(print_write_failure)
        self._file = Appender(self.path, troubles, header(schema), rotate_bytes=ROTATE_BYTES)

    def write(self, row: Mapping[str, Any]) -> None:
        """Write one line, flushed. Numbers that JSON cannot express become ``null``."""
        self._file.append(json_line(row))

    def close(self) -> None:
        self._file.close()


def header(schema: str) -> bytes:
    """Return the beginning of a new file of lines. Files of metrics have only rows, so that pandas
    and similar tools read them as a table."""
    return b"" if schema == "metrics" else json_line({"schema": SCHEMAS[schema]})


def json_line(row: Mapping[str, Any]) -> bytes:
    """Return one line of ``to_json``."""
    return (to_json(row) + "\n").encode()


def to_json(value: Any, indent: int | None = None) -> str:
    """Return strict JSON, one line without ``indent``: NaN and infinities become null, bytes
    hex."""
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
    """Yield the rows of a file of JSON lines and of its segments, without the schema; none if there
    is no file.

    A crash may cut off the last line before a restart. Lines that are not complete JSON are
    skipped, as are rows that do not belong in the file (``rows``).
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
    """Open a file and its segments, each once, segments first. The file is opened first, so that
    no line is missed or repeated if another process rotates the file afterwards."""
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
    """Write the error that ended this process, for the launcher and the report; print it to stderr
    if it cannot be written."""
    kind = type(error).__name__
    about = {"wall": time.time(), "type": kind, "message": str(error)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**fields, **about, "hint": getattr(error, "hint", None)})
    except OSError as failure:
        text = f"{kind}: {error} (cannot write {path}: {failure})"
        print(f"gossip: {text}", file=sys.stderr, flush=True)


def read_json(path: Path | str) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is no file. Raises: ConfigError: It is a
    link, or not a plain file."""
    path = Path(path)
    return read_object(path.parent, path.name)


def environment(command: Sequence[str], code: Path | str | None = None) -> dict[str, Any]:
    """Return the facts on which the result of the run may depend, for ``environment.json``.

    Args:
        command: The command that was typed.
        code: A folder; its git version is recorded, if it has one.
    """
    import psutil  # a local import, because it would add 50 ms to ``gossip --help``

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
    """Return the commit and the number of changed files; None without git or a repository."""

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
