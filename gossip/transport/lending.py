"""Payloads in shared memory: peers of one host map each other's memory, and the receiver copies
payloads from there.

The owner seals its memory, which then keeps its size permanently, so that a reader never reads
beyond its end (SIGBUS). After that, no process can map it writable again. A reader accepts only
memory of this kind (memfd of Linux), maps it read-only, and copies each block before it checks it.
So a change by the owner affects only the owner's own payload. An update that its reader only adds
up is
not copied: a finite sum has only finite numbers, even if they have changed since the first check.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .chunks import view_of

_F_SEAL_FUTURE_WRITE = 0x0010  # Python has a name for it from 3.13 on
_KEEPS_ITS_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
MAPPED_BYTES_MAX = 2**44
"""Size limit of the memory of one peer, in bytes. Half of a process's address space is 2**46
bytes. Mapping takes no memory, and reads are bounded by the payloads that may come."""


class Lender:
    """The owner's side of one piece of memory.

    Attributes:
        fd: The descriptor that readers are given. The owner of the memory closes it.
        nbytes: Its size.
    """

    def __init__(self, fd: int, memory: NDArray[np.uint8]) -> None:
        """Seal the memory: from now on no process can map it writable, this one included.

        Args:
            memory: The whole memory, as mapped by this process.
        Raises: OSError: The memory cannot be sealed.
        """
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _KEEPS_ITS_SIZE | _F_SEAL_FUTURE_WRITE)
        self.fd, self.nbytes = fd, len(memory)
        self._start = start_of(memory)

    def offset_of(self, data: NDArray[np.uint8]) -> int | None:
        """Return the offset of ``data`` in the memory. None if it does not lie there."""
        offset = start_of(data) - self._start
        return offset if 0 <= offset <= self.nbytes - len(data) else None


class MappedMemory:
    """The reader's side: another peer's memory, mapped read-only. It is unmapped with the last
    view of it."""

    def __init__(self, fd: int) -> None:
        """``fd`` stays the caller's. Raises: OSError: It is not memory that keeps its size, or it
        cannot be mapped."""
        # An error for all other kinds of files, because reading a file may block forever.
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        nbytes, page = os.fstat(fd).st_size, os.fstatvfs(fd).f_bsize
        # There may be no free huge page when one is read, which also causes a SIGBUS.
        ordinary = seals & fcntl.F_SEAL_SHRINK and page == mmap.PAGESIZE
        if not ordinary or not 0 < nbytes <= MAPPED_BYTES_MAX:
            raise OSError(f"{nbytes} bytes in pages of {page}, with the seals {seals:#x}")
        self._bytes = np.frombuffer(mmap.mmap(fd, nbytes, prot=mmap.PROT_READ), np.uint8)

    def part(self, offset: int, nbytes: int) -> NDArray[np.uint8] | None:
        """Return ``nbytes`` from ``offset`` on, without a copy; None if they exceed the memory."""
        if nbytes > len(self._bytes) or offset > len(self._bytes) - nbytes:
            return None
        return self._bytes[offset : offset + nbytes]


class BufferPool:
    """Memory for payloads, used again once no array refers to it: fresh memory costs more than the
    copy into it."""

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Return ``nbytes`` of uninitialized memory, which the caller owns for as long as an array
        over it lives."""
        free = [buffer for buffer in self._buffers if buffer.is_free]
        fitting = [buffer for buffer in free if nbytes <= buffer.nbytes <= 2 * nbytes]
        if fitting:
            return fitting[-1].lend(nbytes)
        for buffer in free:  # of another size than the present payload
            self._buffers.remove(buffer)
        self._buffers.append(Buffer(np.empty(nbytes, np.uint8)))
        return self._buffers[-1].lend(nbytes)


class Buffer:
    """Memory that detects whether an array refers to it."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.nbytes, self.memory = len(memory), memory
        self._user: weakref.ref[NDArray[np.uint8]] | None = None

    @property
    def is_free(self) -> bool:
        return self._user is None or self._user() is None

    def lend(self, nbytes: int) -> NDArray[np.uint8]:
        """Return the first ``nbytes``. All arrays made of the returned one keep it alive: numpy
        searches the owner of the memory among arrays only, and the base of this one is none."""
        assert self.is_free
        lent = np.frombuffer(view_of(self.memory)[:nbytes], np.uint8)
        self._user = weakref.ref(lent)
        return lent


def watched_view(memory: NDArray[np.uint8], let_go: Callable[[], None]) -> NDArray[np.uint8]:
    """Return the same memory in an array that all arrays made of it keep alive. ``let_go`` is
    called after the last of them is gone, in any thread."""
    view = np.frombuffer(view_of(memory), np.uint8)
    weakref.finalize(view, let_go).atexit = False
    return view


def start_of(memory: NDArray[np.uint8]) -> int:
    """Return the address of an array's first byte."""
    start: int = memory.__array_interface__["data"][0]
    return start
