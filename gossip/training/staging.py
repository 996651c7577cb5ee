"""Copies updates and results between a GPU and the memory that is shared with the node. Each vector
is copied only once.

The pages of a long slot are pinned at its first use and stay pinned, so that the GPU reads and
writes them directly. For short slots, and slots that cannot be pinned, the driver copies through
its own buffers, which costs processor time of the trainer.
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
"""Maximum number of elements of a vector into which short tensors are concatenated on the GPU (16
MiB)."""


class Staging:
    """Copier between ``device``, where the parameters are, and the shared memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._slots: dict[int, Tensor] = {}  # slots that are not pinned yet, by address
        self._pinned: dict[int, Tensor] = {}

    def lend(self, slots: Iterable[Tensor]) -> None:
        """Register slots of the shared memory. They must exist until ``close``."""
        if self._is_cuda:
            self._slots.update({slot.data_ptr(): slot for slot in slots})

    def gather(self, tensors: Sequence[Tensor], out: Tensor) -> bool:
        """Copy the tensors, in order, into ``out``, a float32 vector on the CPU that is long
        enough. Return whether all copied elements are finite."""
        self._pin(out)
        at, greatest = 0, []
        for piece in _rows(tensors):
            greatest.append(torch.linalg.vector_norm(piece, float("inf")))
            out[at : at + len(piece)].copy_(piece, non_blocking=self._is_cuda)
            at += len(piece)
        self._wait()
        return bool(torch.stack(greatest).isfinite().all())

    def arrive(self, flat: Tensor) -> Tensor:
        """Return a copy of ``flat`` on the device. ``flat`` is on the CPU, and may change after the
        call."""
        self._pin(flat)
        here = torch.empty(flat.shape, dtype=flat.dtype, device=self._device)
        here.copy_(flat, non_blocking=self._is_cuda)
        self._wait()
        return here

    def close(self) -> None:
        """Unpin all slots before their memory is freed."""
        for address in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._slots, self._pinned = {}, {}

    def _wait(self) -> None:
        """Wait until the copies are complete. The wait uses no processor time, because the node
        needs the processor."""
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
            # Clear the error. Otherwise the next kernel would raise it.
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self._device)
        logger.warning(
            "%d MiB of memory cannot be pinned (%s): updates take longer between GPU and node",
            slot.nbytes >> 20,
            runtime.cudaGetErrorString(error),
        )
        self._slots.clear()


def _rows(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the elements of all tensors, in order, as float32 vectors. Short tensors are
    concatenated, and long tensors are not copied if possible."""
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
