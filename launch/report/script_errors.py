"""The error that ended a peer's script, in one line."""

from __future__ import annotations

from pathlib import Path, PurePath

from gossip.errors import ConfigError
from gossip.observe import documents
from gossip.run import read_object, shown, text_of

from .run_logs import LOG, Tail

FILE = "error.json"
CHARS_MAX = 240
LINES_READ = 20


def script_error(folder: Path, peer: int) -> str:
    """Return type, message and line: ``NameError: name 'x' is not defined (train.py:24)``. If the
    script died before ``gossip.init()``, return its last line of output; "" if there is none.

    Args:
        folder: Folder of the run.
    """
    try:
        written = read_object(folder, f"peer-{peer}/{FILE}") or {}
    except ConfigError:
        written = {}  # The file is invalid. The log also has the error.
    said = _message_of(documents.ScriptError.pick(written)) if written else _last_line(folder, peer)
    return said if len(said) <= CHARS_MAX else f"{said[: CHARS_MAX - 3]}..."


def _message_of(error: documents.ScriptError) -> str:
    first = error.message.strip().splitlines()[:1]
    last = documents.ScriptFrame.pick(error.frames[-1] if error.frames else None)
    name = text_of(last.file)
    where = f" ({PurePath(name).name}:{last.line})" if name else ""
    return shown(": ".join([text_of(error.type) or "error", *first])) + where


def _last_line(folder: Path, peer: int) -> str:
    lines = list(Tail(folder, f"peer-{peer}/{LOG}", LINES_READ).read())
    return shown(next((each.strip() for each in reversed(lines) if each.strip()), ""))
