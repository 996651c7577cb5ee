"""What holds for every message: it comes back as it went,
and no bytes raise anything but Malformed."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from effort import effort
from hypothesis import given, settings, strategies as st

from gossip.core.messages import ROUND_MAX, Envelope, Message
from gossip.errors import Malformed
from gossip.ipc.messages import FromNode, FromTrainer
from gossip.transport.codec import Codec, Limits, decode, encode, seal

TRAINER: Codec[Any] = Codec([*get_args(FromTrainer), *get_args(FromNode)], Limits(int_min=-1))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def values(hint: Any, least: int) -> st.SearchStrategy[Any]:
    """Anything that the annotation allows, though lists stay short enough for a header."""
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(least, ROUND_MAX),
        float: FLOATS,
        bool: st.booleans(),
        bytes: st.binary(max_size=200),
        str: st.text(max_size=256).filter(lambda text: len(text.encode("utf-8", "ignore")) <= 1024),
    }
    if hint in simple:
        return simple[hint]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return messages(hint, least)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, UnionType):
        return st.one_of(*[st.none() if arg is NoneType else values(arg, least) for arg in args])
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values(args[0], least), max_size=6).map(tuple)
    assert origin is tuple, f"no strategy for {hint}"
    return st.tuples(*[values(arg, least) for arg in args])


def messages(cls: type, least: int = 0) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(
        cls, **{field.name: values(hints[field.name], least) for field in dataclasses.fields(cls)}
    )


IDS = st.integers(0, ROUND_MAX)
ENVELOPES = st.builds(
    Envelope,
    st.binary(max_size=64),
    IDS,
    IDS,
    st.one_of([messages(cls) for cls in get_args(Message)]),
)
CONTROL = st.lists(st.one_of([messages(cls, -1) for cls in TRAINER.types]), max_size=4)


@given(ENVELOPES)
def test_every_message_comes_back_as_it_went(envelope: Envelope):
    data = encode(envelope)
    assert decode(data) == envelope
    assert decode(memoryview(data)) == envelope


@given(CONTROL)
def test_every_packet_between_trainer_and_node_comes_back_as_it_went(sent: list[Any]):
    assert TRAINER.decode_many(TRAINER.encode_many(sent)) == sent


def within_bounds(value: Any) -> bool:
    if dataclasses.is_dataclass(value):
        return all(within_bounds(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, tuple):
        return len(value) <= 1024 and all(map(within_bounds, value))
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return 0 <= value <= ROUND_MAX
    return value is None or len(value) <= 48 * 1024


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["set", "flip", "cut", "insert", "double"]),
        st.integers(0, 2**16),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=effort(150, 400))
@given(ENVELOPES, EDITS)
def test_a_mutated_message_is_within_bounds_or_malformed(
    envelope: Envelope, edits: list[tuple[str, int, int]]
):
    data = bytearray(encode(envelope)[:-4])
    for kind, where, value in edits:
        at = where % max(1, len(data))
        if kind == "set":
            data[at : at + 1] = bytes([value])
        elif kind == "flip":
            data[at : at + 1] = bytes(byte ^ (1 << value % 8) for byte in data[at : at + 1])
        elif kind == "cut":
            del data[at : at + value]
        elif kind == "insert":
            data[at:at] = bytes([value])
        else:
            data += data[at:]
    with contextlib.suppress(Malformed):
        assert within_bounds(decode(seal(bytes(data))))


@settings(max_examples=effort(150, 300))
@given(st.binary(max_size=400))
def test_any_bytes_are_malformed_at_worst(data: bytes):
    for read in (decode, lambda data: decode(seal(data)), TRAINER.decode_many):
        with contextlib.suppress(Malformed):
            read(data)
