"""Whatever is done to the bytes of a sealed connection, what is heard is what was said, up to some
point: nothing else, in no other order, and no exception but Malformed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from effort import effort
from hypothesis import given, settings, strategies as st

from gossip.core.events import Received
from gossip.core.messages import Envelope, Message, Update
from gossip.errors import Malformed
from gossip.transport.assembly import HeaderFilter, Reception
from gossip.transport.base import Traffic
from gossip.transport.chunks import FIRST, Outgoing
from gossip.transport.codec import HEADER_BYTES_MAX, encode
from gossip.transport.lending import BufferPool
from gossip.transport.sealed import SealedStream
from gossip.transport.sessions import CHUNK, HEADER, MESSAGE, OVERHEAD, RecordOpener, RecordSealer

SECRET = b"k" * 32
PEER, CHUNK_BYTES = 3, 32

Sizes = list[int | None]
Change = Callable[[list[bytes]], bytes]


def update(number: int) -> Update:
    return Update(b"lineage1", number, 0, 0, b"d" * 16, 32, None)


def records(sizes: Sizes) -> list[bytes]:
    """A message for each size of a payload in numbers; None: without one."""
    sealer, said = RecordSealer(SECRET), []
    for number, size in enumerate(sizes):
        envelope = encode(Envelope(b"run", PEER, 0, update(number)))
        holder = None if size is None else np.full(4 * size, number, np.uint8)
        outgoing = Outgoing(envelope, holder, CHUNK_BYTES)
        more = True
        while more:
            header, chunk = outgoing.frames()
            said.append(sealed(sealer, MESSAGE if chunk is None else HEADER, header))
            if chunk is not None:
                said.append(sealed(sealer, CHUNK, chunk))
            more = not outgoing.advance()
    return said


def sealed(sealer: RecordSealer, kind: int, data: bytes | memoryview) -> bytes:
    room = bytearray(len(data) + OVERHEAD)
    sealer.seal_into(kind, data, memoryview(room))
    return bytes(room)


class Listener:
    """The receiving end of a connection, without a socket."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, self.traffic = sizes, Traffic()
        gate = HeaderFilter(b"run", 1, self._limit, self.traffic)
        reception = Reception(gate, CHUNK_BYTES)
        self.stream = SealedStream(RecordOpener(SECRET), reception, 1, PEER, BufferPool())
        self.heard: list[Received] = []
        self.largest = 0

    def _limit(self, sender: int, message: Message) -> int:
        size = self.sizes[message.round_id] if isinstance(message, Update) else None
        return -1 if size is None else 4 * size

    def take(self, data: bytes, at_once: int) -> bool:
        """Whether it is still connected when all of that has come."""
        rest = memoryview(data)
        while rest:
            room = self.stream.room()
            self.largest = max(self.largest, len(room))
            part = rest[: min(len(room), at_once)]
            room[: len(part)] = part
            rest = rest[len(part) :]
            try:
                come = self.stream.grow(len(part), 0.0)
            except Malformed:
                return False
            self.heard += [one for one in come if isinstance(one, Received)]
        return True


def is_said(listener: Listener) -> None:
    """What was heard is the beginning of what was said, each with its own payload."""
    for number, one in enumerate(listener.heard):
        assert one.sender == PEER
        assert one.message == update(number)
        size = listener.sizes[number]
        assert (one.payload is None) == (size is None)
        if one.payload is not None:
            assert one.payload.data.tobytes() == bytes([number]) * (4 * (size or 0))


SIZES = st.lists(st.one_of(st.none(), st.integers(1, 20)), min_size=1, max_size=6)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """Something that whoever sits between two peers may do."""
    at, other = draw(st.floats(0, 1, exclude_max=True)), draw(st.floats(0, 1, exclude_max=True))
    some = draw(st.binary(min_size=1, max_size=40))

    def place(length: int, of: float = at) -> int:
        return int(of * length)

    def flip(said: list[bytes]) -> bytes:
        data = bytearray(b"".join(said))
        data[place(len(data))] ^= 1 << some[0] % 8
        return bytes(data)

    def overwrite(said: list[bytes]) -> bytes:
        data = b"".join(said)
        start = place(len(data))
        return data[:start] + some + data[start + len(some) :]

    def insert(said: list[bytes]) -> bytes:
        data = b"".join(said)
        return data[: place(len(data))] + some + data[place(len(data)) :]

    def remove(said: list[bytes]) -> bytes:
        data = b"".join(said)
        start, stop = sorted((place(len(data)), place(len(data), other)))
        return data[:start] + data[stop:]

    def exchange(said: list[bytes]) -> bytes:
        first, second = place(len(said)), place(len(said), other)
        mixed = [*said]
        mixed[first], mixed[second] = said[second], said[first]
        return b"".join(mixed)

    def repeat(said: list[bytes]) -> bytes:
        start, record = place(len(said)), said[place(len(said), other)]
        return b"".join([*said[:start], record, *said[start:]])

    def leave_out(said: list[bytes]) -> bytes:
        start = place(len(said))
        return b"".join([*said[:start], *said[start + 1 :]])

    def all_again(said: list[bytes]) -> bytes:
        return b"".join(said + said)

    ways = (flip, overwrite, insert, remove, exchange, repeat, leave_out, all_again)
    return draw(st.sampled_from(ways))


@settings(max_examples=effort(60, 1000))
@given(SIZES, st.integers(1, 400))
def test_what_is_said_is_heard_however_it_comes(sizes: Sizes, at_once: int):
    listener = Listener(sizes)
    assert listener.take(b"".join(records(sizes)), at_once)
    is_said(listener)
    assert len(listener.heard) == len(sizes)
    assert not listener.traffic.dropped


@settings(max_examples=effort(300, 20_000))
@given(SIZES, changes(), st.integers(1, 400))
def test_whatever_is_changed_nothing_else_is_heard(sizes: Sizes, change: Change, at_once: int):
    said = records(sizes)
    whole, data = b"".join(said), change(said)
    listener = Listener(sizes)
    connected = listener.take(data, at_once)
    is_said(listener)
    if data.startswith(whole):
        assert len(listener.heard) == len(sizes)
        assert connected or data != whole
    else:  # what differs ends the connection, or its record is not there as a whole yet
        assert len(listener.heard) < len(sizes)
    assert listener.largest <= OVERHEAD + HEADER_BYTES_MAX + FIRST.size


@settings(max_examples=effort(200, 5000))
@given(st.binary(max_size=400), st.integers(1, 400))
def test_of_whoever_has_no_key_nothing_is_heard(data: bytes, at_once: int):
    listener = Listener([1])
    listener.take(data, at_once)
    assert listener.heard == []
    assert listener.traffic.received_messages == 0
