"""Encodings as integers of 8 or 4 bits, with a scale for each block of consecutive elements.

    scales   bfloat16, one for each block
    codes one for each element; the last block is padded with zeros

A decoded element is its code times the scale of its block. A scale has 8 bits of precision and a
code at most 7, so the product is exact, and equal on every machine. The element with the largest
magnitude determines the scale of its block and gets the largest code. So encoding a decoded vector
yields the same bytes again. If the elements of a block are too small for a scale, they are sent as
zeros.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gossip.errors import ConfigError, Malformed

from .arrays import ByteArray, Vector
from .encoding import WORD_BYTES, Encoding, Place, within
from .memory import tensor_of

if TYPE_CHECKING:
    from torch import Tensor

PIECE_NUMBERS = 2**17
"""Number of elements to process at a time. They stay in the CPU cache."""
SMALLEST_SCALE = 2.0**-126
SCALE_BYTES = 2


class Blocks(Encoding):
    """Base of the encodings with 8 and 4 bits.

    Attributes:
        block: Number of elements that share a scale.
        largest: Largest code. The smallest code is its negative.
        bits: Number of bits of a code.
    """

    block: int
    largest: ClassVar[int]
    bits: ClassVar[int]

    @abstractmethod
    def _pack(self, codes: Tensor) -> Tensor:
        """Return the codes of the whole numbers in a one-dimensional float32 tensor, as bytes."""

    @abstractmethod
    def _unpack(self, packed: Tensor) -> Tensor:
        """Return the whole numbers in the bytes of their codes, as a one-dimensional float32
        tensor."""

    def nbytes(self, elements: int) -> int:
        blocks = self._blocks(elements)
        return self._scales_end(blocks) + blocks * self._code_bytes

    def _write(self, vector: Vector, place: Place, raw: ByteArray) -> None:
        import torch

        blocks = self._blocks(len(vector))
        raw[SCALE_BYTES * blocks : self._scales_end(blocks)] = 0
        written, codes = self._parts(raw, blocks)
        most = torch.empty(blocks)
        for (start, stop), numbers in self._filled(vector):
            torch.amax(numbers.abs(), dim=1, out=most[start:stop])
        scales = self._scales_of(most)
        written.view(torch.bfloat16)[:] = scales
        inverse = torch.where(scales > 0, 1 / scales.float(), 0.0)[:, None]
        for (start, stop), numbers in self._filled(vector):
            whole = (numbers * inverse[start:stop]).round_().clamp_(-self.largest, self.largest)
            codes[start:stop] = self._pack(whole.view(-1)).view(-1, self._code_bytes)

    def _read(self, raw: ByteArray, place: Place, vector: Vector) -> None:
        import torch

        blocks = self._blocks(len(vector))
        written = raw[: SCALE_BYTES * blocks].view(np.uint16)
        # This check also rejects negative, infinite and NaN scales, because their bit patterns are
        # larger than that of the largest scale.
        if int(written.max(initial=0)) > self._largest_scale_bits:
            raise Malformed("a scale is not a value that an encoder writes")
        scales, codes = self._parts(raw, blocks)
        out = tensor_of(vector)
        for start, stop in self._pieces(blocks):
            numbers = self._unpack(codes[start:stop].view(-1)).view(-1, self.block)
            factor = scales[start:stop].view(torch.bfloat16).float()
            room = out[start * self.block : stop * self.block]
            if len(room) == numbers.numel():
                torch.mul(numbers, factor[:, None], out=room.view(-1, self.block))
            else:
                room.copy_((numbers * factor[:, None]).view(-1)[: len(room)])

    # --- the parts of a payload -------------------------------------------------------------------

    @property
    def _code_bytes(self) -> int:
        """Length of the codes of one block, in bytes."""
        return self.block * self.bits // 8

    @property
    def _largest_scale(self) -> float:
        """Largest valid scale. With this scale, every code is decoded to a finite value, even the
        code ``-largest - 1``, which only a Byzantine peer sends. The largest bfloat16 below 2 is 2
        - 2**-7. The largest power of two in float32 is 2**127."""
        return float((2 - 2.0**-7) * 2.0**127 / (self.largest + 1))

    @property
    def _largest_scale_bits(self) -> int:
        return int(np.float32(self._largest_scale).view(np.uint32)) >> 16

    def _blocks(self, elements: int) -> int:
        return -(-elements // self.block)

    def _scales_end(self, blocks: int) -> int:
        return -(-SCALE_BYTES * blocks // WORD_BYTES) * WORD_BYTES

    def _parts(self, raw: ByteArray, blocks: int) -> tuple[Tensor, Tensor]:
        """Return views of ``raw``: the scales as int16, and the codes as ``(blocks, bytes)``."""
        import torch

        whole = tensor_of(raw)
        scales = whole[: SCALE_BYTES * blocks].view(torch.int16)
        return scales, whole[self._scales_end(blocks) :].view(blocks, self._code_bytes)

    def _pieces(self, blocks: int) -> Iterator[tuple[int, int]]:
        step = max(1, PIECE_NUMBERS // self.block)
        for start in range(0, blocks, step):
            yield start, min(start + step, blocks)

    def _filled(self, vector: Vector) -> Iterator[tuple[tuple[int, int], Tensor]]:
        """Yield ranges of blocks. Each range comes with the elements of its blocks, one row for
        each block."""
        import torch

        for start, stop in self._pieces(self._blocks(len(vector))):
            given = tensor_of(vector[start * self.block : stop * self.block])
            if missing := (stop - start) * self.block - len(given):
                given = torch.cat([given, torch.zeros(missing)])
            yield (start, stop), given.view(-1, self.block)

    def _scales_of(self, most: Tensor) -> Tensor:
        """Return the scale of each block as bfloat16. ``most``: largest magnitude in each block.
        The scale is NaN if the block has a non-finite element. The relative rounding error is at
        most 2**-9, so the largest element gets the largest code."""
        import torch

        scale = (most / self.largest).clamp_(max=self._largest_scale)
        scale = torch.where(scale < SMALLEST_SCALE, 0.0, scale)
        return torch.where(torch.isfinite(most), scale, torch.nan).to(torch.bfloat16)


def _whole_words(block: int) -> None:
    if block % (2 * WORD_BYTES):
        raise ConfigError(f"encoding: blocks of {block} elements", "use a multiple of 8")


@dataclass(frozen=True)
class Int8(Blocks):
    """8 bits for each element and 16 bits for each block: 1.01 bytes per element with blocks of
    256."""

    largest: ClassVar[int] = 127
    bits: ClassVar[int] = 8
    block: int = within(256, 8, 65536)
    feedback: bool = False

    def __post_init__(self) -> None:
        _whole_words(self.block)

    def _pack(self, codes: Tensor) -> Tensor:
        import torch

        return codes.to(torch.int8).view(torch.uint8)

    def _unpack(self, packed: Tensor) -> Tensor:
        import torch

        return packed.view(torch.int8).float()


@dataclass(frozen=True)
class Int4(Blocks):
    """4 bits for each element and 16 bits for each block: 0.53 bytes per element with blocks of 64.

    The result of these updates is encoded as ``int8``, because results have no error feedback:
    another peer serves the next round.
    """

    largest: ClassVar[int] = 7
    bits: ClassVar[int] = 4
    block: int = within(64, 8, 65536)
    feedback: bool = True

    def __post_init__(self) -> None:
        _whole_words(self.block)

    def _pack(self, codes: Tensor) -> Tensor:
        import torch

        halves = (codes + 8).to(torch.uint8).view(-1, 2)
        return halves[:, 0] | (halves[:, 1] << 4)

    def _unpack(self, packed: Tensor) -> Tensor:
        import torch

        return torch.stack((packed & 15, packed >> 4), dim=1).view(-1).float() - 8

    def for_results(self, peers: int) -> Encoding:
        return Int8()
