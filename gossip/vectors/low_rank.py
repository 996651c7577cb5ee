"""Encoding of matrices as the product of two thin matrices. All other elements are sent unchanged.

    for each tensor of the shard, in order:
        P^T, (rank, rows), then Q, (rank, columns), if they are smaller than the matrix
        otherwise the elements of the tensor

The gradient of a layer is close to a matrix of low rank. PowerSGD (Vogels, Karimireddy, Jaggi 2019,
arXiv:1905.13727) uses two all-reduces in each round. The first averages P, which all peers then
orthonormalize, and the second averages Q. So all peers have the same P. But a single Byzantine peer
can set the average P to any value, before the rule receives any update. In this encoding, each peer
therefore factors its own update, a decoder multiplies the factors, and the rule receives whole
updates. As with other encodings, a peer sends one message.

An iteration needs no messages, only arithmetic. So a peer makes several iterations, from a new
random start in each round (Halko, Martinsson, Tropp 2011, arXiv:0909.4061). It stores no factors
between rounds, so the bytes depend only on the update and its ``Place``, also in a resumed run.

A decoder computes ``rank`` products and sums for each element. These are single IEEE 754 operations
in a fixed order, so the result is bit-identical on every machine. The matrix product of a library
is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gossip.errors import Malformed

from .arrays import ByteArray, Vector
from .blocks import Int8
from .encoding import Encoding, Place, Shape, bytes_for, finite, from_bytes, within
from .finite import is_finite
from .memory import tensor_of
from .sharding import matrix_of

if TYPE_CHECKING:
    from torch import Tensor


PIECE_NUMBERS = 2**14
"""Number of elements of a matrix to process at a time. They stay in the CPU cache."""
LARGEST_NUMBER = 2.0**96
"""Largest magnitude of an element; larger elements are clamped to it. So all factors, and all sums
in a decoder, are finite for matrices of up to 2**40 elements."""
SMALLEST_FACTOR, LARGEST_FACTOR_P, LARGEST_FACTOR_Q = 2.0**-63, 2.0, 2.0**117
"""Smallest and largest magnitudes of factors other than zero. An encoder writes smaller factors as
zero. So each product is zero or a normal number, with which a processor computes at full speed. The
sum of 256 products, the number for the highest rank, is finite."""


@dataclass(frozen=True)
class PowerSGD(Encoding):
    """Matrices as a product of ``rank`` columns and rows: ``4 * rank * (rows + columns)`` bytes.

    The result of these updates is encoded as ``int8``. Its rank may be the sum of the ranks of all
    updates, so factors would be large. Results have no error feedback, because another peer serves
    the next round.

    Attributes:
        steps: Number of power iterations. With more iterations, the product is closer to the best
            approximation of this rank.
        shapes: Shapes of the tensors that the vector consists of, in order. Each tensor is factored
            as a matrix of the shape ``matrix_of(shape)``. A matrix with a single row is never
            factored. () means one tensor of one dimension.
    """

    low_rank: ClassVar[bool] = True
    shaped: ClassVar[bool] = True
    rank: int = within(4, 1, 256)
    steps: int = within(2, 1, 16)
    feedback: bool = True
    shapes: tuple[Shape, ...] = ()

    def for_shapes(self, shapes: tuple[Shape, ...]) -> Encoding:
        return replace(self, shapes=shapes)

    def for_results(self, peers: int) -> Encoding:
        return Int8()

    def nbytes(self, elements: int) -> int:
        return bytes_for(sum(map(self._written, self._shapes_of(elements))))

    def _write(self, vector: Vector, place: Place, raw: ByteArray) -> None:
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

    def _read(self, raw: ByteArray, place: Place, vector: Vector) -> None:
        numbers = finite(from_bytes(raw))
        for shape, part, written in self._parts(vector, numbers):
            if len(part) == len(written):
                part[:] = written
                continue
            rows, columns = matrix_of(shape)
            p = _checked(written[: self.rank * rows], LARGEST_FACTOR_P).reshape(self.rank, rows)
            q = _checked(written[self.rank * rows :], LARGEST_FACTOR_Q).reshape(self.rank, columns)
            _multiply(p, q, part.reshape(rows, columns))

    def _shapes_of(self, elements: int) -> tuple[Shape, ...]:
        shapes = self.shapes or ((elements,),)
        assert elements == sum(map(prod, shapes))
        return shapes

    def _written(self, shape: Shape) -> int:
        """Return the number of float32 values that are sent for a tensor of this shape."""
        rows, columns = matrix_of(shape)
        return min(self.rank * (rows + columns), rows * columns)

    def _parts(self, vector: Vector, numbers: Vector) -> Iterator[tuple[Shape, Vector, Vector]]:
        """Yield for each tensor: its shape, a view of its elements, and a view of the values that
        are sent for it."""
        shapes = self._shapes_of(len(vector))
        taken = pairwise(accumulate(map(prod, shapes), initial=0))
        sent = pairwise(accumulate(map(self._written, shapes), initial=0))
        for shape, (start, stop), (first, last) in zip(shapes, taken, sent, strict=True):
            yield shape, vector[start:stop], numbers[first:last]


def _drawn(place: Place, tensor: int, rank: int, columns: int) -> Vector:
    """Return a random start matrix, ``(columns, rank)``, with values from -1 to 1. It uses the raw
    stream of Philox, which is equal in every version of numpy."""
    name = f"powersgd/{place.seed}/{place.round_id}/{place.shard}/{tensor}"
    key = int.from_bytes(blake2b(name.encode(), digest_size=16).digest(), "little")
    drawn = np.random.Philox(key=key).random_raw(columns * rank)
    return (drawn.astype(np.float64) / 2**63 - 1).astype(np.float32).reshape(columns, rank)


def _factors(matrix: Tensor, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return P with orthonormal columns, ``(rows, rank)``, and Q, ``(rank, columns)``. The product
    P Q is the projection of the matrix onto the span of the columns of P, so its norm is at most
    the norm of the matrix."""
    import torch

    scale = float(matrix.abs().amax()) or 1.0  # Squares of unscaled elements may overflow.
    matrix, q = matrix / scale, start.T
    for _ in range(steps):
        p = torch.linalg.qr(matrix @ q.T).Q
        q = p.T @ matrix
    return p, q * scale


def _checked(factors: Vector, largest: float) -> Vector:
    """Return ``factors`` itself. Raises: Malformed: An encoder writes no factor of this
    magnitude."""
    sizes = np.abs(factors)
    if not bool(((sizes == 0) | ((sizes >= SMALLEST_FACTOR) & (sizes <= largest))).all()):
        raise Malformed("a factor is not a value that an encoder writes")
    return factors


def _multiply(p: Vector, q: Vector, out: Vector) -> None:
    """Write the product of the factors to ``out``: the sum over i of ``p[i, row] * q[i, column]``,
    in ascending order of i."""
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
