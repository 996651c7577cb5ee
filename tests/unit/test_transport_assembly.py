"""How payloads are cut and put together, without any socket."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest

from gossip.core.digests import digest_of
from gossip.core.messages import Commit, Envelope, Ping, StateOffer, Update
from gossip.transport.assembly import ORPHANED_S, STALLED_S, Assembly, HeaderFilter, IncomingPayload
from gossip.transport.base import Traffic
from gossip.transport.chunks import (
    CHUNK_BYTES,
    CHUNK_BYTES_LEAST,
    FIRST,
    FIRST_MARK,
    NEXT,
    NEXT_MARK,
    Outgoing,
    chunk_of,
)
from gossip.transport.codec import encode
from gossip.vectors import PartsDigest, digests_of, payload_digest, to_bytes

CHUNK = CHUNK_BYTES_LEAST
RUN = b"this-run"
UPDATE = Update(b"lineage1", 7, 0, 0, b"d" * 16, 32, 0.5)


def incoming(
    nbytes: int, sender: int = 0, incarnation: int = 0, message=UPDATE, now: float = 0.0
) -> IncomingPayload:
    return IncomingPayload(Envelope(RUN, sender, incarnation, message), nbytes, now)


@pytest.mark.parametrize(
    ("nbytes", "chunk"),
    [
        (0, CHUNK),
        (CHUNK + 1, CHUNK),
        (16 * CHUNK, CHUNK),
        (16 * CHUNK + 1, CHUNK + 4096),
        (16 * CHUNK_BYTES, CHUNK_BYTES),
        (2**32, CHUNK_BYTES),
    ],
)
def test_a_short_payload_is_cut_too(nbytes: int, chunk: int) -> None:
    assert chunk_of(nbytes) == chunk
    assert chunk_of(nbytes, 128 * 1024) == 128 * 1024, "a lane within a host cuts as it likes"


def test_a_payload_that_takes_a_while_is_told_of_before_it_is_there() -> None:
    """Of 256 KiB: over 10 Mbit/s they take 0.2 s, and 0.6 s where three peers send at once."""
    data = np.ones(2**16, np.float32)
    outgoing = Outgoing(b"envelope", to_bytes(data))
    target = incoming(data.nbytes, now=0.0)
    told, last, now = [], False, 0.0
    while not last:
        now += 0.15
        _, chunk = outgoing.frames()
        assert chunk is not None
        target.room()[:] = chunk
        outgoing.advance()
        last = target.grow()
        told += [] if last else target.news(now)
    assert [(each.received, each.nbytes) for each in told] == [
        (count * CHUNK, 4 * CHUNK) for count in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    "nbytes",
    [0, 1, 4, 7, 8, 9, CHUNK_BYTES - 4, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 20],
)
def test_a_payload_is_cut_and_put_together_again(nbytes: int):
    data = np.frombuffer(np.random.default_rng(nbytes).bytes(nbytes), np.uint8)
    offer = StateOffer(b"l", 1, 2, b"c", b"d", nbytes, b"", "", (nbytes // 3, nbytes - nbytes // 3))
    outgoing = Outgoing(b"envelope", data)
    target, last = None, False
    while not last:
        header, chunk = outgoing.frames()
        assert chunk is not None
        if target is None:
            mark, transfer, announced = FIRST.unpack_from(header)
            assert (mark, announced, header[FIRST.size :]) == (FIRST_MARK, nbytes, b"envelope")
            target = incoming(nbytes, message=offer)
        else:
            assert NEXT.unpack(header) == (NEXT_MARK, transfer, target.index)
        room = target.room()
        assert len(room) == len(chunk)
        room[:] = chunk
        last = outgoing.advance()
        assert target.grow() == last
    received = target.finish()
    assert received.payload.data.tobytes() == data.tobytes()
    assert (received.payload.digest, received.payload.parts) == digests_of(data, offer.parts)


@pytest.mark.parametrize("parts", [(), (20,), (9, 0, 11), (0, 20), (4, 4, 12), (1, 1, 1, 17)])
@pytest.mark.parametrize("piece", [1, 3, 8, 20])
def test_the_parts_of_a_state_have_digests_however_it_comes(parts: tuple[int, ...], piece: int):
    data = bytes(range(20))
    found = PartsDigest(parts)
    for at in range(0, 20, piece):
        found.update(data[at : at + piece])
    digest, digests = found.digests()
    edges = [0, *accumulate(parts)]
    assert list(digests) == [payload_digest(data[start:stop]) for start, stop in pairwise(edges)]
    assert digest == (digest_of(b"".join(digests)) if parts else payload_digest(data))
    assert digests_of(data, parts) == (digest, digests)


def test_what_is_behind_the_last_part_of_a_state_is_of_it():
    assert digests_of(b"abcd", (1, 2))[1] == (payload_digest(b"a"), payload_digest(b"bcd"))


@pytest.mark.parametrize("at", [0, CHUNK // 4 - 1, CHUNK // 4, -1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_seen_in_any_chunk(at: int, value: float):
    data = np.full(CHUNK // 2, 3e38, np.float32)
    data[at] = value
    target = incoming(data.nbytes)
    for start in (0, CHUNK):
        target.room()[:] = to_bytes(data).data[start : start + CHUNK]
        target.grow()
    received = target.finish()
    assert not received.payload.finite


def gate(limit: int) -> HeaderFilter:
    return HeaderFilter(RUN, 1, lambda sender, message: limit, Traffic())


def header(message, sender: int = 0, run: bytes = RUN) -> bytes:
    return encode(Envelope(run, sender, 0, message))


def offer(nbytes: int) -> bytes:
    return header(StateOffer(b"l", 1, 2, b"c", b"d", nbytes, b"", ""))


@pytest.mark.parametrize(
    ("limit", "data", "nbytes", "reason"),
    [
        (8, b"\xc1", 8, "malformed"),
        (8, header(UPDATE, run=b"that-run"), 8, "foreign_run"),
        (8, header(UPDATE, sender=1), 8, "own_name"),
        (8, header(Ping(1, 1, ())), None, "wrong_lane"),
        (-1, header(UPDATE), 8, "unexpected"),
        (8, header(UPDATE), 2**62, "too_large"),
        (8, header(UPDATE), 7, "wrong_size"),
        (8, header(UPDATE), 0, "wrong_size"),
        (8, offer(9), 9, "too_large"),
        (8, offer(5), 6, "wrong_size"),
        (8, offer(2**48), 8, "wrong_size"),
    ],
)
def test_the_gate_refuses(limit: int, data: bytes, nbytes: int | None, reason: str):
    closed = gate(limit)
    assert closed.bulk(data, nbytes) is None
    assert closed.traffic.dropped == {reason: 1}


def test_the_gate_lets_in_what_is_right():
    open_gate = gate(8)
    assert open_gate.bulk(header(UPDATE), 8)
    assert open_gate.bulk(header(UPDATE), None)
    assert open_gate.bulk(offer(3), 3)
    assert open_gate.control(header(Ping(1, 1, ())))
    assert open_gate.traffic.dropped == {}
    assert open_gate.control(header(UPDATE)) is None
    assert open_gate.traffic.dropped == {"wrong_lane": 1}


def assembly() -> tuple[Assembly, Traffic]:
    traffic = Traffic()
    return Assembly(traffic), traffic


def test_a_chunk_continues_its_own_payload_only():
    table, traffic = assembly()
    mine = incoming(3 * CHUNK_BYTES)
    table.begin("a", 7, mine)
    mine.grow()
    assert table.expect("b", 7, 1, 0.0) is None, "another connection"
    assert table.expect("a", 8, 1, 0.0) is None, "another payload"
    assert traffic.dropped == {"unknown_transfer": 2}
    assert table.expect("a", 7, 1, 0.0) is mine


@pytest.mark.parametrize("index", [0, 2, 2**32 - 1])
def test_a_chunk_out_of_order_forgets_the_payload(index: int):
    table, traffic = assembly()
    mine = incoming(3 * CHUNK_BYTES)
    table.begin("a", 7, mine)
    mine.grow()
    assert table.expect("a", 7, index, 0.0) is None
    assert len(table) == 0
    assert traffic.dropped == {"gap": 1}


def test_a_connection_that_begins_anew_gives_up_the_former_payload():
    table, traffic = assembly()
    table.begin("a", 7, incoming(2 * CHUNK_BYTES))
    table.begin("a", 8, incoming(2 * CHUNK_BYTES))
    assert len(table) == 1
    assert traffic.dropped == {"gap": 1}


def test_a_sender_has_two_unfinished_payloads_at_most():
    table, traffic = assembly()
    for number in range(10):
        table.begin(f"connection {number}", number, incoming(2 * CHUNK_BYTES))
        table.begin(f"other {number}", number, incoming(2 * CHUNK_BYTES, sender=number + 1))
    assert len(table) == 12
    assert traffic.dropped == {"crowded": 8}


def test_a_new_incarnation_frees_what_the_former_left():
    table, traffic = assembly()
    table.begin("a", 7, incoming(2 * CHUNK_BYTES, incarnation=3))
    table.begin("b", 8, incoming(2 * CHUNK_BYTES, incarnation=4))
    assert len(table) == 1
    assert traffic.dropped == {"gap": 1}


def test_a_payload_that_does_not_grow_is_forgotten():
    table, traffic = assembly()
    mine = incoming(3 * CHUNK_BYTES, now=0.0)
    table.begin("a", 7, mine)
    mine.grow()
    assert table.expect("a", 7, 1, 5.0) is mine
    table.expire(STALLED_S + 4.9)
    assert len(table) == 1
    table.expire(STALLED_S + 5.1)
    assert len(table) == 0
    assert traffic.dropped == {"gap": 1}


def test_a_sender_that_is_gone_gets_a_moment_more():
    table, _ = assembly()
    table.begin("a", 7, incoming(3 * CHUNK_BYTES, sender=1))
    table.begin("b", 8, incoming(3 * CHUNK_BYTES, sender=2))
    table.orphan(1, 0.0)
    table.expire(ORPHANED_S * 0.9)
    assert len(table) == 2
    table.expire(ORPHANED_S * 1.1)
    assert len(table) == 1


def test_a_late_chunk_of_a_sender_that_is_gone_does_not_give_it_the_full_time_again():
    table, _ = assembly()
    mine = incoming(3 * CHUNK_BYTES, sender=1)
    table.begin("a", 7, mine)
    mine.grow()
    table.orphan(1, 0.0)
    assert table.expect("a", 7, 1, 0.5) is mine
    table.expire(0.4 + ORPHANED_S)
    assert len(table) == 1
    table.expire(0.6 + ORPHANED_S)
    assert len(table) == 0


def test_the_digest_of_a_commit_is_told():
    data = np.ones(4, np.float32)
    commit = Commit(b"l", 1, 0, 0, 0, 3, b"p", b"d", (), (), (0, 1), None, "")
    target = incoming(16, message=commit)
    target.room()[:] = to_bytes(data).data
    target.grow()
    received = target.finish()
    assert received.payload.digest == payload_digest(data)
