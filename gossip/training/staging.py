"""Updates and results on their way between a GPU and the arena: copied once.

The pages of a long slot are pinned when it is first used, and stay so: the GPU then reads and
writes them by itself. Without that the driver copies them through buffers of its own, by the
trainer's processor. Where it cannot be pinned, and where a slot is short, it is copied that way.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from gossip.ipc import PAGED_ELEMENTS

logger = logging.getLogger(__name__)

GATHERED_NUMBERS = 2**22
"""Most numbers of short tensors that are put in a row on the GPU before they leave it: 16 MiB."""


class Staging:
    """Copies between GPU and arena, for a trainer whose parameters are on ``device``."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._slots: dict[int, Tensor] = {}  # by their address: those that are to be pinned
        self._pinned: dict[int, Tensor] = {}

    def lend(self, slots: Iterable[Tensor]) -> None:
        """Slots of an arena, which are there until ``close``."""
        if self._is_cuda:
            self._slots.update({slot.data_ptr(): slot for slot in slots})

    def gather(self, tensors: Sequence[Tensor], out: Tensor) -> bool:
        """Copies the tensors one behind the other into ``out``, a vector of float32 on the CPU
        with room for them. Returns: whether all their numbers are finite."""
        self._pin(out)
        at, greatest = 0, []
        for piece in _rows(tensors):
            greatest.append(torch.linalg.vector_norm(piece, float("inf")))
            out[at : at + len(piece)].copy_(piece, non_blocking=self._is_cuda)
            at += len(piece)
        self._wait()
        return bool(torch.stack(greatest).isfinite().all())

    def arrive(self, flat: Tensor) -> Tensor:
        """A copy of ``flat``, which is on the CPU and may change as soon as this returns."""
        self._pin(flat)
        here = torch.empty(flat.shape, dtype=flat.dtype, device=self._device)
        here.copy_(flat, non_blocking=self._is_cuda)
        self._wait()
        return here

    def close(self) -> None:
        """Unpins all slots, whose memory is given up next."""
        for address in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._slots, self._pinned = {}, {}

    def _wait(self) -> None:
        """Until the copies are made. Asleep: the node needs the processor."""
        if self._is_cuda:
            made = torch.cuda.Event(blocking=True)
            made.record(torch.cuda.current_stream(self._device))
            made.synchronize()

    def _pin(self, flat: Tensor) -> None:
        slot = self._slots.pop(flat.data_ptr(), None)
        if slot is None or slot.numel() < PAGED_ELEMENTS:
            return
        with torch.cuda.device(self._device):
            runtime = torch.cuda.cudart()
            error = runtime.cudaHostRegister(slot.data_ptr(), slot.nbytes, 0)
            if error == runtime.cudaError.success:
                self._pinned[slot.data_ptr()] = slot
                return
            # The runtime keeps the error, and the next kernel would raise it.
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self._device)
        logger.warning(
            "%d MiB of memory cannot be pinned (%s): updates take longer between GPU and node",
            slot.nbytes >> 20,
            runtime.cudaGetErrorString(error),
        )
        self._slots.clear()


def _rows(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """All numbers in order, in vectors of float32: a long tensor where it lies if it can be read
    so, short ones put in a row."""
    row: list[Tensor] = []
    numbers = 0
    for tensor in tensors:
        if not tensor.numel():
            continue
        piece = tensor.reshape(-1).to(torch.float32)
        if row and numbers + len(piece) > GATHERED_NUMBERS:
            yield torch.cat(row) if len(row) > 1 else row[0]
            row, numbers = [], 0
        row.append(piece)
        numbers += len(piece)
    if row:
        yield torch.cat(row) if len(row) > 1 else row[0]
