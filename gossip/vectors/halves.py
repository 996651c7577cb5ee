"""Encodings as 16-bit floating-point numbers: half the bytes of float32, without scales and without
state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .arrays import ByteArray, Vector
from .encoding import WORD_BYTES, Encoding, Place, finite
from .memory import tensor_of

if TYPE_CHECKING:
    from torch import Tensor

PIECE_NUMBERS = 2**16
"""Number of elements to process at a time. They stay in the CPU cache."""


class Halves(Encoding):
    """Base of both encodings with 16 bits. ``largest``: largest magnitude; larger finite elements
    are clamped to it. ``dtype``: name of the dtype in torch."""

    largest: ClassVar[float]
    dtype: ClassVar[str]

    def nbytes(self, elements: int) -> int:
        return -(-2 * elements // WORD_BYTES) * WORD_BYTES

    def _write(self, vector: Vector, place: Place, raw: ByteArray) -> None:
        raw[2 * len(vector) :] = 0
        numbers, halves = tensor_of(vector), self._halves(raw)
        for start in range(0, len(vector), PIECE_NUMBERS):
            piece = numbers[start : start + PIECE_NUMBERS]
            least, most = piece.aminmax()
            if (most > self.largest or least < -self.largest) and bool(piece.isfinite().all()):
                piece = piece.clamp(-self.largest, self.largest)
            halves[start : start + len(piece)] = piece

    def _read(self, raw: ByteArray, place: Place, vector: Vector) -> None:
        tensor_of(vector).copy_(self._halves(raw)[: len(vector)])
        finite(vector)

    def _halves(self, raw: ByteArray) -> Tensor:
        import torch

        return tensor_of(raw).view(getattr(torch, self.dtype))


@dataclass(frozen=True)
class BFloat16(Halves):
    """bfloat16, 2 bytes for each element: the range of float32 with 8 bits of precision."""

    largest: ClassVar[float] = (2 - 2.0**-7) * 2.0**127
    dtype: ClassVar[str] = "bfloat16"
    feedback: bool = False


@dataclass(frozen=True)
class Float16(Halves):
    """IEEE half precision, 2 bytes for each element: 11 bits of precision. Magnitudes above 65,504
    become 65,504, and magnitudes below 3e-8 become zero."""

    largest: ClassVar[float] = 65504.0
    dtype: ClassVar[str] = "float16"
    feedback: bool = False
