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
"""Columns of the tool: the name of each here, and its unit."""
GPUS_MAX = 64
ANSWER_BYTES = 16 * 1024
_DEVICE = re.compile(r"/dev/nvidia\d+")


class GpuMeter:
    """Asks ``nvidia-smi``, which takes a part of a second: what it has answered is there the next
    time. Where the trainer uses no GPU, or the tool is not there, nothing is asked.

    Args:
        trainer_pid: It uses a GPU if it holds a device of one open; imports nothing and starts
            no CUDA context here.
    """

    def __init__(self, trainer_pid: int) -> None:
        self._trainer_pid = trainer_pid
        self._asked: subprocess.Popen[bytes] | None = None

    def measure(self) -> list[dict[str, float]]:
        """Return the answer to the last query, and start the next. It has, for each GPU that this
        process may see, its index, the share of the last second in which it worked, its used and
        total bytes, and degrees Celsius, as far as known. ``[]``: nothing is known."""
        found: list[dict[str, float]] = []
        if self._asked is not None:
            if self._asked.poll() is None:
                return []  # it hangs, as with a broken driver: there is one of it at most
            found = read(_read_output(self._asked)) if self._asked.returncode == 0 else []
            self._asked = None
        if uses_gpu(self._trainer_pid):
            self._ask()
        return found

    def close(self) -> None:
        """Ends what was asked, without waiting: a broken driver may hold it for long."""
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
            self._asked = None  # no memory for it, say: it is asked again


def _read_output(asked: subprocess.Popen[bytes]) -> str:
    """Return what it has written until now; its end of the pipe is closed then."""
    assert asked.stdout is not None
    with asked.stdout as pipe:
        os.set_blocking(pipe.fileno(), False)
        try:
            return os.read(pipe.fileno(), ANSWER_BYTES).decode("utf-8", "replace")
        except BlockingIOError:
            return ""  # somebody else holds the pipe, and has written nothing


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
        return False  # it was closed a moment ago


def read(answer: str) -> list[dict[str, float]]:
    """The rows of the tool's table; a figure that it does not have is left out."""
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
