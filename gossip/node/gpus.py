"""Measures the GPUs that a trainer uses, with ``nvidia-smi``. Queries do not block."""

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
"""Column of ``nvidia-smi`` -> name in an event ``usage``, and factor that converts the value to the
unit there."""
GPUS_MAX = 64
ANSWER_BYTES = 16 * 1024
_DEVICE = re.compile(r"/dev/nvidia\d+")


class GpuMeter:
    """Queries ``nvidia-smi``. A query takes a fraction of a second, so ``measure`` returns the
    result of the previous query. If the trainer uses no GPU, or ``nvidia-smi`` is missing, no query
    is started.

    Args:
        trainer_pid: Process id of the trainer. The trainer uses a GPU if it has the device file of
            a GPU open. This check imports nothing and creates no CUDA context.
    """

    def __init__(self, trainer_pid: int) -> None:
        self._trainer_pid = trainer_pid
        self._asked: subprocess.Popen[bytes] | None = None

    def measure(self) -> list[dict[str, float]]:
        """Return the result of the previous query, and start the next query. The result has an
        entry for each GPU that is visible to this process: index, busy share of the last second,
        used and total memory in bytes, temperature in degrees Celsius. Unknown figures are omitted.
        The list is empty if there is no result."""
        found: list[dict[str, float]] = []
        if self._asked is not None:
            if self._asked.poll() is None:
                # The query hangs, for example because of a broken driver. No second query begins.
                return []
            found = read(_read_output(self._asked)) if self._asked.returncode == 0 else []
            self._asked = None
        if uses_gpu(self._trainer_pid):
            self._ask()
        return found

    def close(self) -> None:
        """Kill the running query. Do not wait for its end, because a broken driver may block it for
        long."""
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
            self._asked = None  # For example, memory is exhausted. A later call tries again.


def _read_output(asked: subprocess.Popen[bytes]) -> str:
    """Return what the query has written so far, and close the pipe."""
    assert asked.stdout is not None
    with asked.stdout as pipe:
        os.set_blocking(pipe.fileno(), False)
        try:
            return os.read(pipe.fileno(), ANSWER_BYTES).decode("utf-8", "replace")
        except BlockingIOError:
            return ""  # the query has written nothing, but another process has the pipe open


def uses_gpu(pid: int) -> bool:
    """Whether a process has the device file of a GPU open."""
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    return any(map(_is_gpu, descriptors))


def _is_gpu(descriptor: Path) -> bool:
    try:
        return _DEVICE.fullmatch(os.readlink(descriptor)) is not None
    except OSError:
        return False  # the descriptor was closed after the folder was listed


def read(answer: str) -> list[dict[str, float]]:
    """Return the rows of the table that ``nvidia-smi`` prints, without missing figures."""
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
