"""Format of the payloads of a run: the shards of its updates and results.

After the elements of the parameters, an update has a mark for each parameter
(``training/layout.py``). Marks are few and must be exact. So they are sent unchanged, after the
encoded elements of their shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, TypeAlias

import numpy as np

from gossip.errors import Malformed

from .arrays import ByteArray, Vector
from .encoding import Encoding, Float32, Place, Shape, bytes_for, finite, from_bytes, to_bytes
from .sharding import pack_shapes, shapes_within

PayloadKind: TypeAlias = Literal["update", "result"]


@dataclass(frozen=True)
class WireFormat:
    """Format of the payloads of a run. All peers have it before the first payload arrives.

    Attributes:
        encoding: Encoding of updates.
        seed: Seed of the run, for the random numbers of encodings.
        sizes: Number of elements of each shard, including marks.
        trained: Number of elements of the flat vector before the first mark.
        peers: Maximum number of updates in a result.
        shapes: Shapes of the tensors that these ``trained`` elements form, in order. () means one
            tensor of one dimension.
    """

    encoding: Encoding
    seed: int
    sizes: tuple[int, ...]
    trained: int
    peers: int
    shapes: tuple[Shape, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether payloads are not encoded: they are the vectors as they are in memory."""
        return isinstance(self.encoding, Float32)

    @property
    def packed_shapes(self) -> bytes:
        """The shapes as ``pack_shapes`` packs them, for the node; b"" if the encoding needs no
        shapes."""
        return pack_shapes(self.shapes) if self.encoding.shaped else b""

    @property
    def arena_bytes(self) -> int:
        """Length of an encoded update in bytes; 0 if vectors are sent unencoded."""
        return 0 if self.is_plain else sum(self.update_bytes)

    @cached_property
    def update_bytes(self) -> tuple[int, ...]:
        """Length of each shard of an update, in bytes."""
        return tuple([self._nbytes("update", shard) for shard in range(len(self.sizes))])

    @cached_property
    def result_bytes(self) -> tuple[int, ...]:
        """Length of each shard of a result, in bytes."""
        return tuple([self._nbytes("result", shard) for shard in range(len(self.sizes))])

    def encode(
        self,
        vector: Vector,
        kind: PayloadKind,
        round_id: int,
        shard: int,
        into: ByteArray | None = None,
    ) -> ByteArray:
        """Return the bytes of a shard. They may be a view of ``vector``.

        Args:
            into: Memory for the bytes; None to allocate memory.
        """
        if self.is_plain and into is None:
            return to_bytes(vector)
        raw = np.empty(self._nbytes(kind, shard), np.uint8) if into is None else into
        numbers, encoding = self._numbers[shard], self._encodings[kind][shard]
        marks_at = len(raw) - bytes_for(len(vector) - numbers)
        raw[marks_at:] = to_bytes(vector[numbers:])
        if numbers:
            place = Place(self.seed, round_id, shard)
            encoding.encode(vector[:numbers], place, raw[:marks_at])
        return raw

    def decode(
        self,
        raw: ByteArray,
        kind: PayloadKind,
        round_id: int,
        shard: int,
        into: Vector | None = None,
    ) -> Vector:
        """Return the elements of a shard from its bytes. The bytes may come from a Byzantine
        sender.

        Args:
            into: Memory for the elements; None to allocate memory.
        Raises: Malformed: The number of bytes is wrong, or no encoder writes these bytes.
        """
        if not 0 <= shard < len(self.sizes):
            raise Malformed(f"there is no shard {shard}")
        numbers, encoding = self._numbers[shard], self._encodings[kind][shard]
        if len(raw) != self._nbytes(kind, shard):
            raise Malformed(f"{len(raw)} bytes for {self.sizes[shard]} elements")
        vector = np.empty(self.sizes[shard], np.float32) if into is None else into
        marks_at = len(raw) - bytes_for(self.sizes[shard] - numbers)
        vector[numbers:] = finite(from_bytes(raw[marks_at:]))
        if numbers:
            place = Place(self.seed, round_id, shard)
            encoding.decode(raw[:marks_at], numbers, place, vector[:numbers])
        return vector

    @cached_property
    def _encodings(self) -> dict[PayloadKind, tuple[Encoding, ...]]:
        """Kind of payload -> encoding of each shard. If the encoding depends on shapes, the
        encoding of a shard has the shapes of the tensors, or parts of tensors, in the shard."""
        updates: tuple[Encoding, ...] = (self.encoding,) * len(self.sizes)
        if self.encoding.shaped:
            starts = accumulate(self.sizes, initial=0)
            shapes = self.shapes or ((self.trained,),)
            updates = tuple(
                [
                    self.encoding.for_shapes(shapes_within(shapes, start, start + numbers))
                    for start, numbers in zip(starts, self._numbers, strict=False)
                ]
            )
        results = (self.encoding.for_results(self.peers),) * len(self.sizes)
        return {"update": updates, "result": results}

    @cached_property
    def _numbers(self) -> tuple[int, ...]:
        """Number of elements of each shard before the marks."""
        starts = accumulate(self.sizes, initial=0)
        return tuple(
            [
                min(max(self.trained - start, 0), size)
                for start, size in zip(starts, self.sizes, strict=False)
            ]
        )

    def _nbytes(self, kind: PayloadKind, shard: int) -> int:
        numbers = self._numbers[shard]
        marks = bytes_for(self.sizes[shard] - numbers)
        return (self._encodings[kind][shard].nbytes(numbers) if numbers else 0) + marks
