"""What holds for every encoding of updates: what comes out is close to what went in, and whatever
bytes anybody sends, nothing comes of them but finite numbers or Malformed."""

from __future__ import annotations

import numpy as np
import pytest
from effort import effort
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from gossip.errors import Malformed
from gossip.vectors import Encoding, WireFormat, load_encoding
from gossip.vectors.encoding import Place

SPECS = (
    "float32",
    "bf16",
    "fp16",
    "int8",
    "int8:block=8",
    "int4",
    "int4:block=24",
    "topk",
    "topk:0.3",
    "powersgd:1",
    "powersgd:3,steps=1",
)
LOW_RANK = tuple(spec for spec in SPECS if spec.startswith("powersgd"))
LENGTHS = st.integers(1, 700)
PLACES = st.builds(Place, st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.integers(0, 1023))
LARGEST = float(np.finfo(np.float32).max)
FINITE = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, LARGEST, -LARGEST, 2.0**-149, 65520.0]),
)


def encoding_of(spec: str, length: int) -> Encoding:
    """Where it writes tensors: two matrices, if there are numbers enough, and what is left."""
    encoding, rows = load_encoding(spec), length // 40
    tall = ((7 * rows, 4), (3, rows, 2), (length - 34 * rows,))
    return encoding.for_shapes(tall if rows else ((length,),))


def vectors(numbers: st.SearchStrategy[float] = FINITE) -> st.SearchStrategy[np.ndarray]:
    return LENGTHS.flatmap(lambda length: arrays.arrays(np.float32, length, elements=numbers))


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=effort(15, 2000))
@given(vector=vectors(), place=PLACES)
def test_what_is_decoded_is_finite_and_encodes_to_the_same_numbers_again(
    spec: str, vector: np.ndarray, place: Place
) -> None:
    encoding = encoding_of(spec, len(vector))
    raw = encoding.encode(vector, place)
    assert (raw.dtype, len(raw)) == (np.uint8, encoding.nbytes(len(vector)))
    assert len(raw) % 4 == 0
    decoded = encoding.decode(raw.copy(), len(vector), place)
    assert (decoded.dtype, decoded.shape) == (np.float32, vector.shape)
    assert np.isfinite(decoded).all()
    used = np.full(len(raw), 0xA5, np.uint8), np.full(vector.shape, np.nan, np.float32)
    assert np.array_equal(encoding.encode(vector, place, used[0]), raw)
    assert np.array_equal(encoding.decode(raw, len(vector), place, used[1]), decoded)
    again = encoding.decode(encoding.encode(decoded, place).copy(), len(vector), place)
    if spec in LOW_RANK:  # its factors are those of another basis
        assert np.isfinite(again).all()
        return
    assert np.array_equal(decoded, again)


@pytest.mark.parametrize(("spec", "steps"), [("int8", 127), ("int4", 7), ("int4:block=24", 7)])
@settings(max_examples=effort(15, 2000))
@given(vector=vectors(st.floats(-(2.0**99), 2.0**99, width=32)))
def test_a_number_in_a_block_is_off_by_half_a_step_of_its_largest_at_most(
    spec: str, steps: int, vector: np.ndarray
) -> None:
    encoding, place = load_encoding(spec), Place(0, 0, 0)
    decoded = encoding.decode(encoding.encode(vector, place).copy(), len(vector), place)
    block = encoding.block  # type: ignore[attr-defined]
    for start in range(0, len(vector), block):
        before = vector[start : start + block].astype(np.float64)
        off = np.abs(decoded[start : start + block] - before).max()
        # half a step, and the scale is rounded to 8 bits; what is too small for a scale is lost
        assert off <= np.abs(before).max() / steps * (0.5 + 0.51) + 130 * 2.0**-126


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=effort(30, 20000))
@given(data=st.data(), length=LENGTHS, place=PLACES)
def test_no_bytes_raise_anything_but_malformed_nor_become_what_is_not_finite(
    spec: str, data: st.DataObject, length: int, place: Place
) -> None:
    encoding = encoding_of(spec, length)
    nbytes = encoding.nbytes(length)
    raw = np.frombuffer(data.draw(st.binary(min_size=nbytes, max_size=nbytes)), np.uint8).copy()
    if data.draw(st.booleans()):  # else most of them have a wrong scale or place
        raw = encoding.encode(np.linspace(-1, 1, length, dtype=np.float32), place).copy()
        for at in data.draw(st.lists(st.integers(0, nbytes - 1), max_size=4)):
            raw[at] ^= data.draw(st.integers(1, 255))
    kept = raw.copy()
    try:
        decoded = encoding.decode(raw, length, place)
    except Malformed:
        return
    assert np.array_equal(raw, kept), "the bytes are still those that were hashed"
    assert (decoded.dtype, decoded.shape) == (np.float32, (length,))
    assert np.isfinite(decoded).all()


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=effort(30, 1200))
@given(
    data=st.data(), bad=st.sampled_from([np.nan, np.inf, -np.inf]), vector=vectors(), place=PLACES
)
def test_an_update_that_is_not_finite_does_not_become_one_that_is(
    spec: str, data: st.DataObject, bad: float, vector: np.ndarray, place: Place
) -> None:
    vector[data.draw(st.integers(0, len(vector) - 1))] = bad
    encoding = encoding_of(spec, len(vector))
    with pytest.raises(Malformed):
        encoding.decode(encoding.encode(vector, place).copy(), len(vector), place)


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=effort(20, 1000))
@given(data=st.data(), sizes=st.lists(st.integers(1, 90), min_size=1, max_size=4))
def test_marks_come_as_they_went_and_no_size_but_that_of_the_layout_is_taken(
    spec: str, data: st.DataObject, sizes: list[int]
) -> None:
    elements = sum(sizes)
    trained = data.draw(st.integers(0, elements))
    shapes = ((trained // 3, 3), (trained % 3,)) if trained else ()
    wire = WireFormat(load_encoding(spec), 3, tuple(sizes), trained, 4, shapes)
    vector = np.linspace(1, 2, elements, dtype=np.float32)
    start = 0
    for shard, size in enumerate(sizes):
        for kind, nbytes in (("update", wire.update_bytes), ("result", wire.result_bytes)):
            raw = wire.encode(vector[start : start + size], kind, 5, shard)  # type: ignore[arg-type]
            assert len(raw) == nbytes[shard]
            decoded = wire.decode(raw.copy(), kind, 5, shard)  # type: ignore[arg-type]
            marks = max(0, trained - start)
            assert np.array_equal(decoded[marks:], vector[start + marks : start + size])
            for wrong in (raw[:-4], np.append(raw, raw[:4])):
                with pytest.raises(Malformed):
                    wire.decode(wrong, kind, 5, shard)  # type: ignore[arg-type]
        start += size
    with pytest.raises(Malformed):
        wire.decode(np.zeros(4, np.uint8), "update", 5, len(sizes))
