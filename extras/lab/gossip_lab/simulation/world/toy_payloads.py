"""Conversion of toy vectors to payloads, and their mean."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossip.core import PIECE_BYTES, Payload
from gossip.vectors import described, from_bytes, payload_digest, to_bytes

Vector = NDArray[np.float32]
Values = Sequence[float]
"""Vector for arithmetic: with eight elements, Python lists are several times faster than numpy."""


def payload_of(array: NDArray[Any], digest: bool = False) -> Payload:
    """Return the payload for an array; it has a digest only if ``digest`` is True. The array
    becomes read-only, because the peers of a simulation share it."""
    array.setflags(write=False)
    finite = bool(np.logical_and.reduce(np.isfinite(array))) if array.dtype.kind == "f" else True
    content = to_bytes(array)
    return Payload(array, len(content), finite, payload_digest(content) if digest else b"")


def payload_of_values(values: Iterable[float], digest: bool = False) -> Payload:
    """Return the payload for ``values``, converted to float32. Values that are too large become
    infinite."""
    packed = array("f", values)
    content = to_bytes(np.frombuffer(packed.tobytes(), np.float32))
    # A sum in float64 of finite float32 values is always finite.
    finite = isfinite(sum(packed))
    name = payload_digest(content) if digest else b""
    return Payload(from_bytes(content), len(content), finite, name)


def noise_of(name: str, elements: int) -> list[float]:
    """Return random values with mean 0 and variance 1 that depend only on ``name``. They are
    derived from a hash, because creating a random generator would take 20 times as long."""
    drawn = struct.unpack(
        f"<{4 * elements}H", hashlib.shake_128(name.encode()).digest(8 * elements)
    )
    fours = zip(*[iter(drawn)] * 4, strict=True)
    # The sum of four uniform values is close enough to a normal distribution.
    return [(a + b + c + d - 131070.0) / 37837.2 for a, b, c, d in fours]


def packed_of(parts: Sequence[bytes], piece_bytes: int = PIECE_BYTES) -> Payload:
    """Return the payload for a packed state that consists of these parts. If the first part is
    larger than ``piece_bytes``, it is divided into pieces of this size."""
    content = np.frombuffer(b"".join(parts), np.uint8)
    return Payload(
        content,
        content.nbytes,
        True,
        *described(content, [len(part) for part in parts], piece_bytes),
    )


def bytes_of_state(payload: Payload) -> bytes:
    """Return the bytes of the packed state in a payload."""
    data = payload.data if isinstance(payload.data, tuple) else (payload.data,)
    return b"".join([part.tobytes() for part in data])


def weighted_mean(rows: Sequence[Values], samples: Sequence[int]) -> list[float]:
    """Return the sample-weighted mean of the rows. It is summed in the order of ``rows``, so that
    the result is bitwise equal on all peers."""
    total = [0.0] * len(rows[0])
    for row, weight in zip(rows, samples, strict=True):
        total = [sum_so_far + value * weight for sum_so_far, value in zip(total, row, strict=True)]
    everything = sum(samples)
    return [value / everything for value in total]
