"""Description of the first failure of a run in at most twelve lines: the peer, the round, the line
in the user's code, and the error message."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossip.launch.report import counted
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


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    code: str

    @property
    def users(self) -> bool:
        """Whether the frame is user code: it belongs neither to a library nor to gossip, and is not
        frozen into the interpreter."""
        path = str(Path(self.file).resolve())
        libraries = [
            path_
            for name, path_ in sysconfig.get_paths().items()
            if name in ("stdlib", "purelib", "platlib")
        ]
        ours = [f"{_OURS}/{folder}" for folder in ("gossip", "launch", "aggregators", "topologies")]
        return not self.file.startswith("<") and not any(
            path.startswith(f"{root}/") for root in (*libraries, *ours)
        )


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
        at = (
            f" at round {written['round']}"
            if isinstance(written.get("round"), int) and written["round"] >= 0
            else ""
        )
        head = f"x peer {life.peer} failed{at} ({life.how}){left}"
        frames = _frames(written)
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
        for frame in ([f for f in frames if f.users] or frames)[-FRAMES:]
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


def read_error(folder: Path, incarnation: int) -> dict[str, Any] | None:
    """Return the error that the session wrote to ``error.json`` in this incarnation; None if there
    is none, or if the file is not readable."""
    try:
        written = read_json(folder / "error.json")
    except ValueError:
        return None
    if written is None or written.get("incarnation", incarnation) != incarnation:
        return None
    return written


def _frames(written: Mapping[str, Any]) -> list[Frame]:
    frames = written.get("frames")
    if isinstance(frames, list) and frames and all(isinstance(frame, dict) for frame in frames):
        return [
            Frame(str(f.get("file")), int(f.get("line") or 0), str(f.get("code") or ""))
            for f in frames
        ]
    text = written.get("traceback") or ""
    return _parse((text if isinstance(text, str) else "".join(map(str, text))).splitlines())


def _parse(lines: Sequence[str]) -> list[Frame]:
    """Return the frames of the last traceback in these lines."""
    frames = list[Frame]()
    for number, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            frames.clear()
        if found := _FRAME.match(line):
            follows = lines[number + 1].strip() if number + 1 < len(lines) else ""
            frames.append(
                Frame(found["file"], int(found["line"]), "" if _FRAME.match(follows) else follows)
            )
    return frames


def _lines_of(written: Mapping[str, Any]) -> list[str]:
    message = str(written.get("message") or "").strip()
    said = (
        f"{written.get('type') or 'error'}: {message}"
        if message
        else str(written.get("type") or "error")
    )
    hint = written.get("hint")
    return [*said.splitlines()[:4], *([f"hint: {hint}"] if hint else [])]


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
