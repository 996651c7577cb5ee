"""Memory that a trainer and its node share. It has vectors in both directions, and the progress of
the trainer.

The memory is anonymous (``memfd``) and is sent as a file descriptor, so a crash of either side
leaves no file. Unwritten pages take no memory, so the arena has slots for every topology.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Iterable

import numpy as np

from gossip.core import ROUNDS_KEPT_ALWAYS, RoundSettings
from gossip.errors import LocalError
from gossip.vectors import ByteArray, Vector

from .messages import RESULT_SLOTS, UPDATE_SLOTS

HEADER_BYTES = 4096
ALIGNMENT = 64
LENT_ELEMENTS = 2**18
"""Minimum size of a result, in elements, for lending: the script then receives views of the result.
For a smaller result it receives a copy, which takes less time."""
PAGED_ELEMENTS = 2**18
"""Minimum size of a slot, in elements, for which the slot begins at a page. Such a slot can be
pinned for a GPU."""
POPULATED_BYTES = 2**20
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, which Python does not define.
_MAGIC = 0x676F737369700001  # "gossip" in ASCII, and version 1
_WORD_MAGIC, _WORD_ELEMENTS, _WORD_STEP, _WORD_TIME_NS, _WORD_COMPILES, _WORD_COMPILED = range(6)

Vector = Vector


def allocate(nbytes: int) -> int:
    """Allocate ``nbytes`` zero bytes of memory that can be shared. Return its descriptor, which is
    close-on-exec, and which the caller must close. Raises: LocalError."""
    fd = os.memfd_create("gossip", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        # Without this seal, a side that shrinks the memory would cause a SIGBUS on the other side.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError as error:
        os.close(fd)
        raise LocalError(f"cannot get {nbytes} bytes of shared memory: {error}") from error
    return fd


def map_memory(fd: int, nbytes: int) -> mmap.mmap:
    """Map ``nbytes`` of ``fd``, shared and writable. ``fd`` may be closed afterwards.

    Raises: LocalError: The memory of ``fd`` is smaller than ``nbytes``.
    """
    have = os.fstat(fd).st_size
    if have < nbytes:
        raise LocalError(
            f"shared memory of {nbytes} bytes was announced, the descriptor has {have}"
        )
    return mmap.mmap(fd, nbytes)


def map_bytes(fd: int, nbytes: int) -> memoryview:
    """Return a view of the first ``nbytes`` of ``fd``. The memory is unmapped when the last view is
    freed."""
    return memoryview(map_memory(fd, nbytes))


def map_received(fd: int, nbytes: int) -> memoryview:
    """Return the view that ``map_bytes`` returns, and close ``fd``, which the other side has
    sent."""
    try:
        return map_bytes(fd, nbytes)
    finally:
        os.close(fd)


def map_rows(fd: int, rows: int, elements: int) -> Vector:
    """Return the memory of ``fd`` as a float32 array ``(rows, elements)``. The memory is unmapped
    when the last view of the array is freed."""
    return np.frombuffer(map_memory(fd, 4 * rows * elements), np.float32).reshape(rows, elements)


class Arena:
    """Slots for vectors of ``elements`` float32 values. A slot begins at a multiple of 64 bytes, or
    at a page if it has ``PAGED_ELEMENTS`` or more.

    Attributes:
        memory: The whole arena, as bytes.
        updates: ``UPDATE_SLOTS`` slots for the trainer's updates.
        parameters: ``UPDATE_SLOTS`` slots for the trainer's parameters, used in gossip rounds that
            mix parameters.
        results: ``RESULT_SLOTS`` slots into which results of rounds are copied, then the slots in
            which results are received or computed in place.
        mixes: ``RESULT_SLOTS`` slots for differences that the trainer adds to its parameters.
        encoded: ``UPDATE_SLOTS`` slots of ``encoded_bytes`` for the trainer's encoded updates.
    """

    def __init__(self, fd: int, elements: int, encoded_bytes: int, *, new: bool) -> None:
        """Use ``create`` or ``attach`` instead. The arena owns ``fd``."""
        self.fd = fd
        self.elements = elements
        stride = _stride(elements)
        self._memory: mmap.mmap | None
        self._memory = memory = map_memory(fd, _size(elements, encoded_bytes))
        self.memory: ByteArray = np.frombuffer(memory, np.uint8)
        self._words = np.frombuffer(memory, np.int64, HEADER_BYTES // 8)
        if new:
            self._words[_WORD_MAGIC], self._words[_WORD_ELEMENTS] = _MAGIC, elements
            self._words[_WORD_TIME_NS] = time.monotonic_ns()
        elif (self._words[_WORD_MAGIC], self._words[_WORD_ELEMENTS]) != (_MAGIC, elements):
            raise LocalError(
                f"the arena is not one of {elements} elements: its header has "
                f"{self._words[:2].tolist()}"
            )
        end = _size(elements)
        offsets = iter(range(HEADER_BYTES, end, stride))

        def vectors(count: int) -> tuple[Vector, ...]:
            return tuple(
                np.frombuffer(memory, np.float32, elements, next(offsets)) for _ in range(count)
            )

        self.updates, self.parameters = vectors(UPDATE_SLOTS), vectors(UPDATE_SLOTS)
        self.mixes = vectors(RESULT_SLOTS)
        self.results = vectors(RESULT_SLOTS + landing_slots(elements))
        self.encoded = tuple(
            np.frombuffer(memory, np.uint8, encoded_bytes, end + slot * _aligned(encoded_bytes))
            for slot in range(UPDATE_SLOTS)
        )
        self._private: mmap.mmap | None = None

    @classmethod
    def create(cls, elements: int, encoded_bytes: int = 0) -> Arena:
        """Create an arena of zeros. The caller may send the arena's ``fd`` to the other side before
        ``close``."""
        assert elements > 0
        fd = allocate(_size(elements, encoded_bytes))
        return cls(fd, elements, encoded_bytes, new=True)

    @classmethod
    def attach(cls, fd: int, elements: int, encoded_bytes: int = 0) -> Arena:
        """Open the arena of ``fd``, which the other side has sent. The arena then owns ``fd``.

        Raises: LocalError: The memory of ``fd`` is not an arena with this number of elements.
        """
        return cls(fd, elements, encoded_bytes, new=False)

    @property
    def lends_results(self) -> bool:
        """Whether the script receives views of results (``lent_result``). A result then stays in
        its slot until the trainer applies the next result."""
        return self.elements >= LENT_ELEMENTS

    def lent_result(self, slot: int) -> Vector:
        """Return a copy-on-write view of ``results[slot]``. Writes to the view do not change the
        slot, and are dropped when this slot is lent again. Pages are mapped only when they are
        read."""
        if self._private is None:
            # A page that is written becomes private to this mapping.
            self._private = mmap.mmap(self.fd, _size(self.elements), flags=mmap.MAP_PRIVATE)
        # Drop the private copies of pages that were written since the slot was last lent.
        first, end = self._pages_of(slot)
        self._private.madvise(mmap.MADV_DONTNEED, first, end - first)
        return np.frombuffer(self._private, np.float32, self.elements, end - 4 * self.elements)

    def renew_lent_memory(self) -> None:
        """Use a new mapping in later calls of ``lent_result``, so that they do not drop what the
        script has written to the old mapping."""
        self._private = None

    def _pages_of(self, slot: int) -> tuple[int, int]:
        """Return two offsets in bytes: of the page in which ``results[slot]`` begins, and of the
        slot's end."""
        at = HEADER_BYTES + (2 * UPDATE_SLOTS + RESULT_SLOTS + slot) * _stride(self.elements)
        return at // mmap.PAGESIZE * mmap.PAGESIZE, at + 4 * self.elements

    def populate(self, slots: Iterable[int]) -> None:
        """Allocate the pages of these slots of ``results`` in advance. The first write to a page
        takes several times as long if the kernel has to allocate the page. Before Linux 5.14 this
        has no effect.

        The pages are allocated in several calls of ``madvise``, because each call blocks all other
        threads of the interpreter.
        """
        if (memory := self._memory) is None:
            return
        for slot in slots:
            first, end = self._pages_of(slot)
            for part in range(first, end, POPULATED_BYTES):
                try:
                    memory.madvise(_POPULATE_WRITE, part, min(POPULATED_BYTES, end - part))
                except OSError:
                    return

    def note_progress(self, step: int) -> None:
        """Record that the trainer has applied ``step`` rounds."""
        self._words[_WORD_STEP] = step
        self._words[_WORD_TIME_NS] = time.monotonic_ns()

    def progress(self) -> tuple[int, float]:
        """Return the number of rounds that the trainer has applied, and the seconds since it
        applied the last round or ended a compilation. The seconds are 0.0 during a compilation."""
        if self.compiles:
            return int(self._words[_WORD_STEP]), 0.0
        age_s = (time.monotonic_ns() - int(self._words[_WORD_TIME_NS])) / 1e9
        return int(self._words[_WORD_STEP]), max(0.0, age_s)

    def note_compiling(self, compiles: bool) -> None:
        """Record that the trainer begins or ends a compilation."""
        self._words[_WORD_COMPILES], self._words[_WORD_COMPILED] = compiles, True
        self._words[_WORD_TIME_NS] = time.monotonic_ns()

    @property
    def compiles(self) -> bool:
        """Whether the trainer compiles its model at present."""
        return bool(self._words[_WORD_COMPILES])

    @property
    def compiled(self) -> bool:
        """Whether the trainer has ever compiled its model."""
        return bool(self._words[_WORD_COMPILED])

    def close(self) -> None:
        """Release the memory. Vectors that are still referenced stay valid. The memory is freed
        when the last vector is."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.memory, self._words = np.empty(0, np.uint8), np.zeros(HEADER_BYTES // 8, np.int64)
        self.updates = self.parameters = self.results = self.mixes = ()
        self.encoded, self._memory, self._private = (), None, None


def _aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    return -(-nbytes // alignment) * alignment


def _stride(elements: int) -> int:
    """Return the distance between the starts of two slots, in bytes."""
    return _aligned(4 * elements, mmap.PAGESIZE if elements >= PAGED_ELEMENTS else ALIGNMENT)


def _size(elements: int, encoded_bytes: int = 0) -> int:
    slots = 2 * (UPDATE_SLOTS + RESULT_SLOTS) + landing_slots(elements)
    vectors = slots * _stride(elements)
    return HEADER_BYTES + vectors + UPDATE_SLOTS * _aligned(encoded_bytes)


def landing_slots(elements: int) -> int:
    """Return the number of slots in which results are received or computed in place.

    Each result that the core stores for other peers needs a slot. The present round, the next
    round, and a result that is still being read need one more slot each.
    """
    kept = RoundSettings()
    rounds = min(kept.commit_log, kept.commit_log_bytes // (4 * elements))
    return max(ROUNDS_KEPT_ALWAYS, rounds) + 3
