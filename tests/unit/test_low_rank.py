"""PowerSGD: what it keeps of matrices, how shards cut them, and what bytes it refuses."""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import pytest

from gossip.errors import Malformed, UnsupportedModel
from gossip.ipc import SHAPES_BYTES_MAX
from gossip.training import UpdateEncoder
from gossip.training.checks import check_shapes
from gossip.vectors import WireFormat, load_encoding, unpack_shapes
from gossip.vectors.encoding import Place
from gossip.vectors.low_rank import PowerSGD
from gossip.vectors.sharding import pack_shapes, shapes_within

HERE = Place(7, 3, 0)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def wire(spec: str, shapes: tuple[tuple[int, ...], ...], sizes: tuple[int, ...]) -> WireFormat:
    return WireFormat(load_encoding(spec), 1, sizes, sum(sizes), 4, shapes)


def passed(encoding: PowerSGD, vector: np.ndarray) -> np.ndarray:
    flat = vector.reshape(-1)
    return encoding.decode(encoding.encode(flat, HERE).copy(), len(flat), HERE)


# --- what is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (200, 9), (16, 4, 5, 5)])
def test_a_matrix_of_that_rank_is_kept(shape: tuple[int, ...]) -> None:
    rows, columns = shape[0], int(np.prod(shape[1:]))
    matrix = drawn(rows, 3) @ drawn(3, columns)
    decoded = passed(PowerSGD(3, 1, shapes=(shape,)), matrix)
    assert np.allclose(decoded, matrix.reshape(-1), atol=1e-4)
    assert not np.allclose(
        passed(PowerSGD(2, 1, shapes=(shape,)), matrix), matrix.reshape(-1), atol=0.1
    )


def test_two_steps_come_close_to_the_best_of_that_rank_and_closer_than_one() -> None:
    """The tail of a gradient is not zero; here its singular values are 1, 1/2, 1/3 and so on."""
    left, _ = np.linalg.qr(drawn(60, 60))
    right, _ = np.linalg.qr(drawn(80, 60))
    matrix = ((left / np.arange(1, 61)) @ right.T).astype(np.float32)
    best = np.sqrt((1 / np.arange(5, 61) ** 2).sum())
    lost = [
        np.linalg.norm(passed(PowerSGD(4, steps, shapes=((60, 80),)), matrix) - matrix.reshape(-1))
        for steps in (1, 2, 8)
    ]
    assert lost[0] > lost[1] > lost[2] > best * 0.999
    assert lost[1] < 1.1 * best
    assert lost[2] < 1.01 * best


def test_what_has_one_dimension_or_is_small_is_sent_as_it_is() -> None:
    shapes = ((7,), (5, 5), (1, 90), (90, 1), ())
    encoding = PowerSGD(3, 1, shapes=shapes)
    vector = drawn(7 + 25 + 90 + 90 + 1)
    assert encoding.nbytes(len(vector)) == 4 * len(vector)
    assert np.array_equal(passed(encoding, vector), vector)


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1.0, 1e20, 1e28])
def test_numbers_of_any_size_pass_or_are_zero_where_they_are_too_small(size: float) -> None:
    matrix = (drawn(30, 2) @ drawn(2, 30) * np.float32(size)).reshape(-1)
    decoded = passed(PowerSGD(2, 2, shapes=((30, 30),)), matrix)
    if size < 2.0**-63:
        assert not decoded.any()
        return
    assert np.allclose(decoded, matrix, rtol=1e-3, atol=1e-3 * size)


def test_what_is_too_large_for_a_decoder_becomes_the_largest_that_is_not() -> None:
    decoded = passed(PowerSGD(1, 2, shapes=((20, 20),)), np.full(400, np.finfo(np.float32).max))
    assert np.allclose(decoded, 2.0**96, rtol=1e-3)


def test_decoding_is_one_product_and_one_sum_at_a_time() -> None:
    """Not a matrix product of a library, whose order of sums is that of the machine."""
    encoding, rank, shape = PowerSGD(5, 1, shapes=((70, 300),)), 5, (70, 300)
    raw = encoding.encode(drawn(*shape).reshape(-1), HERE)
    p = raw.view(np.float32)[: rank * 70].reshape(rank, 70)
    q = raw.view(np.float32)[rank * 70 :].reshape(rank, 300)
    expected = np.zeros(shape, np.float32)
    for row, column in ((0, 0), (69, 299), (33, 7), (54, 128)):
        total = p[0, row] * q[0, column]
        for factor in range(1, rank):
            total = total + p[factor, row] * q[factor, column]
        expected[row, column] = total
    decoded = encoding.decode(raw, 70 * 300, HERE).reshape(shape)
    where = expected != 0
    assert np.count_nonzero(where) == 4
    assert np.array_equal(decoded[where], expected[where])


# --- shapes and shards ----------------------------------------------------------------------------


def test_a_shard_has_the_whole_rows_of_a_tensor_that_is_cut() -> None:
    shapes = ((6, 10), (4,), (3, 2, 5))
    assert shapes_within(shapes, 0, 94) == ((6, 10), (4,), (3, 2, 5))
    assert shapes_within(shapes, 0, 32) == ((3, 10), (2,))
    assert shapes_within(shapes, 32, 94) == ((8,), (2, 10), (4,), (3, 2, 5))
    assert shapes_within(shapes, 32, 39) == ((7,),)
    assert shapes_within(shapes, 62, 90) == ((2,), (2, 2, 5), (6,))
    assert shapes_within(shapes, 94, 94) == ()


@pytest.mark.parametrize("cut", [16, 240, 1000, 1008, 2500])
def test_shards_have_all_numbers_and_lose_little_of_a_matrix_of_that_rank(cut: int) -> None:
    shapes = ((60, 50), (20,))
    vector = np.concatenate([(drawn(60, 2) @ drawn(2, 50)).reshape(-1), drawn(20)])
    cutting = wire("powersgd:2", shapes, (cut, len(vector) - cut))
    found = []
    for shard, (start, stop) in enumerate(pairwise((0, cut, len(vector)))):
        raw = cutting.encode(vector[start:stop], "update", 4, shard)
        assert len(raw) == cutting.update_bytes[shard]
        found.append(cutting.decode(raw.copy(), "update", 4, shard))
    assert np.allclose(np.concatenate(found), vector, atol=1e-4)
    whole = wire("powersgd:2", shapes, (len(vector),))
    assert sum(cutting.update_bytes) < 2.2 * whole.update_bytes[0] + 4 * 100
    assert whole.update_bytes == (4 * (2 * 110 + 20),)
    assert whole.result_bytes == (load_encoding("int8").nbytes(len(vector)),)


def test_a_node_is_told_shapes_that_give_the_same_bytes() -> None:
    shapes = ((12, 3, 5, 5), (12,), (10, 40), ())
    length = 12 * 75 + 12 + 400 + 1
    trainer = wire("powersgd:2", shapes, (512, length - 512))
    told = unpack_shapes(trainer.packed_shapes)
    assert told == ((12, 75), (1, 12), (10, 40), (1, 1))
    node = wire("powersgd:2", told, (512, length - 512))
    assert node.update_bytes == trainer.update_bytes
    vector = drawn(length)
    raw = trainer.encode(vector[512:], "update", 3, 1)
    assert np.array_equal(
        node.decode(raw.copy(), "update", 3, 1), trainer.decode(raw.copy(), "update", 3, 1)
    )
    assert wire("int8", shapes, (length,)).packed_shapes == b""


def test_a_model_of_more_tensors_than_a_node_is_told_of_is_refused() -> None:
    most = SHAPES_BYTES_MAX // len(pack_shapes(((1,),)))
    check_shapes(wire("powersgd", ((1,),) * most, (most,)))
    with pytest.raises(UnsupportedModel, match=f"at most {most}") as said:
        check_shapes(wire("powersgd", ((1,),) * (most + 1), (most + 1,)))
    assert "int4" in said.value.hint
    check_shapes(wire("int4", ((1,),) * (most + 1), (most + 1,)))


# --- feedback -------------------------------------------------------------------------------------


def test_an_update_is_never_longer_than_what_it_stands_for_so_the_residual_stays_bounded() -> None:
    encoder = UpdateEncoder(wire("powersgd:1", ((30, 40),), (1200,)))
    memory, gradient = np.empty(4 * 70, np.uint8), drawn(1200)
    lengths = []
    for round_id in range(200):
        update = gradient.copy()
        encoder.encode(update, memory, round_id)
        encoder.settle(round_id, (True,))
        assert encoder.residual is not None
        lengths.append(float(np.linalg.norm(encoder.residual) / np.linalg.norm(gradient)))
    assert max(lengths[100:]) < 1.05 * max(lengths[50:100]) < 40
    sent = 200 * gradient - encoder.residual
    assert np.linalg.norm(sent / 200 - gradient) < 0.2 * np.linalg.norm(gradient)


def test_the_same_update_gives_the_same_bytes_whatever_was_sent_before() -> None:
    """So a run that resumes sends what it would have sent."""
    encoding, vector = PowerSGD(2, 2, shapes=((20, 30),)), drawn(600)
    before = encoding.encode(vector, HERE)
    encoding.encode(vector[::-1].copy(), Place(7, 4, 0))
    assert np.array_equal(before, encoding.encode(vector, HERE))
    assert not np.array_equal(before, encoding.encode(vector, Place(7, 4, 0)))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "bits", "why"),
    [
        (0, 0x7F800000, "finite"),
        (0, 0x7FC00000, "finite"),
        (200, 0xFF800000, "finite"),
        (0, 0x40000001, "factor"),  # more than 2 in P
        (0, 0xC0000001, "factor"),
        (0, 0x00000001, "factor"),  # too small for a product at full speed
        (200, 0x1FFFFFFF, "factor"),
        (200, 0x7A000001, "factor"),  # more than 2**117 in Q
    ],
)
def test_factors_of_a_size_that_no_encoder_writes_are_refused(at: int, bits: int, why: str) -> None:
    encoding = PowerSGD(3, 1, shapes=((40, 50),))
    raw = encoding.encode(drawn(2000), HERE)
    raw[4 * at : 4 * at + 4] = np.frombuffer(struct.pack("<I", bits), np.uint8)
    with pytest.raises(Malformed, match=why):
        encoding.decode(raw, 2000, HERE)


def test_the_largest_factors_that_are_taken_make_finite_numbers() -> None:
    encoding = PowerSGD(256, 1, shapes=((1024, 1024),))
    raw = np.empty(4 * 256 * 2048, np.uint8)
    factors = raw.view(np.float32)
    factors[: 256 * 1024], factors[256 * 1024 :] = 2.0, 2.0**117
    decoded = encoding.decode(raw, 1024 * 1024, HERE)
    assert np.isfinite(decoded).all()
    assert decoded.max() == 2.0**126


def test_an_encoder_leaves_the_update_as_it_was() -> None:
    """What it lost is computed from that."""
    vector = drawn(600)
    kept = vector.copy()
    PowerSGD(2, 2, shapes=((20, 30),)).encode(vector, HERE)
    assert np.array_equal(vector, kept)
