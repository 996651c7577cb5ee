"""Error that ended a peer's script, in one line."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

from gossip.errors import ConfigError
from gossip.run import read_object, shown, text_of, whole

from .run_logs import LOG, Tail

FILE = "error.json"
CHARS_MAX = 240
LINES_READ = 20


def script_error(folder: Path, peer: int) -> str:
    """Type, message and line: ``NameError: name 'x' is not defined (train.py:24)``. Of a script
    that died before ``gossip.init()`` it is the last line that it wrote; "": it wrote none.

    Args:
        folder: Of the run.
    """
    try:
        written = read_object(folder, f"peer-{peer}/{FILE}") or {}
    except ConfigError:
        written = {}  # it is no file of ours: the log has the reason, too
    said = _message_of(written) if written else _last_line(folder, peer)
    return said if len(said) <= CHARS_MAX else f"{said[: CHARS_MAX - 3]}..."


def _message_of(written: dict[str, Any]) -> str:
    message = written.get("message")
    first = message.strip().splitlines()[:1] if isinstance(message, str) else []
    frames = written.get("frames")
    last = frames[-1] if isinstance(frames, list) and frames else None
    where = ""
    if isinstance(last, dict) and (name := text_of(last.get("file"))):
        where = f" ({PurePath(name).name}:{whole(last.get('line')) or 0})"
    return shown(": ".join([text_of(written.get("type")) or "error", *first])) + where


def _last_line(folder: Path, peer: int) -> str:
    lines = list(Tail(folder, f"peer-{peer}/{LOG}", LINES_READ).read())
    return shown(next((each.strip() for each in reversed(lines) if each.strip()), ""))
