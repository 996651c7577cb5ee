"""Payloads in shared memory. A peer maps the memory of other peers on its host, and copies payloads
from there.

The owner seals its memory. Then its size cannot change, so a reader never reads beyond the end
(SIGBUS), and no process can map the memory writable again. A reader accepts only sealed memory
(memfd of Linux), maps it read-only, and copies each block before it checks the block. So if the
owner changes the memory later, it affects only its own payload. If the rule only adds up updates,
they are not copied: a finite sum has only finite terms, even if they have changed since they were
checked.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossip.vectors import ByteArray

from .chunks import view_of

_F_SEAL_FUTURE_WRITE = 0x0010  # Python has this constant since 3.13
_KEEPS_ITS_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
MAPPED_BYTES_MAX = 2**44
"""Maximum size of one peer's memory, in bytes. The address space of a process has 2**47 bytes. A
mapping itself uses no memory."""


class Lender:
    """Shared memory at its owner.

    Attributes:
        fd: Descriptor that is sent to readers. The owner of the memory closes it.
        nbytes: Size of the memory.
    """

    def __init__(self, fd: int, memory: ByteArray) -> None:
        """Seal the memory. From then on no process can map it writable again, including this
        process.

        Args:
            memory: The whole memory of ``fd``, as this process has mapped it.
        Raises: OSError: The memory cannot be sealed.
        """
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _KEEPS_ITS_SIZE | _F_SEAL_FUTURE_WRITE)
        self.fd, self.nbytes = fd, len(memory)
        self._start = start_of(memory)

    def offset_of(self, data: ByteArray) -> int | None:
        """Return the offset of ``data`` in the shared memory; None if ``data`` is elsewhere."""
        offset = start_of(data) - self._start
        return offset if 0 <= offset <= self.nbytes - len(data) else None


class MappedMemory:
    """Shared memory at a reader: the memory of another peer, mapped read-only. It is unmapped when
    the last view of it is freed."""

    def __init__(self, fd: int) -> None:
        """Map the memory of ``fd``, which the caller must close. Raises: OSError: The size of the
        memory is not sealed, or the memory cannot be mapped."""
        # This call fails for every other kind of file. Reading other files may block forever.
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        nbytes, page = os.fstat(fd).st_size, os.fstatvfs(fd).f_bsize
        # A huge page may not be available when it is first read, which also causes a SIGBUS.
        ordinary = seals & fcntl.F_SEAL_SHRINK and page == mmap.PAGESIZE
        if not ordinary or not 0 < nbytes <= MAPPED_BYTES_MAX:
            raise OSError(f"memory of {nbytes} bytes, pages of {page} bytes, seals {seals:#x}")
        self._bytes = np.frombuffer(mmap.mmap(fd, nbytes, prot=mmap.PROT_READ), np.uint8)

    def part(self, offset: int, nbytes: int) -> ByteArray | None:
        """Return a view of ``nbytes`` bytes from ``offset`` on; None if the range exceeds the
        memory."""
        if nbytes > len(self._bytes) or offset > len(self._bytes) - nbytes:
            return None
        return self._bytes[offset : offset + nbytes]


class BufferPool:
    """Memory for payloads. A buffer is reused when no array refers to it, because allocating new
    memory takes longer than copying a payload."""

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []

    def allocate(self, nbytes: int) -> ByteArray:
        """Return ``nbytes`` of uninitialized memory. The caller owns the memory until the last
        array over it is deleted."""
        free = [buffer for buffer in self._buffers if buffer.is_free]
        fitting = [buffer for buffer in free if nbytes <= buffer.nbytes <= 2 * nbytes]
        if fitting:
            return fitting[-1].lend(nbytes)
        for buffer in free:  # its size does not fit present payloads
            self._buffers.remove(buffer)
        self._buffers.append(Buffer(np.empty(nbytes, np.uint8)))
        return self._buffers[-1].lend(nbytes)


class Buffer:
    """Memory, with a check whether an array still refers to it."""

    def __init__(self, memory: ByteArray) -> None:
        self.nbytes, self.memory = len(memory), memory
        self._user: weakref.ref[ByteArray] | None = None

    @property
    def is_free(self) -> bool:
        return self._user is None or self._user() is None

    def lend(self, nbytes: int) -> ByteArray:
        """Return an array over the first ``nbytes``. Every view of this array keeps the array
        alive: the base of a view is the last array in its chain of bases. Here this is the returned
        array, because its own base is a memoryview."""
        assert self.is_free
        lent = np.frombuffer(view_of(self.memory)[:nbytes], np.uint8)
        self._user = weakref.ref(lent)
        return lent


def watched_view(memory: ByteArray, let_go: Callable[[], None]) -> ByteArray:
    """Return an array over the same memory, which every view of the array keeps alive. ``let_go``
    is called, in any thread, after the array and its last view are freed."""
    view = np.frombuffer(view_of(memory), np.uint8)
    weakref.finalize(view, let_go).atexit = False
    return view


def start_of(memory: NDArray[Any]) -> int:
    """Return the address of the first byte of an array."""
    start: int = memory.__array_interface__["data"][0]
    return start
