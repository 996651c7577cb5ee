"""Sparse encodings: some elements are sent unchanged, and all other elements are decoded as zeros.

A peer stores the elements that it does not send, and adds them to its next update (``feedback``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gossip.errors import Malformed

from .arrays import ByteArray, Vector
from .encoding import NUMBER_BYTES, Encoding, Float32, Place, finite, within

INDEX_BYTES = 4
SAMPLE, SAMPLE_MORE, SAMPLE_LEAST = 2**14, 1.3, 32
"""``SAMPLE``: number of elements in a sample. From the sample, ``SAMPLE_MORE`` times the
proportional share of elements is selected, plus ``SAMPLE_LEAST``."""


@dataclass(frozen=True)
class TopK(Encoding):
    """The elements of largest magnitude, 8 bytes each: first their indices, ascending, and then
    their values.

    Attributes:
        ratio: Share of the elements of an update that are sent.
        updates: Number of updates in the vector. A result has room for the elements of all its
            updates, so it can have every element of a weighted sum.
    """

    sparse: ClassVar[bool] = True
    ratio: float = within(0.01, 1e-6, 0.5)
    feedback: bool = True
    updates: int = 1

    def for_results(self, peers: int) -> Encoding:
        if 2 * self.ratio * peers >= 1:
            return Float32()
        return replace(self, feedback=False, updates=peers)

    def count(self, elements: int) -> int:
        """Return how many elements of a vector of ``elements`` elements are sent."""
        return min(elements, self.updates * max(1, round(self.ratio * elements)))

    def nbytes(self, elements: int) -> int:
        return (INDEX_BYTES + NUMBER_BYTES) * self.count(elements)

    def _write(self, vector: Vector, place: Place, raw: ByteArray) -> None:
        count = self.count(len(vector))
        where = _farthest(vector, count)
        raw[: INDEX_BYTES * count].view(np.uint32)[:] = where
        raw[INDEX_BYTES * count :].view(np.float32)[:] = vector[where]

    def _read(self, raw: ByteArray, place: Place, vector: Vector) -> None:
        at = INDEX_BYTES * self.count(len(vector))
        where, values = raw[:at].view(np.uint32), finite(raw[at:].view(np.float32))
        if not bool((where[1:] > where[:-1]).all()) or int(where[-1]) >= len(vector):
            raise Malformed("the indices are not ascending, or are outside the vector")
        vector[:] = 0.0
        vector[where] = values


def _farthest(vector: Vector, count: int) -> NDArray[np.int64]:
    """Return the indices of the ``count`` elements of largest magnitude, ascending. NaN counts as
    the largest magnitude.

    A sample determines a threshold, and only elements above the threshold are compared. This is
    about ten times as fast as comparing all elements. If fewer than ``count`` elements are above
    the threshold, all elements are compared.
    """
    # Without the sign bit, float32 values have the same order as their bit patterns, and NaN is
    # last.
    sizes = vector.view(np.uint32) & np.uint32(0x7FFFFFFF)
    among: NDArray[np.int64] | None = None
    sample = sizes[:: len(sizes) // SAMPLE or 1]
    enough = min(len(sample), int(SAMPLE_MORE * count * len(sample) / len(sizes)) + SAMPLE_LEAST)
    if enough < len(sample):
        least = np.partition(sample, len(sample) - enough)[len(sample) - enough]
        likely = np.flatnonzero(sizes >= least)
        if len(likely) >= count:
            among, sizes = likely, sizes[likely]
    least = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    chosen = sizes > least
    equal = np.flatnonzero(sizes == least)
    chosen[equal[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen) if among is None else among[chosen]
