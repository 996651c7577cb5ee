"""Matrices as the product of two thin matrices, and all other numbers unchanged.

    for each tensor of the shard, in order:
        P^T, (rank, rows), then Q, (rank, columns), if they are smaller than the matrix
        otherwise the numbers of the tensor

The gradient of a layer is close to a matrix of low rank. PowerSGD (Vogels, Karimireddy, Jaggi 2019,
arXiv:1905.13727) uses this with two all-reduces a round. The first is of P, which all peers then
orthonormalize, and the second of Q, so all peers have the same P. But P is a mean, which a single
Byzantine peer can set to any value before a rule has received an update. In this encoding, each
peer therefore factors its own update, a decoder multiplies the factors, and the rule gets whole
updates. Like other encodings, this needs one message.

Without messages in between, an iteration costs only arithmetic. So a peer makes several iterations,
from a start that is drawn anew in each round (Halko, Martinsson, Tropp 2011, arXiv:0909.4061). It
stores no factor of its last update: the bytes follow only from the update, also in a resumed run.

A decoder computes ``rank`` products and sums for each number. Each of them is a single IEEE 754
operation, in a fixed order, so the result is equal on every machine. A matrix product of a library
is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossip.errors import Malformed

from .blocks import Int8
from .encoding import Encoding, Place, Shape, bytes_for, finite, from_bytes, within
from .finite import is_finite
from .memory import tensor_of
from .sharding import matrix_of

if TYPE_CHECKING:
    from torch import Tensor

Vector: TypeAlias = NDArray[np.float32]

PIECE_NUMBERS = 2**14
"""Number of values of a matrix to process at a time, which stay in the cache."""
LARGEST_NUMBER = 2.0**96
"""Magnitude to which larger numbers are clamped. So all factors and all sums in a decoder are
finite for matrices of up to 2**40 numbers."""
SMALLEST_FACTOR, LARGEST_FACTOR_P, LARGEST_FACTOR_Q = 2.0**-63, 2.0, 2.0**117
"""Bounds of the factors; factors outside them are zero. So each product is zero or a normal number,
which a processor multiplies at full speed. The sum of 256 products, for the highest rank, is
finite."""


@dataclass(frozen=True)
class PowerSGD(Encoding):
    """Matrices as a product of ``rank`` columns and rows: ``4 * rank * (rows + columns)`` bytes.

    The result of these updates is encoded as ``int8``. As a factored matrix, it would need the sum
    of the ranks of all updates. It has no error feedback, because another peer serves the next
    round.

    Attributes:
        steps: Number of times that the columns are multiplied by the matrix. With more iterations,
            the product is closer to the best approximation of this rank.
    """

    low_rank: ClassVar[bool] = True
    shaped: ClassVar[bool] = True
    rank: int = within(4, 1, 256)
    steps: int = within(2, 1, 16)
    feedback: bool = True

    def for_shapes(self, shapes: tuple[Shape, ...]) -> Encoding:
        return Factored(self.rank, self.steps, shapes)

    def for_results(self, peers: int) -> Encoding:
        return Int8()

    def nbytes(self, elements: int) -> int:
        """Return the length of a vector without known shapes, in bytes. It is sent unchanged."""
        return bytes_for(elements)

    def _write(self, vector: Vector, place: Place, raw: NDArray[np.uint8]) -> None:
        self.for_shapes(((len(vector),),)).encode(vector, place, raw)

    def _read(self, raw: NDArray[np.uint8], place: Place, vector: Vector) -> None:
        self.for_shapes(((len(vector),),)).decode(raw, len(vector), place, vector)


@dataclass(frozen=True)
class Factored(Encoding):
    """The numbers of tensors with these shapes, one after another, each as its ``matrix_of``. A
    single row is never factored."""

    rank: int
    steps: int
    shapes: tuple[Shape, ...]

    def nbytes(self, elements: int) -> int:
        assert elements == sum(map(prod, self.shapes))
        return bytes_for(sum(self._written(shape) for shape in self.shapes))

    def _write(self, vector: Vector, place: Place, raw: NDArray[np.uint8]) -> None:
        numbers = from_bytes(raw)
        if not is_finite(vector):
            numbers[:] = np.nan
            return
        for index, (shape, part, written) in enumerate(self._parts(vector, numbers)):
            if len(part) == len(written):
                written[:] = part
                continue
            rows, columns = matrix_of(shape)
            matrix = tensor_of(np.clip(part, -LARGEST_NUMBER, LARGEST_NUMBER)).view(rows, columns)
            start = _drawn(place, index, self.rank, columns)
            p, q = _factors(matrix, tensor_of(start), self.steps)
            written[: self.rank * rows] = p.T.contiguous().view(-1).numpy()
            written[self.rank * rows :] = q.view(-1).numpy()
            written[np.abs(written) < SMALLEST_FACTOR] = 0.0

    def _read(self, raw: NDArray[np.uint8], place: Place, vector: Vector) -> None:
        numbers = finite(from_bytes(raw))
        for shape, part, written in self._parts(vector, numbers):
            if len(part) == len(written):
                part[:] = written
                continue
            rows, columns = matrix_of(shape)
            p = _checked(written[: self.rank * rows], LARGEST_FACTOR_P).reshape(self.rank, rows)
            q = _checked(written[self.rank * rows :], LARGEST_FACTOR_Q).reshape(self.rank, columns)
            _multiply(p, q, part.reshape(rows, columns))

    def _written(self, shape: Shape) -> int:
        """Return the number of values that are sent for a tensor of this shape."""
        rows, columns = matrix_of(shape)
        return min(self.rank * (rows + columns), rows * columns)

    def _parts(self, vector: Vector, numbers: Vector) -> Iterator[tuple[Shape, Vector, Vector]]:
        """Yield for each tensor: its shape, its numbers, and the numbers that are sent for it."""
        taken = pairwise(accumulate(map(prod, self.shapes), initial=0))
        sent = pairwise(accumulate(map(self._written, self.shapes), initial=0))
        for shape, (start, stop), (first, last) in zip(self.shapes, taken, sent, strict=True):
            yield shape, vector[start:stop], numbers[first:last]


def _drawn(place: Place, tensor: int, rank: int, columns: int) -> Vector:
    """Return a random start, ``(columns, rank)``, with values from -1 to 1. The raw stream of
    Philox is equal in every version of numpy."""
    name = f"powersgd/{place.seed}/{place.round_id}/{place.shard}/{tensor}"
    key = int.from_bytes(blake2b(name.encode(), digest_size=16).digest(), "little")
    drawn = np.random.Philox(key=key).random_raw(columns * rank)
    return (drawn.astype(np.float64) / 2**63 - 1).astype(np.float32).reshape(columns, rank)


def _factors(matrix: Tensor, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return P with orthonormal columns, ``(rows, rank)``, and Q, ``(rank, columns)``. Their
    product is the projection of the matrix onto the span of these columns, so its norm is at most
    that of the matrix."""
    import torch

    scale = float(matrix.abs().amax()) or 1.0  # This is needed because its square may overflow.
    matrix, q = matrix / scale, start.T
    for _ in range(steps):
        p = torch.linalg.qr(matrix @ q.T).Q
        q = p.T @ matrix
    return p, q * scale


def _checked(factors: Vector, largest: float) -> Vector:
    """Return the same factors. Raises: Malformed: An encoder writes no factor of this size."""
    sizes = np.abs(factors)
    if not bool(((sizes == 0) | ((sizes >= SMALLEST_FACTOR) & (sizes <= largest))).all()):
        raise Malformed("a factor is not a value that an encoder writes")
    return factors


def _multiply(p: Vector, q: Vector, out: Vector) -> None:
    """Compute the sum over the rank of ``p[i, row] * q[i, column]``, in ascending order of i."""
    rows, columns = out.shape
    step = max(1, PIECE_NUMBERS // columns)
    product = np.empty((min(step, rows), columns), np.float32)
    for start in range(0, rows, step):
        piece = out[start : start + step]
        np.multiply(p[0, start : start + step, None], q[0], out=piece)
        for factor in range(1, len(p)):
            once = product[: len(piece)]
            np.multiply(p[factor, start : start + step, None], q[factor], out=once)
            piece += once
