"""Health of the machines of a run: load, memory, disk and GPUs, from the reports of nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gossip.observe import documents, events
from gossip.run import text_of

from .words import counted, short_bytes

MEMORY_SHORT = 0.05
"""Minimum free share of memory. Below it, the system may soon kill a process."""
DISK_SHORT = 2**30
"""Minimum free bytes of a disk. Below it, checkpoints and records may not fit."""
GPU_HOT_C = 90.0
"""Approximate temperature at which GPUs begin to throttle, in degrees Celsius."""
GPUS_MAX = 64
LOAD_HIGH = 2.0
"""Load per core above which processes wait for processors most of the time."""


class Figures:
    """Values about a machine or a GPU, by name: the last value and the worst value of each."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._worst: dict[str, float] = {}

    def record(self, names: Iterable[str], source: object) -> None:
        """Record the attributes of ``source`` with these names that are not None."""
        for name in names:
            if (value := getattr(source, name)) is not None:
                worst = min if name in LOW_IS_BAD else max
                self._last[name] = value
                self._worst[name] = worst(value, self._worst.get(name, value))

    def find(self, name: str, over: bool) -> float | None:
        """Return the last value with this name or, if the run is ``over``, the worst; None if there
        is none."""
        return (self._worst if over else self._last).get(name)


OF_MACHINE = ("load", "machine_memory_free", "disk_free")
LOW_IS_BAD = ("machine_memory_free", "disk_free", "busy")
OF_GPU = ("busy", "memory", "memory_total", "celsius")


@dataclass(slots=True)
class MachineHealth:
    """Health of one host.

    Attributes:
        cores, memory: Number of cores, and bytes of memory; None if not known.
        seen: Load of the last minute, free bytes of memory, and free bytes of the disk with the
            run's folder.
        gpus: Values about the GPUs that peers use, by index: busy share of the last second, used
            and total bytes of memory, and temperature.
    """

    host: str
    cores: int | None = None
    memory: int | None = None
    seen: Figures = field(default_factory=Figures)
    gpus: dict[int, Figures] = field(default_factory=dict)

    def record_usage(self, usage: events.Usage) -> None:
        """Record the values about the machine in a usage event."""
        self.seen.record(OF_MACHINE, usage)
        for gpu in map(documents.GpuUsage.pick, (usage.gpus or ())[:GPUS_MAX]):
            if gpu.index is not None:
                self.gpus.setdefault(int(gpu.index), Figures()).record(OF_GPU, gpu)

    def figures(self, over: bool) -> list[tuple[str, str]]:
        """Return (text, problem) for each value about the machine; the problem is "" if there is
        none. If the run is ``over``, the values are the worst ones."""
        load = self.seen.find("load", over)
        free, disk = (self.seen.find(name, over) for name in OF_MACHINE[1:])
        found = []
        if load is not None:
            cores = f" on {counted(self.cores, 'core')}" if self.cores else ""
            high = self.cores is not None and load > LOAD_HIGH * self.cores
            found.append((f"load {load:.1f}{cores}", "high" if high else ""))
        if free is not None:
            of = f" of {short_bytes(self.memory)}" if self.memory else ""
            low = self.memory is not None and free < MEMORY_SHORT * self.memory
            found.append((f"free memory {short_bytes(free)}{of}", "low" if low else ""))
        if disk is not None:
            found.append((f"disk {short_bytes(disk)}", "low" if disk < DISK_SHORT else ""))
        return [*found, *self._gpu_figures(over)]

    def _gpu_figures(self, over: bool) -> list[tuple[str, str]]:
        """Return (text, problem) for values about all GPUs together: the mean busy share, the
        memory of the fullest GPU, and the temperature of the hottest GPU."""
        gpus = list(self.gpus.values())
        busy = [each for gpu in gpus if (each := gpu.find("busy", over)) is not None]
        full = [
            (used, total)
            for gpu in gpus
            if (used := gpu.find("memory", over)) is not None
            and (total := gpu.find("memory_total", over=False))
        ]
        warm = [each for gpu in gpus if (each := gpu.find("celsius", over)) is not None]
        found = []
        if busy:
            found.append((f"{counted(len(gpus), 'GPU')} {sum(busy) / len(busy):.0%} busy", ""))
        if full:
            used, total = max(full)
            found.append((f"GPU memory {short_bytes(used)} of {short_bytes(total)}", ""))
        if warm:
            found.append((f"{max(warm):.0f} C", "hot" if max(warm) >= GPU_HOT_C else ""))
        return found

    def is_ill(self, over: bool) -> bool:
        """Whether the machine has a problem."""
        return any(wrong for _, wrong in self.figures(over))

    def in_words(self, over: bool) -> str:
        """Describe the machine in one line; "" if nothing is known."""
        words = ", ".join(f"{text} ({bad})" if bad else text for text, bad in self.figures(over))
        return words and f"{self.host or 'machine'}{' at worst' if over else ''}: {words}"


@dataclass(slots=True)
class Machines:
    """All hosts of a run from which peers have reported.

    Args:
        environment: ``environment.json`` of the run, with cores and memory of the host on which the
            run was started. Peers that report no host run on that host.
    """

    environment: documents.RunEnvironment = field(default_factory=documents.RunEnvironment)
    found: dict[str, MachineHealth] = field(default_factory=dict)

    def record_usage(self, host: str, usage: events.Usage) -> None:
        """Record a report of a peer on ``host``; "" means the host on which the run was started."""
        own = text_of(self.environment.host) or ""
        name = text_of(host) or own
        if name not in self.found:
            self.found[name] = self._new(name, name == own)
        self.found[name].record_usage(usage)

    def machine_of(self, host: str) -> MachineHealth | None:
        """Return the machine of a peer on ``host``, if any peer on it has reported; "" means the
        host on which the run was started."""
        return self.found.get(text_of(host) or text_of(self.environment.host) or "")

    def _new(self, name: str, is_own: bool) -> MachineHealth:
        own = documents.Hardware.pick(self.environment.hardware if is_own else None)
        return MachineHealth(name, own.usable_cores, own.memory_bytes)

    def line(self, over: bool) -> tuple[str, bool]:
        """Return a line about one machine, and whether any machine has a problem. The machine is
        the first one with a problem, or else the busiest. The line is "" if there is no report."""
        known = [each for each in self.found.values() if each.in_words(over)]
        if not known:
            return "", False
        ill = [each for each in known if each.is_ill(over)]
        words = (ill[0] if ill else max(known, key=_burden)).in_words(over)
        if len(known) > 1:
            which = f"{len(ill)} in trouble" if ill else "this is the busiest"
            words += f"; of {len(known)} machines {which}"
        return words, bool(ill)


def _burden(machine: MachineHealth) -> float:
    return (machine.seen.find("load", over=False) or 0.0) / (machine.cores or 1)
