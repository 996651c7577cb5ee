"""Measures the resources that a peer's two processes use, and the free resources of the machine.
The node reports the figures every ``EVERY_S`` seconds, for monitoring."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from .gpus import GpuMeter

EVERY_S = 5.0
FIRST_S = 1.0
"""Time from the start to the first report, in seconds. It is short so that short runs have figures,
too."""


class UsageMeter:
    """Meter of the resources that the trainer and its node use. The node runs in this process.

    Args:
        trainer_pid: Process id of the trainer. If the node is a thread of the trainer, it is this
            process.
        folder: Folder on the disk that is measured. If None, no free space is reported.
    """

    def __init__(self, trainer_pid: int, folder: Path | None, now: float) -> None:
        self._pids, self._folder = {os.getpid(), trainer_pid}, folder
        self._next_at = now + FIRST_S
        self._gpus = GpuMeter(trainer_pid)

    def due(self, now: float) -> bool:
        """Whether a report is due. If it is, schedule the next report."""
        if now < self._next_at:
            return False
        self._next_at = now + EVERY_S
        return True

    def close(self) -> None:
        """Kill the running query of the GPUs, if there is one."""
        self._gpus.close()

    def measure(self) -> dict[str, Any]:
        """Return the fields of an event ``usage``, without unknown figures. For the processes,
        these are processor time in seconds and memory in bytes. For the machine, these are the
        load, available memory and free disk space in bytes, and the state of the trainer's GPUs."""
        cpu_s, memory = used_by(self._pids)
        found: dict[str, Any] = {"cpu_s": round(cpu_s, 2), "memory": memory}
        found["load"] = round(os.getloadavg()[0], 2)
        found["machine_memory_free"] = psutil.virtual_memory().available
        if self._folder is not None:
            with suppress(OSError):
                found["disk_free"] = psutil.disk_usage(str(self._folder)).free
        if gpus := self._gpus.measure():
            found["gpus"] = gpus
        return found


class RuleClock:
    """Clock for the duration of an aggregation that this peer serves, from its start to the commit.
    With several shards, the duration includes the exchange between their servers."""

    def __init__(self) -> None:
        self._round = -1
        self._asked: dict[int, float] = {}  # shard -> start of its aggregation in that round

    def asked(self, round_id: int, shard: int) -> None:
        """Record the start of the aggregation of a shard."""
        if round_id != self._round:
            self._round, self._asked = round_id, {}
        self._asked[shard] = time.monotonic()

    def rule_time_s(self, round_id: int, shard: int) -> float | None:
        """Return the seconds since the start of the aggregation; None if no start was recorded."""
        asked_at = self._asked.get(shard) if round_id == self._round else None
        return None if asked_at is None else time.monotonic() - asked_at


def used_by(pids: Iterable[int]) -> tuple[float, int]:
    """Return the processor time in seconds and the memory in bytes of those processes of ``pids``
    that still run."""
    cpu_s, memory = 0.0, 0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            times = process.cpu_times()
            cpu_s += times.user + times.system
            memory += process.memory_info().rss
    return cpu_s, memory
