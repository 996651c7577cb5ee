"""Free memory of the NVIDIA GPUs that trainers of this machine would see, read from the driver's
own tool without torch.

A query by torch would import it into the launcher and use memory of the GPU that is examined.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from gossip.launch.report import bytes_word, counted

ASK_S = 10.0
"""A driver that is not kept loaded takes seconds to wake up. Longer than a heartbeat may: who has
one asks in a thread."""
KILLED_S = 1.0
CONTEXT_BYTES = 512 * 2**20
"""Memory that a process takes on a GPU before its first tensor (context, kernels, workspaces), in
bytes: 300 to 600 MiB, by GPU and CUDA. Model, gradients and optimizer come on top."""
GPUS_NAMED = 8
_QUERY = ("index", "uuid", "name", "memory.free", "memory.total")


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    uuid: str
    name: str
    free_bytes: int
    total_bytes: int

    @property
    def room(self) -> int:
        """For how many peers' contexts."""
        return self.free_bytes // CONTEXT_BYTES


@dataclass(frozen=True, slots=True)
class Gpus:
    """Those that a trainer may use, and what kept us from knowing them, or some of them; "" also
    where there is no such tool."""

    each: tuple[Gpu, ...] = ()
    error: str = ""

    @property
    def room(self) -> int:
        return sum(gpu.room for gpu in self.each)

    def short_of(self, peers: int) -> str:
        """Return a warning that so many peers do not fit on this machine's GPUs; "": they fit, or
        there is no GPU."""
        if not self.each or self.room >= peers:
            return ""
        free = " and ".join([bytes_word(gpu.free_bytes) for gpu in self.each[:GPUS_NAMED]])
        more = ", ..." if len(self.each) > GPUS_NAMED else ""
        fits = f"room for {self.room}" if self.room else "no room for any"
        where = f"{counted(peers, 'peer')} on {counted(len(self.each), 'GPU')}"
        return (
            f"{where} would need about {bytes_word(CONTEXT_BYTES)} each before any model; free: "
            f"{free}{more}, {fits}"
        )

    def to_json(self) -> dict[str, object]:
        return {"each": [asdict(gpu) for gpu in self.each], "error": self.error}

    @classmethod
    def from_json(cls, said: Mapping[str, object]) -> Gpus:
        """Raises KeyError, TypeError or ValueError for what ``to_json`` has not made."""
        each = said["each"]
        if not isinstance(each, list):
            raise TypeError("no list of GPUs")
        return cls(tuple(Gpu(**gpu) for gpu in each), str(said["error"]))


HINT = (
    "nvidia-smi shows which processes use it; CUDA_VISIBLE_DEVICES= lets them train on processors"
)


def query_gpus(environment: Mapping[str, str] = os.environ) -> Gpus:
    """Return the GPUs that nvidia-smi lists, as far as CUDA_VISIBLE_DEVICES lets trainers see
    them."""
    tool = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if tool is None:
        return Gpus()
    asked = [tool, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        asking = subprocess.Popen(
            asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    except OSError as error:
        return Gpus(error=f"nvidia-smi: {error.strerror}")
    try:
        out, err = asking.communicate(timeout=ASK_S)
    except subprocess.TimeoutExpired:
        asking.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            # A process that hangs within the driver cannot be killed, so this wait is short.
            asking.communicate(timeout=KILLED_S)
        return Gpus(error=f"nvidia-smi did not answer in {ASK_S:.0f} s")
    if "No devices were found" in out + err:
        return Gpus()
    if asking.returncode:
        said = [*err.splitlines(), *out.splitlines(), f"exit code {asking.returncode}"]
        return Gpus(error=f"nvidia-smi: {next(line.strip() for line in said if line.strip())}")
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    if wanted is not None and "MIG-" in wanted:
        return Gpus(
            error=f"CUDA_VISIBLE_DEVICES={wanted}: what is free on a part of a GPU is not known"
        )
    found, other = read(out)
    unread = f"nvidia-smi printed an unexpected answer: {other[0][:80]!r}" if other else ""
    return Gpus(tuple(visible(found, wanted)), unread)


def read(answer: str) -> tuple[list[Gpu], list[str]]:
    """Lines of the asked fields, sizes in MiB; and lines of anything else: some GPUs do not tell
    what memory they have."""
    found, other = [], []
    for line in map(str.strip, filter(str.strip, answer.splitlines())):
        try:
            index, uuid, *name, free, total = (part.strip() for part in line.split(","))
            found.append(
                Gpu(int(index), uuid, ", ".join(name), int(free) * 2**20, int(total) * 2**20)
            )
        except ValueError:
            other.append(line)
    return found, other


def visible(found: Sequence[Gpu], wanted: str | None) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects. Read it as CUDA does: numbers, or
    beginnings of UUIDs, up to the first that is none of them.

    Numbers are those of nvidia-smi. Where GPUs differ, CUDA counts the fastest first, unless
    CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    if wanted is None:
        return list(found)
    chosen: list[Gpu] = []
    for part in map(str.strip, wanted.split(",")):
        match = [
            gpu
            for gpu in found
            if part == str(gpu.index) or (part.startswith("GPU-") and gpu.uuid.startswith(part))
        ]
        if len(match) != 1:
            break
        chosen += [gpu for gpu in match if gpu not in chosen]
    return chosen
