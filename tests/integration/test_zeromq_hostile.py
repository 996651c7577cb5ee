"""Strangers on the ports of a transport without keys cause counts, and nothing else
(docs/design_notes.md N10, N13, N14). What they can send on the payload lane before they prove a
session is in ``test_sealed_payloads``."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import subprocess

import psutil
import pytest
import zmq
from zeromq_rig import (
    GREETING,
    SealedSpeaker,
    WatchedTransport,
    connect_zmtp,
    header,
    process,
    raw,
    sealed as as_record,
    stranger,
    transport,
    update,
    wait_closed,
)

from gossip.core.events import LinkDown, LinkUp
from gossip.core.messages import Envelope, Ping, StateOffer
from gossip.transport import sealed
from gossip.transport.assembly import UNFINISHED_MAX
from gossip.transport.chunks import CHUNK_BYTES_LEAST, FIRST, FIRST_MARK, NEXT, NEXT_MARK
from gossip.transport.codec import encode
from gossip.transport.sessions import HEADER, SessionOffer

PIECE = CHUNK_BYTES_LEAST


@pytest.fixture
def victim():
    return transport(limit=3 * PIECE)


@pytest.fixture
def small():
    return transport(limit=8)


def total(one) -> int:
    return sum(one.traffic.dropped.values())


@pytest.mark.parametrize("lane", ["control", "bulk"])
def test_garbage_on_a_port_is_counted_at_most(small, lane: str):
    draw = random.Random(7)
    watched = WatchedTransport(small)
    connections = [raw(getattr(small, lane)) for _ in range(40)]
    for connection in connections[:30]:
        connection.sendall(
            draw.choice([b"", GREETING[:30], GREETING, b"GET / HTTP/1.1\r\n\r\n"])
            + draw.randbytes(2000)
        )
    watched.serves(small)
    # Some garbage looks like frames of an early ZMTP.
    assert set(small.traffic.dropped) <= {"malformed", "bad_handshake"}
    assert {arrival.sender for arrival in watched.received(small)} == {2}
    for connection in connections:
        connection.close()


def test_who_connects_and_says_nothing_is_thrown_out(small):
    connection = raw(small.control)
    wait_closed(connection)
    connection.close()


@pytest.mark.parametrize("length", [2**33, 2**63 - 1])
def test_a_frame_that_is_announced_huge_takes_no_memory(small, length: int):
    before = psutil.Process().memory_info().vms
    connection = connect_zmtp(small.control)
    connection.sendall(b"\x02" + struct.pack(">Q", length) + b"x" * 100)
    wait_closed(connection)
    connection.close()
    assert psutil.Process().memory_info().vms - before < 2**30
    WatchedTransport(small).serves(small)


def test_a_frame_above_the_limit_is_not_delivered(small):
    watched, most = WatchedTransport(small), 64 * 1024
    fits, too_long = connect_zmtp(small.control), connect_zmtp(small.control)
    fits.sendall(b"\x02" + struct.pack(">Q", most) + bytes(most))
    with contextlib.suppress(ConnectionError):
        too_long.sendall(b"\x02" + struct.pack(">Q", most + 1) + bytes(most + 1))
    wait_closed(too_long)
    watched.until(lambda: small.traffic.received_messages == 1, "the one at the limit")
    fits.close()
    too_long.close()
    watched.serves(small)
    assert small.traffic.received_messages == 1 + 2, (
        "the one at the limit, and those of the honest peer"
    )


def test_random_messages_are_counted(small):
    draw = random.Random(11)
    watched = WatchedTransport(small)
    with stranger(small.control) as dealer:
        for _ in range(300):
            marks = [b"", bytes([FIRST_MARK]), bytes([NEXT_MARK]), b"\x96\x01"]
            frames = [
                draw.choice(marks) + draw.randbytes(draw.choice([0, 1, 11, 12, 24, 300]))
                for _ in range(draw.randint(1, 5))
            ]
            dealer.send_multipart(frames)
            watched.heard[small] += small.poll(0.0)  # makes room
        watched.until(lambda: total(small) >= 300, "300 drops")
        assert total(small) == 300
        assert watched.received(small) == []
        watched.serves(small)


def first(nbytes: int, transfer: int = 1, message=None) -> bytes:
    return FIRST.pack(FIRST_MARK, transfer, nbytes) + header(message or update())


def following(index: int, transfer: int = 1) -> bytes:
    return NEXT.pack(NEXT_MARK, transfer, index)


def small_offer() -> bytes:
    return first(5, 2, StateOffer(b"", 1, 1, b"", b"", 5, b"", ""))


CHUNK = bytes(PIECE)


def speaker(watched: WatchedTransport, victim) -> SealedSpeaker:
    """A stranger with a session: without keys any host can have one."""
    made = SealedSpeaker(victim)
    made.prove(watched)
    return made


@pytest.mark.parametrize(
    ("records", "counts"),
    [
        pytest.param([(following(0), b"x")], {"unknown_transfer": 1}, id="a chunk of nothing"),
        pytest.param([(b"\xc1", CHUNK)], {"malformed": 1}, id="no header"),
        pytest.param([(header(update()), CHUNK)], {"malformed": 1}, id="no size"),
        pytest.param([(header(Ping(1, 1, ())), None)], {"wrong_lane": 1}, id="the other lane"),
        pytest.param([(first(4 * PIECE), CHUNK)], {"too_large": 1}, id="too large"),
        pytest.param([(first(2**63), CHUNK)], {"too_large": 1}, id="far too large"),
        pytest.param([(first(2 * PIECE), CHUNK)], {"wrong_size": 1}, id="too small"),
        pytest.param(
            [(first(3 * PIECE), CHUNK), (following(1, 2), CHUNK)],
            {"unknown_transfer": 1},
            id="of another payload",
        ),
        pytest.param([(first(3 * PIECE), CHUNK), (following(2), CHUNK)], {"gap": 1}, id="a gap"),
        pytest.param(
            [(first(3 * PIECE), CHUNK), (first(3 * PIECE, 2), CHUNK)],
            {"gap": 1},
            id="two at a time",
        ),
        pytest.param(
            [(first(5, message=StateOffer(b"", 1, 1, b"", b"", 2**48, b"", "")), b"12345")],
            {"wrong_size": 1},
            id="two sizes",
        ),
    ],
)
def test_a_bulk_message_that_is_wrong_is_counted(victim, records, counts):
    watched = WatchedTransport(victim)
    one = speaker(watched, victim)
    for record in records:
        one.say(*record)
    watched.until(lambda: total(victim) >= sum(counts.values()), "drops")
    assert victim.traffic.dropped == counts
    assert watched.received(victim) == []


def test_a_small_payload_between_the_chunks_of_another_ends_that_one(victim):
    watched = WatchedTransport(victim)
    one = speaker(watched, victim)
    one.say(first(3 * PIECE), CHUNK)
    one.say(small_offer(), b"12345")
    watched.until(lambda: len(watched.received(victim)) == 1, "the small one")
    assert victim.traffic.dropped == {"gap": 1}


def test_control_messages_that_are_wrong_are_counted(small):
    watched = WatchedTransport(small)
    ping = header(Ping(1, 1, ()))
    wrong = [
        [b""],
        [ping, b""],
        [b"", ping],
        [header(update())],
        [ping[:-1]],
        [encode(Envelope(b"that-run", 0, 0, Ping(1, 1, ())))],
    ]
    with stranger(small.control) as dealer:
        for frames in wrong:
            dealer.send_multipart(frames)
        watched.until(lambda: total(small) == len(wrong), "drops")
    assert small.traffic.dropped == {"malformed": 4, "wrong_lane": 1, "foreign_run": 1}
    assert watched.received(small) == []


def test_a_message_of_very_many_frames_is_one_drop(small):
    watched = WatchedTransport(small)
    with stranger(small.control, sndhwm=0) as dealer:
        dealer.send_multipart([b""] * 50_000)
        dealer.send_multipart([b"x" * 60_000] * 100)
        watched.until(lambda: total(small) >= 2, "two drops")
        watched.serves(small)
        dealer.send_multipart([b""])
        watched.until(lambda: total(small) >= 3, "a third drop, behind all those frames")
        assert small.traffic.dropped == {"malformed": 3}


def test_a_message_without_end_is_never_seen_and_hinders_nobody(small):
    """N10: its memory is libzmq's until the connection ends, and no option bounds it. Hence
    loopback only, without keys."""
    watched = WatchedTransport(small)
    connection = connect_zmtp(small.control)
    for _ in range(200):
        connection.sendall(b"\x03" + struct.pack(">Q", 60_000) + bytes(60_000))
    watched.serves(small)
    assert total(small) == 0
    connection.close()
    watched.serves(small)


def test_claiming_anothers_routing_id_hurts_nobody(small):
    """N13 and N14: duplicate ids, ids of libzmq's own form,
    and then we connect to whoever claimed one."""
    other = transport(local=0)
    watched = WatchedTransport(small, other)
    for routing_id in (b"0", b"peer-0", b"\x01\x02\x03\x04\x05"):
        with (
            stranger(small.control, routing_id=routing_id) as one,
            stranger(small.control, routing_id=routing_id),
        ):
            one.send(header(Ping(1, 1, ()), sender=0))
            watched.until(lambda: len(watched.received(small)) >= 1, "the stranger's ping")
            small.connect(0, other.control, other.bulk)
            watched.until(lambda: LinkUp(0) in watched.heard[small], "LinkUp")
            watched.serves(small)
        small.disconnect(0)
        watched.heard[small].clear()


def test_offers_of_sessions_without_keys_are_bounded(small, monkeypatch):
    monkeypatch.setattr(sealed, "OFFERS_MAX", 4)
    watched = WatchedTransport(small)
    with stranger(small.control) as dealer:
        for _ in range(9):
            dealer.send(SessionOffer.draw(0).encode())
        dealer.send(b"no ping")
        watched.until(lambda: total(small) == 1, "what was sent after the offers")
    assert len(small._bulk_in._offers) == 4
    watched.serves(small)


@pytest.mark.parametrize(("most", "files"), [(3, -1), (1024, 12)])
def test_connections_without_keys_are_bounded(monkeypatch, most: int, files: int):
    """Whether their sessions are proved or only offered. The oldest goes."""
    monkeypatch.setattr(sealed, "KEYLESS_MAX", most)
    monkeypatch.setattr(sealed.resource, "getrlimit", lambda kind: (files, files))
    small = transport()
    watched = WatchedTransport(small)
    speakers = []
    for number in range(5):
        speakers.append(SealedSpeaker(small))
        if number % 2:
            speakers[-1].prove(watched)
    watched.until(lambda: small.traffic.dropped == {"crowded": 2}, "two to go")
    assert len(small._bulk_in._connections) == 3
    watched.until(lambda: all(one.is_cut_off() for one in speakers[:2]), "the end of the first two")
    watched.serves(small)


def test_payloads_begun_on_many_connections_in_one_name_take_the_memory_of_two(victim):
    watched = WatchedTransport(victim)
    for number in range(1, 6):
        speaker = SealedSpeaker(victim)
        sealer = speaker.prove(watched)
        first = FIRST.pack(FIRST_MARK, number, 3 * PIECE) + header(update(number))
        speaker.connection.setblocking(True)
        speaker.connection.sendall(as_record(sealer, HEADER, first))
    watched.until(lambda: victim.traffic.dropped == {"crowded": 3}, "five payloads to have begun")
    buffers = victim._reception._pool._buffers
    assert len([buffer for buffer in buffers if not buffer.is_free]) == UNFINISHED_MAX


def test_who_sends_more_than_is_read_and_hangs_up_does_not_abort_us(small):
    """libzmq #4364: a heartbeat on a connection that ended while its input was stopped. The
    victim's own is due in a second, the reply to another's is when it reads on."""
    watched = WatchedTransport(small)
    asleep = """
wait_line()
print("asleep", flush=True)
sys.stdin.readline()
while peer.poll(0.1): pass
while not peer.send(1, Ping(7, 1, ())): peer.poll(0.1)
"""
    with process(small, then=asleep) as victim:
        watched.until(lambda: LinkUp(0) in watched.heard[small], "LinkUp")
        victim.stdin.write("sleep\n")
        assert watched.line_of(victim) == "asleep\n"
        connection = connect_zmtp(small._table.links[0].addresses[0])
        connection.settimeout(0.5)
        some = (b"\x00\x32" + bytes(50)) * 5 + b"\x04\x07\x04PING\x00\x00"
        with contextlib.suppress(TimeoutError):
            # until the victim's queue is full, if it has an end, and then the kernel's
            for _ in range(60_000):
                connection.sendall(some)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"the victim ended with {victim.wait(1.5)}")
        victim.stdin.write("go on\n")
        watched.until(lambda: bool(watched.received(small)), "the victim's ping")


def test_who_speaks_where_it_is_to_listen_is_hung_up_on_and_does_not_abort_us(small):
    context = zmq.Context()
    control, payloads = context.socket(zmq.ROUTER), transport(local=5, same_host=True)
    try:
        control.set(zmq.SNDHWM, 0)
        control.set(zmq.LINGER, 0)
        control.bind("tcp://127.0.0.1:*")
        watched = WatchedTransport(small)
        small.connect(5, control.get(zmq.LAST_ENDPOINT).decode(), payloads.bulk)
        watched.until(lambda: watched.heard[small] == [LinkUp(5)], "LinkUp")
        assert small.send(5, Ping(1, 1, ()))
        assert control.poll(30_000)
        name, _ = control.recv_multipart()
        for _ in range(20_000):
            control.send_multipart([name, b"lies"])
        watched.until(lambda: len(watched.heard[small]) > 1, "LinkDown")
        assert watched.heard[small] == [LinkUp(5), LinkDown(5, "control connection closed")]
        assert small.traffic.dropped == {"spoken_to": 1}
        assert "sends data where it may only receive" in small.traffic.notices[0].message
        watched.serves(small)
        watched.until(lambda: watched.heard[small].count(LinkUp(5)) == 2, "another try")
    finally:
        payloads.close()
        context.destroy(linger=0)
