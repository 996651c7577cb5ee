"""Encodings of updates: their names, their sizes, and what each keeps."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from gossip.config import RunConfig, resolve
from gossip.errors import ConfigError, Malformed, UnknownName
from gossip.run import fitting
from gossip.vectors import WireFormat, load_encoding
from gossip.vectors.blocks import Int4, Int8
from gossip.vectors.encoding import BUILT_IN, Float32, Place
from gossip.vectors.sparse import TopK
from gossip_lab.bench.encodings import ENCODINGS

HERE = Place(7, 3, 0)


def passed(spec: str, vector: np.ndarray, place: Place = HERE) -> np.ndarray:
    encoding = load_encoding(spec)
    return encoding.decode(encoding.encode(vector, place).copy(), len(vector), place)


# --- names and sizes ------------------------------------------------------------------------------


def test_an_encoding_is_found_by_its_name_and_options() -> None:
    assert load_encoding("top-k:0.05") == TopK(0.05)
    assert load_encoding(" int4:block=32,feedback=off ") == Int4(32, feedback=False)
    assert [load_encoding(name).feedback for name in sorted(BUILT_IN)] == [
        name in ("int4", "powersgd", "topk") for name in sorted(BUILT_IN)
    ]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("int9", "Did you mean 'int8'"),
        ("topk:ration=0.1", "Did you mean 'ratio'"),
        ("topk:0", "must be from 1e-06 to 0.5"),
        ("topk:0.6", "must be from 1e-06 to 0.5"),
        ("topk:nan", "must be from 1e-06 to 0.5"),
        ("powersgd:0", "must be from 1 to 256"),
        ("powersgd:steps=17", "must be from 1 to 16"),
        ("int8:many", "is not a whole number"),
        ("int8:12", "blocks of 12 elements"),
        ("topk:0.1,ratio=0.2", "given twice"),
        ("int4:64,32", "option '32' has no value"),
        ("bf16:feedback=yes", "unknown value of encoding bf16's feedback 'yes'"),
        ("float32:1", "option '1' has no value"),
    ],
)
def test_a_wrong_encoding_is_refused_with_the_settings(spec: str, said: str) -> None:
    with pytest.raises((UnknownName, ConfigError), match=said):
        load_encoding(spec)
    with pytest.raises(ConfigError, match="encoding"):
        resolve({"encoding": spec})


@pytest.mark.parametrize(
    ("spec", "update", "result"),
    [
        ("float32", 4_000_000, 4_000_000),
        ("bf16", 2_000_000, 2_000_000),
        ("fp16", 2_000_000, 2_000_000),
        ("int8:250000", 0, 0),
        ("int8", 1_000_192 + 7814, 1_000_192 + 7814),
        ("int4", 500_000 + 31_252, 1_000_192 + 7814),
        ("topk", 80_000, 320_000),
        ("topk:0.2", 1_600_000, 4_000_000),
        ("powersgd", 4_000_000, 1_000_192 + 7814),  # of no shapes
    ],
)
def test_sizes_follow_from_the_number_of_numbers(spec: str, update: int, result: int) -> None:
    if not update:
        with pytest.raises(ConfigError):
            load_encoding(spec)
        return
    wire = WireFormat(load_encoding(spec), 0, (1_000_000,), 1_000_000, 4)
    assert (wire.update_bytes, wire.result_bytes) == (
        (update + update % 4,),
        (result + result % 4,),
    )
    assert wire.arena_bytes == (0 if spec == "float32" else sum(wire.update_bytes))


# --- what is kept ---------------------------------------------------------------------------------


def test_a_scale_times_a_code_is_exact() -> None:
    vector = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    for encoding in (Int8(), Int4()):
        raw = encoding.encode(vector, HERE)
        blocks = -(-5000 // encoding.block)
        scales = (raw[: 2 * blocks].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        decoded = encoding.decode(raw, 5000, HERE).astype(np.float64)
        codes = decoded / np.repeat(scales.astype(np.float64), encoding.block)[:5000]
        assert np.array_equal(codes, np.rint(codes))
        assert np.abs(codes).max() == encoding.largest


def test_blocks_of_zeros_and_of_the_largest_numbers_keep_what_they_are() -> None:
    largest = float(np.finfo(np.float32).max)
    vector = np.zeros(600, np.float32)
    vector[300], vector[301] = largest, -largest
    for spec in ("int8", "int4", "fp16", "bf16"):
        decoded = passed(spec, vector)
        assert not decoded[:256].any()
        assert np.isfinite(decoded).all()
        assert decoded[300] > 0 > decoded[301]


def test_the_numbers_farthest_from_zero_are_sent_where_they_are() -> None:
    vector = np.array([0.1, -5.0, 0.2, 3.0, 0.0, 0.3, -0.4, 2.0], np.float32)
    assert passed("topk:0.375", vector).tolist() == [0, -5, 0, 3, 0, 0, 0, 2]


@pytest.mark.parametrize("shape", ["noise", "ascending", "one block", "few values", "zeros"])
def test_a_large_vector_is_not_sent_worse_than_a_sort_would(shape: str) -> None:
    """A sample of it may mislead."""
    vector = np.random.default_rng(4).standard_normal(100_000).astype(np.float32)
    match shape:
        case "ascending":
            vector = np.arange(100_000, dtype=np.float32)
        case "one block":
            vector[:1000] *= 100
        case "few values":
            vector = np.sign(vector)
        case "zeros":
            vector[:] = 0.0
            vector[77_777] = np.float32(1e-30)
    for spec in ("topk:0.005", "topk:0.3"):
        decoded = passed(spec, vector)
        count = round(load_encoding(spec).ratio * 100_000)  # type: ignore[attr-defined]
        best = np.sort(np.abs(vector))[-count:]
        assert np.array_equal(np.sort(np.abs(decoded))[-count:], best)
        assert np.array_equal(decoded[decoded != 0], vector[decoded != 0])


def test_a_weighted_sum_of_sparse_updates_loses_nothing() -> None:
    draw = np.random.default_rng(1)
    wire = WireFormat(TopK(0.02), 0, (500,), 500, 5)
    updates = [
        wire.decode(wire.encode(row, "update", 1, 0).copy(), "update", 1, 0)
        for row in draw.standard_normal((5, 500)).astype(np.float32)
    ]
    result = np.sum([weight * row for weight, row in enumerate(updates, 1)], axis=0, dtype="f4")
    again = wire.decode(wire.encode(result, "result", 1, 0).copy(), "result", 1, 0)
    assert np.array_equal(result, again)
    assert np.count_nonzero(result) > 10


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0, 0x8000, 0xBF80, 0x7F7F, 0x7C00])
@pytest.mark.parametrize("encoding", [Int8(), Int4()])
def test_a_scale_that_is_not_finite_negative_or_too_large_is_refused(
    encoding: Int8 | Int4, bits: int
) -> None:
    raw = encoding.encode(np.ones(600, np.float32), HERE)
    raw[2:4] = np.frombuffer(struct.pack("<H", bits), np.uint8)
    if encoding.largest == 7 and bits == 0x7C00:
        assert np.isfinite(encoding.decode(raw, 600, HERE)).all(), "it is not too large for 4 bits"
        return
    with pytest.raises(Malformed, match="scale"):
        encoding.decode(raw, 600, HERE)


@pytest.mark.parametrize("where", [(3, 3, 5), (5, 3, 7), (1, 2, 100), (1, 2, 2**32 - 1)])
def test_places_that_do_not_ascend_or_lie_beyond_are_refused(where: tuple[int, ...]) -> None:
    encoding = TopK(0.03)
    raw = encoding.encode(np.arange(100, dtype=np.float32), HERE)
    raw[:12].view(np.uint32)[:] = where
    with pytest.raises(Malformed, match="indices"):
        encoding.decode(raw, 100, HERE)


@pytest.mark.parametrize(
    ("encoding", "rule", "rolling", "said"),
    [
        ("topk", "median", True, "each coordinate alone"),
        ("topk", "trimmed_mean", True, "each coordinate alone"),
        ("topk", "nnm+trimmed_mean", True, "each coordinate alone"),
        ("topk", "bulyan", True, "each coordinate alone"),
        ("topk", "krum", True, "the update of one peer"),
        ("topk", "nnm+krum", True, "the update of one peer"),
        ("powersgd", "median", True, "each coordinate alone"),
        ("powersgd", "nnm+trimmed_mean", False, "each coordinate alone"),
        ("powersgd", "bulyan", True, "each coordinate alone"),
        ("powersgd", "krum", True, "the update of one peer"),
        ("topk", "suspicion", True, ""),
        ("topk", "mean", True, ""),
        ("topk", "geometric_median", True, ""),
        ("topk", "centered_clipping", True, ""),
        ("int4", "median", True, ""),
        ("powersgd", "mean", True, ""),
        ("powersgd", "geometric_median", True, ""),
        ("powersgd", "multi_krum", True, ""),
        ("powersgd", "centered_clipping", True, ""),
        ("powersgd", "suspicion", False, ""),
    ],
)
def test_parts_of_updates_are_refused_to_rules_that_look_at_what_others_lack(
    encoding: str, rule: str, rolling: bool, said: str
) -> None:
    topology = "rolling" if rolling else "random-k"
    given = {"encoding": encoding, "aggregator": rule, "topology": topology, "peers": 12}
    if not said:
        fitting.check_rule(resolve(given))
        return
    with pytest.raises(ConfigError, match=f"encoding {encoding}: .*{said}"):
        fitting.check_rule(resolve(given))


def test_an_encoding_is_a_setting_of_the_run() -> None:
    assert load_encoding(RunConfig().encoding) == Float32()
    assert resolve({"encoding": "int8"}).config.encoding == "int8"


def test_the_bench_measures_each_encoding() -> None:
    assert {spec.partition(":")[0] for spec in ENCODINGS} == set(BUILT_IN)
