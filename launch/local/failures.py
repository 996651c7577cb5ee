"""Description of the first failure of a run in at most twelve lines: the peer, the round, the line
in the user's code, and the error message."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from gossip.launch.report import counted
from gossip.observe import documents
from gossip.run import read_json

from .peer_process import ProcessLife

LINES_MAX = 12
FRAMES = 3
WIDTH = 160
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_ASKS_FOR_RANK = re.compile(
    r"KeyError: '((LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT))'"
    r"|environment variable \w+ expected, but not set"
    r"|Default process group has not been initialized"
    r"|'Session' object has no attribute '(rank|local_rank|world_size)'"
)
_IMPORTS_FROM = re.compile(r"(?:module|from|named) '(\w+)")
_NO_GPU = re.compile(r"not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available")
FROM_DDP = (
    "hint: a peer has no rank and no process group of torch.distributed, but peer.id, peer.is_main "
    "(true on one peer) and peer.initial_peers: docs/from_ddp.md"
)
_OURS = str(Path(__file__).resolve().parents[2])


def explain(
    life: ProcessLife,
    going_on: int,
    finished: int,
    folder: Path,
    shadowing: Mapping[str, str] | None = None,
) -> list[str]:
    """Return lines about a peer that failed.

    Args:
        life: Process that ended.
        going_on: Number of peers that continue.
        finished: Number of peers that have already finished.
        folder: The peer's folder, ``<run>/peer-<id>``.
        shadowing: Files of the user that are imported instead of standard or installed modules, by
            module.
    """
    left = ""
    if going_on:
        left = f"; {counted(going_on, 'peer')} continue{'s' if going_on == 1 else ''}"
    elif finished:
        left = f"; {finished} peer{'s have' if finished > 1 else ' has'} finished"
    written = read_error(folder, life.incarnation)
    if written is not None:
        at = "" if written.round in (None, -1) else f" at round {written.round}"
        head = f"x peer {life.peer} failed{at} ({life.how}){left}"
        frames = [documents.ScriptFrame.pick(frame) for frame in written.frames or ()]
        said = _lines_of(written)
    else:
        head = f"x peer {life.peer} ended: {life.how}{left}"
        frames = _parse(life.tail)
        said = _last_words(life.tail)
    if hint := _hint("\n".join(said), life.tail, shadowing or {}):
        said.append(hint)
    tail = [f"  log: {folder / 'out.log'}"]
    where = [
        f"  {frame.file}:{frame.line}  {frame.code}"
        for frame in ([f for f in frames if _is_users(f)] or frames)[-FRAMES:]
    ]
    room = LINES_MAX - 1 - len(where) - len(tail)
    return [line[:WIDTH] for line in (head, *where, *(f"  {line}" for line in said[:room]), *tail)]


def _hint(said: str, tail: Sequence[str], shadowing: Mapping[str, str]) -> str | None:
    if _ASKS_FOR_RANK.search(said):
        return FROM_DDP
    if _NO_GPU.search(said):
        return "hint: torch has no GPU here; peer.device is a GPU if there is one, else the CPU"
    if "error: unrecognized arguments: " in said:
        return "hint: options after the script belong to the script; options of gossip go before it"
    # Also search the earlier output: a library may have caught the import error and raised another
    # error.
    for name in _IMPORTS_FROM.findall("\n".join([said, *tail])):
        if name in shadowing:
            return f"hint: rename {shadowing[name]}: it is imported instead of the module {name}"
    if "DataLoader worker (pid" in said:
        return next((line.strip() for line in tail if line.startswith("hint: ")), None)
    return None


def _is_users(frame: documents.ScriptFrame) -> bool:
    """Whether the frame is user code: it belongs neither to a library nor to gossip, and is not
    frozen into the interpreter."""
    path = str(Path(frame.file).resolve())
    paths = sysconfig.get_paths()
    libraries = [paths[name] for name in ("stdlib", "purelib", "platlib")]
    ours = [f"{_OURS}/{folder}" for folder in ("gossip", "launch", "aggregators", "topologies")]
    return not frame.file.startswith("<") and not any(
        path.startswith(f"{root}/") for root in (*libraries, *ours)
    )


def read_error(folder: Path, incarnation: int) -> documents.ScriptError | None:
    """Return the error that the session wrote to ``error.json`` in this incarnation; None if there
    is none, or if the file is not readable."""
    try:
        written = read_json(folder / "error.json")
    except ValueError:
        return None
    error = documents.ScriptError.pick(written)
    if written is None or error.incarnation not in (None, incarnation):
        return None
    return error


def _parse(lines: Sequence[str]) -> list[documents.ScriptFrame]:
    """Return the frames of the last traceback in these lines."""
    frames = list[documents.ScriptFrame]()
    for number, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            frames.clear()
        if found := _FRAME.match(line):
            follows = lines[number + 1].strip() if number + 1 < len(lines) else ""
            code = "" if _FRAME.match(follows) else follows
            frames.append(
                documents.ScriptFrame(file=found["file"], line=int(found["line"]), code=code)
            )
    return frames


def _lines_of(written: documents.ScriptError) -> list[str]:
    message = written.message.strip()
    said = f"{written.type or 'error'}{': ' if message else ''}{message}"
    return [*said.splitlines()[:4], *([f"hint: {written.hint}"] if written.hint else [])]


def _last_words(tail: Sequence[str]) -> list[str]:
    """Return the error message at the end of stderr: the last lines that are not part of a
    traceback."""
    words = [line for line in tail if line.strip()]
    starts = [
        number
        for number, line in enumerate(words)
        if line.startswith("Traceback (most recent call last)")
    ]
    if starts:
        # The exception follows the last indented line of the traceback.
        rest = words[starts[-1] + 1 :]
        last = max((number for number, line in enumerate(rest) if line.startswith(" ")), default=-1)
        return rest[last + 1 :][:3] or rest[-1:]
    return words[-3:]
