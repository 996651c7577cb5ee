"""How the machines of a run do: load, memory and disk, as the nodes on them tell with what they
use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gossip.observe import documents, events
from gossip.run import text_of

from .words import counted, short_bytes

MEMORY_SHORT = 0.05
"""With less than this share of its memory free a machine may soon end a process."""
DISK_SHORT = 2**30
"""Bytes. With fewer on the disk checkpoints and records may find no room."""
GPU_HOT_C = 90.0
"""Approximate temperature at which GPUs begin to slow down to cool off, in degrees Celsius."""
GPUS_MAX = 64
LOAD_HIGH = 2.0
"""For each core: from here on processes wait for processors most of the time."""


class Extremes(NamedTuple):
    """A figure: as it was reported last, and how far it went."""

    last: float
    lowest: float
    highest: float

    def worst(self, over: bool, worst: str) -> float:
        """Return the last value or, if the run is ``over``, the ``worst``."""
        found: float = getattr(self, worst if over else "last")
        return found


class Figures:
    """Figures of one thing, by name."""

    def __init__(self) -> None:
        self._found: dict[str, Extremes] = {}

    def record(self, names: Iterable[str], source: object) -> None:
        """Record the attributes of these names that are known."""
        for name in names:
            if (value := getattr(source, name)) is not None:
                _, lowest, highest = self._found.get(name, (value, value, value))
                self._found[name] = Extremes(value, min(lowest, value), max(highest, value))

    def find(self, name: str, over: bool, worst: str = "highest") -> float | None:
        """Return a figure, as ``Extremes.worst`` does; None: it is not known."""
        found = self._found.get(name)
        return None if found is None else found.worst(over, worst)


OF_MACHINE = ("load", "machine_memory_free", "disk_free")
OF_GPU = ("busy", "memory", "memory_total", "celsius")


@dataclass(slots=True)
class MachineHealth:
    """One host.

    Attributes:
        cores, memory: How many, and bytes; None: not known.
        seen: Load of the last minute; bytes free of the memory, and of the disk that has the run's
            folder.
        gpus: Those that peers use, by their index: busy share of the last second, bytes used and
            in all, temperature.
    """

    host: str
    cores: int | None = None
    memory: int | None = None
    seen: Figures = field(default_factory=Figures)
    gpus: dict[int, Figures] = field(default_factory=dict)

    def record_usage(self, usage: events.Usage) -> None:
        """Record what an event reports about the machine."""
        self.seen.record(OF_MACHINE, usage)
        for gpu in map(documents.GpuUsage.pick, (usage.gpus or ())[:GPUS_MAX]):
            if gpu.index is not None:
                self.gpus.setdefault(int(gpu.index), Figures()).record(OF_GPU, gpu)

    def figures(self, over: bool) -> list[tuple[str, str]]:
        """Return figures of the machine, now, or at the worst if the run is ``over``; each with
        what is wrong with it, "": nothing."""
        load = self.seen.find("load", over)
        free, disk = (self.seen.find(name, over, "lowest") for name in OF_MACHINE[1:])
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
        """Return figures of all its GPUs together: how busy they are on average, or were least; how
        full the fullest is, and how warm the warmest."""
        gpus = list(self.gpus.values())
        busy = [each for gpu in gpus if (each := gpu.find("busy", over, "lowest")) is not None]
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
        """Whether anything is wrong with it."""
        return any(wrong for _, wrong in self.figures(over))

    def in_words(self, over: bool) -> str:
        """ "": nothing is known."""
        words = ", ".join(f"{text} ({bad})" if bad else text for text, bad in self.figures(over))
        return words and f"{self.host or 'machine'}{' at worst' if over else ''}: {words}"


@dataclass(slots=True)
class Machines:
    """All hosts of a run that peers have told of.

    Args:
        environment: ``environment.json`` of the run: it has cores and memory of the host on which
            it was started, where peers run that have named no other.
    """

    environment: documents.RunEnvironment = field(default_factory=documents.RunEnvironment)
    found: dict[str, MachineHealth] = field(default_factory=dict)

    def record_usage(self, host: str, usage: events.Usage) -> None:
        """Record what a peer on ``host`` has reported; "": on the host of the run."""
        own = text_of(self.environment.host) or ""
        name = text_of(host) or own
        if name not in self.found:
            self.found[name] = self._new(name, name == own)
        self.found[name].record_usage(usage)

    def machine_of(self, host: str) -> MachineHealth | None:
        """Return the machine of a peer on ``host``, if a peer on it has reported; "": as above."""
        return self.found.get(text_of(host) or text_of(self.environment.host) or "")

    def _new(self, name: str, is_own: bool) -> MachineHealth:
        own = documents.Hardware.pick(self.environment.hardware if is_own else None)
        return MachineHealth(name, own.usable_cores, own.memory_bytes)

    def line(self, over: bool) -> tuple[str, bool]:
        """One machine in a line: the first in trouble, or the busiest; and whether something is
        wrong. "": none has told of itself."""
        told = [each for each in self.found.values() if each.in_words(over)]
        if not told:
            return "", False
        ill = [each for each in told if each.is_ill(over)]
        words = (ill[0] if ill else max(told, key=_burden)).in_words(over)
        if len(told) > 1:
            which = f"{len(ill)} in trouble" if ill else "this is the busiest"
            words += f"; of {len(told)} machines {which}"
        return words, bool(ill)


def _burden(machine: MachineHealth) -> float:
    return (machine.seen.find("load", over=False) or 0.0) / (machine.cores or 1)
