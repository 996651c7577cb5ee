"""State of the GPUs that a trainer uses, from the driver's own tool. Queries do not block."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from gossip.run import real

COLUMNS = {
    "index": ("index", 1),
    "utilization.gpu": ("busy", 0.01),
    "memory.used": ("memory", 2**20),
    "memory.total": ("memory_total", 2**20),
    "temperature.gpu": ("celsius", 1),
}
"""Columns of the tool: the name of each in gossip, and its unit."""
GPUS_MAX = 64
ANSWER_BYTES = 16 * 1024
_DEVICE = re.compile(r"/dev/nvidia\d+")


class GpuMeter:
    """Queries ``nvidia-smi``, which takes a part of a second: each call returns the answer to the
    last query. If the trainer uses no GPU, or the tool is missing, there is no query.

    Args:
        trainer_pid: Process that uses a GPU if it holds a GPU's device open. This check imports
            nothing and starts no CUDA context.
    """

    def __init__(self, trainer_pid: int) -> None:
        self._trainer_pid = trainer_pid
        self._asked: subprocess.Popen[bytes] | None = None

    def measure(self) -> list[dict[str, float]]:
        """Return the answer to the last query, and start the next. It has an entry for each GPU
        that is visible to this process: index, busy share of the last second, used and total bytes,
        degrees Celsius. Unknown figures are omitted. ``[]``: there is no answer."""
        found: list[dict[str, float]] = []
        if self._asked is not None:
            if self._asked.poll() is None:
                return []  # it hangs, as with a broken driver: no second query is started
            found = read(_read_output(self._asked)) if self._asked.returncode == 0 else []
            self._asked = None
        if uses_gpu(self._trainer_pid):
            self._ask()
        return found

    def close(self) -> None:
        """Kill the query without a wait: a broken driver may block it for a long time."""
        if self._asked is not None:
            self._asked.kill()
            _read_output(self._asked)

    def _ask(self) -> None:
        tool = shutil.which("nvidia-smi")
        if tool is None:
            return
        question = [f"--query-gpu={','.join(COLUMNS)}", "--format=csv,noheader,nounits"]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        try:
            self._asked = subprocess.Popen(
                [tool, *question, *(["-i", visible] if visible else [])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            self._asked = None  # for example out of memory: a later call tries again


def _read_output(asked: subprocess.Popen[bytes]) -> str:
    """Return the output so far, and close the pipe."""
    assert asked.stdout is not None
    with asked.stdout as pipe:
        os.set_blocking(pipe.fileno(), False)
        try:
            return os.read(pipe.fileno(), ANSWER_BYTES).decode("utf-8", "replace")
        except BlockingIOError:
            return ""  # another process has the pipe open, and has written nothing


def uses_gpu(pid: int) -> bool:
    """Whether a process holds a GPU's device open."""
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    return any(map(_is_gpu, descriptors))


def _is_gpu(descriptor: Path) -> bool:
    try:
        return _DEVICE.fullmatch(os.readlink(descriptor)) is not None
    except OSError:
        return False  # it was closed since the listing


def read(answer: str) -> list[dict[str, float]]:
    """Return the rows of the tool's table, without missing figures."""
    found = []
    for line in answer.splitlines()[:GPUS_MAX]:
        cells = [_number(cell) for cell in line.split(",")]
        if len(cells) == len(COLUMNS) and cells[0] is not None:
            columns = zip(COLUMNS.values(), cells, strict=True)
            found.append({name: cell * unit for (name, unit), cell in columns if cell is not None})
    return found


def _number(cell: str) -> float | None:
    try:
        return real(float(cell))
    except ValueError:
        return None  # "[N/A]"
