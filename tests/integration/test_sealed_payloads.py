"""The payload lane with keys: who is let in, what strangers can do to it, and what is heard."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest
from zeromq_rig import (
    GREETING,
    Known,
    SealedSpeaker,
    WatchedTransport,
    floats,
    header,
    raw,
    sealed,
    transport,
    update,
)

from gossip.core.events import LinkDown, LinkUp
from gossip.core.messages import Ping
from gossip.transport import sealed as lane
from gossip.transport.assembly import UNFINISHED_MAX
from gossip.transport.chunks import CHUNK_BYTES, FIRST, FIRST_MARK
from gossip.transport.sessions import (
    CHUNK,
    HEADER,
    MAGIC,
    MESSAGE,
    OPEN,
    OVERHEAD,
    PROOF_BYTES,
    RECORD,
    WELCOME_BYTES,
    RecordSealer,
    SessionOffer,
)
from gossip.transport.zeromq import ZeroMQTransport


@pytest.fixture
def known() -> Known:
    return Known(range(4))


@pytest.fixture
def peer(known: Known) -> Callable[..., ZeroMQTransport]:
    """Makes the transport of one of them."""
    return lambda local, **options: transport(local=local, keys=known.of(local), **options)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it. Nothing may have been said."""
    connection.setblocking(False)
    try:
        said = connection.recv(4096)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    assert said == b"", "a stranger was answered"
    return True


FROM_STRANGERS = {
    "nothing": b"",
    "a little": MAGIC,
    "the handshake of ZeroMQ": GREETING,
    "a session that nobody has offered": OPEN.pack(MAGIC, b"i" * 16),
    "the same, and more than is wanted": OPEN.pack(MAGIC, b"i" * 16) + bytes(2**16),
    "a size of 4 GiB": RECORD.pack(HEADER, 2**32 - 1) * 9,
}


@pytest.mark.parametrize("said", FROM_STRANGERS)
def test_a_stranger_is_turned_away_unheard(peer, monkeypatch, said: str):
    monkeypatch.setattr(lane, "HANDSHAKE_S", 0.2)
    victim = peer(1)
    watched = WatchedTransport(victim)
    with raw(victim.bulk) as stranger:
        stranger.sendall(FROM_STRANGERS[said])
        watched.until(lambda: is_closed(stranger), "its end")
    assert victim.traffic.received_bytes == 0
    assert victim.traffic.dropped == {"bad_handshake": 1}
    assert watched.heard[victim] == []
    assert not victim._bulk_in._connections


def test_a_flood_of_strangers_is_bounded_and_keeps_no_peer_out(peer):
    """None of them says anything. Of the host that has most the oldest goes."""
    one, victim = peer(0), peer(1)
    watched = WatchedTransport(one, victim)
    strangers = [raw(victim.bulk) for _ in range(lane.UNPROVEN_MAX + 40)]
    watched.until(lambda: victim.traffic.dropped.get("bad_handshake", 0) >= 40, "40 to be sent off")
    assert len(victim._bulk_in._connections) <= lane.UNPROVEN_MAX
    one.connect(1, victim.control, victim.bulk)
    watched.until(lambda: LinkUp(1) in watched.heard[one], "a link between them")
    assert one.send(1, update(1), floats(8))
    watched.until(lambda: len(watched.received(victim)) == 1, "a payload")
    for stranger in strangers:
        stranger.close()


def test_of_the_host_that_has_most_connections_the_oldest_goes(peer, monkeypatch):
    monkeypatch.setattr(lane, "UNPROVEN_MAX", 3)
    victim = peer(1)
    watched = WatchedTransport(victim)
    near = [raw(victim.bulk) for _ in range(2)]
    watched.until(lambda: len(victim._bulk_in._connections) == 2, "two connections")
    host, port = victim.bulk.removeprefix("tcp://").split(":")
    flood = [
        socket.create_connection((host, int(port)), source_address=("127.0.0.9", 0))
        for _ in range(4)
    ]
    watched.until(lambda: victim.traffic.dropped.get("bad_handshake", 0) == 3, "three to go")
    hosts = [connection.host for connection in victim._bulk_in._connections.values()]
    assert sorted(hosts) == ["127.0.0.1", "127.0.0.1", "127.0.0.9"]
    for connection in near + flood:
        connection.close()


def test_who_has_seen_a_session_named_cannot_speak_in_it(peer, known: Known):
    """It is named in the clear. What follows takes the key."""
    victim = peer(1)
    watched = WatchedTransport(victim)
    speaker = SealedSpeaker(victim, known, 0)
    watched.until(lambda: speaker.connection in ready(speaker.connection), "a welcome")
    speaker.connection.sendall(RecordSealer(b"guess" * 6 + b"!!").proof())
    watched.until(lambda: "bad_handshake" in victim.traffic.dropped, "it to be turned away")
    assert victim.traffic.received_bytes == 0


def ready(connection: socket.socket) -> list[socket.socket]:
    """The connection, if it has all of a welcome."""
    connection.setblocking(False)
    try:
        said = connection.recv(WELCOME_BYTES, socket.MSG_PEEK)
    except BlockingIOError:
        return []
    return [connection] if len(said) == WELCOME_BYTES else []


def test_a_session_is_used_once(peer, known: Known, monkeypatch):
    """Also when all that was said in it is said again."""
    monkeypatch.setattr(lane, "HANDSHAKE_S", 0.2)
    victim = peer(1)
    watched = WatchedTransport(victim)
    speaker = SealedSpeaker(victim, known, 0)
    sealer = speaker.prove(watched)
    message = sealed(sealer, HEADER, FIRST.pack(FIRST_MARK, 1, 8) + header(update(1)))
    chunk = sealed(sealer, CHUNK, floats(8).data.tobytes())
    speaker.connection.setblocking(True)
    speaker.connection.sendall(message + chunk)
    watched.until(lambda: len(watched.received(victim)) == 1, "a payload")
    with raw(victim.bulk) as replayed:
        replayed.sendall(speaker.session.opening + bytes(PROOF_BYTES) + message + chunk)
        watched.until(lambda: is_closed(replayed), "the end of the second connection")
    assert len(watched.received(victim)) == 1
    assert not speaker.is_cut_off()


def test_what_was_recorded_before_a_restart_is_not_heard_after_it(peer, known: Known):
    """The same keys, the same addresses, and the session offered anew by whoever has recorded it:
    the receiver's part is another one."""
    victim = peer(1)
    watched = WatchedTransport(victim)
    speaker = SealedSpeaker(victim, known, 0)
    sealer = speaker.prove(watched)
    record = sealed(sealer, MESSAGE, header(update(1)))
    ports = [int(address.rpartition(":")[2]) for address in (victim.control, victim.bulk)]
    victim.close()
    heir = peer(1, control_port=ports[0], bulk_port=ports[1])
    watched = WatchedTransport(heir)
    again = SealedSpeaker(heir, known, 0, offers=False)
    again.offer(speaker.session.offer)
    again.connection.setblocking(True)
    again.connection.close()
    again.connection = raw(heir.bulk)
    again.connection.sendall(speaker.session.opening)
    watched.until(lambda: bool(ready(again.connection)), "a welcome")
    old = RecordSealer(b"k" * 32)
    old._chain = sealer._chain
    old._chain.number = 0
    again.connection.sendall(old.proof() + record)
    watched.until(lambda: "bad_handshake" in heir.traffic.dropped, "it to be turned away")
    assert heir.traffic.received_messages == 0


def test_an_offer_that_comes_behind_its_connection_is_in_time(peer, known: Known):
    victim = peer(1)
    watched = WatchedTransport(victim)
    speaker = SealedSpeaker(victim, known, 0, offers=False)
    watched.until(
        lambda: any(one.session for one in victim._bulk_in._connections.values()),
        "the session to be named",
    )
    speaker.offer(speaker.session.offer)
    speaker.prove(watched)
    speaker.say(header(update(5)))
    watched.until(lambda: len(watched.received(victim)) == 1, "a message")


@pytest.mark.parametrize("frame", [b"\xcf", b"\xcf" + bytes(80)])
def test_an_offer_that_is_none_is_counted(peer, known: Known, frame: bytes):
    victim = peer(1)
    watched = WatchedTransport(victim)
    speaker = SealedSpeaker(victim, known, 0, offers=False)
    speaker._dealer.send(frame)
    watched.until(lambda: victim.traffic.dropped == {"malformed": 1}, "a count")
    assert not victim._bulk_in._offers


def test_of_a_peer_one_offer_and_two_connections_are_kept(peer, known: Known):
    victim = peer(1)
    watched = WatchedTransport(victim)
    speakers = [SealedSpeaker(victim, known, 0, offers=False)]
    for _ in range(9):
        speakers[0].offer(SessionOffer.draw(0))
    other = SealedSpeaker(victim, known, 3, offers=False)
    other.offer(SessionOffer.draw(0))
    watched.until(
        lambda: sorted(owner for owner, _, _ in victim._bulk_in._offers.values()) == [0, 3],
        "one offer of each",
    )
    for _ in range(UNFINISHED_MAX + 1):
        speakers.append(SealedSpeaker(victim, known, 0))
        speakers[-1].prove(watched)
        speakers[-1].say(header(update(len(speakers))))
        count = len(speakers) - 1
        watched.until(lambda: len(watched.received(victim)) == count, "a message")  # noqa: B023
    assert [speaker.is_cut_off() for speaker in speakers[1:]] == [True, False, False]


EIGHT_BYTES = FIRST.pack(FIRST_MARK, 1, 8) + header(update(1))
SAYS = {
    "a chunk of another size": lambda s: sealed(s, HEADER, EIGHT_BYTES) + sealed(s, CHUNK, b"12"),
    "a chunk without a header": lambda s: sealed(s, CHUNK, bytes(8)),
    "a header in place of a chunk": lambda s: (
        sealed(s, HEADER, EIGHT_BYTES) + sealed(s, HEADER, bytes(8))
    ),
    "an empty header": lambda s: sealed(s, MESSAGE, b""),
    "another kind of record": lambda s: sealed(s, 77, b"data"),
    "a proof once more": lambda s: s.proof(),
    "a chunk that nobody wants, of 4 GiB": lambda s: (
        sealed(s, HEADER, FIRST.pack(FIRST_MARK, 1, 12) + header(update(1)))
        + RECORD.pack(CHUNK, 2**32 - 1)
    ),
    "a header of 64 KiB more than there may be": lambda s: RECORD.pack(HEADER, 2**17),
}


@pytest.mark.parametrize("what", SAYS)
def test_a_peer_that_keeps_to_no_form_is_cut_off(peer, known: Known, what: str):
    """It has a key. What it says is bounded all the same, before there is memory for it."""
    victim = peer(1)
    watched = WatchedTransport(victim)
    speaker = SealedSpeaker(victim, known, 0)
    said = SAYS[what](speaker.prove(watched))
    speaker.connection.setblocking(True)
    speaker.connection.sendall(said)
    watched.until(speaker.is_cut_off, "its end")
    assert victim.traffic.dropped["bad_record"] == 1
    assert watched.received(victim) == []


def test_behind_a_payload_that_nobody_wants_the_next_message_is_heard(peer, known: Known):
    victim = peer(1)
    watched = WatchedTransport(victim)
    speaker = SealedSpeaker(victim, known, 0)
    speaker.prove(watched)
    speaker.say(FIRST.pack(FIRST_MARK, 1, 2**19) + header(update(1)), bytes(2**19))
    speaker.say(header(update(2)))
    watched.until(lambda: len(watched.received(victim)) == 1, "the message behind it")
    assert victim.traffic.dropped == {"too_large": 1}


def test_who_is_struck_off_is_cut_off_here_too(peer, known: Known):
    """And what it has offered meanwhile counts no more."""
    victim = peer(1)
    watched = WatchedTransport(victim)
    speaker, other = SealedSpeaker(victim, known, 0), SealedSpeaker(victim, known, 3)
    for one in (speaker, other):
        one.prove(watched)
        one.say(header(update(1), 0 if one is speaker else 3))
    watched.until(lambda: len(watched.received(victim)) == 2, "both")
    speaker.offer(SessionOffer.draw(0))
    watched.until(lambda: bool(victim._bulk_in._offers), "an offer")
    known.list(0, None)
    speaker.say(header(update(2)))
    watched.until(speaker.is_cut_off, "its end")
    assert not victim._bulk_in._offers
    assert not other.is_cut_off()
    assert len(watched.received(victim)) == 2


def test_payloads_go_to_nobody_but_whom_the_session_was_offered_to(peer):
    """Somebody else listens at the address, and answers as if it knew the session."""
    one, other = peer(0), peer(1)
    watched = WatchedTransport(one, other)
    with socket.create_server(("127.0.0.1", 0)) as imposter:
        said: list[bytes] = []

        def answer() -> None:
            while True:
                try:
                    connection, _ = imposter.accept()
                except OSError:
                    return
                with connection:
                    said.append(connection.recv(4096))
                    connection.sendall(bytes(WELCOME_BYTES))
                    while data := connection.recv(4096):
                        said.append(data)

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        one.connect(1, other.control, f"tcp://127.0.0.1:{imposter.getsockname()[1]}")
        watched.until(lambda: len(said) >= 3, "three tries")
        assert not one.send(1, update(1), floats(8))
        imposter.shutdown(socket.SHUT_RDWR)
    answering.join(10)
    assert LinkUp(1) not in watched.heard[one]
    assert {len(data) for data in said} == {OPEN.size}
    assert len(set(said)) == len(said), "a session was named twice"


def test_a_cut_connection_is_made_anew_in_another_session(peer):
    one, other = peer(0), peer(1)
    watched = WatchedTransport(one, other)
    one.connect(1, other.control, other.bulk)
    watched.until(lambda: LinkUp(1) in watched.heard[one], "a link")
    (first,) = other._bulk_in._connections.values()
    first.end.shutdown(socket.SHUT_RDWR)
    watched.until(lambda: watched.heard[one].count(LinkUp(1)) == 2, "another one")
    assert LinkDown(1, "bulk connection closed") in watched.heard[one]
    assert first.session not in [each.session for each in other._bulk_in._connections.values()]
    assert one.send(1, update(1), floats(8))
    assert one.send(1, Ping(1, 1, ()))
    watched.until(lambda: len(watched.received(other)) == 2, "both lanes")


def test_what_is_under_way_takes_no_more_memory_than_a_chunk_each(peer, known: Known):
    """Begun payloads of two connections: their chunks wait in memory of one chunk each."""
    victim = peer(1, limit=16 * CHUNK_BYTES)
    watched = WatchedTransport(victim)
    speakers = [SealedSpeaker(victim, known, number) for number in (0, 3)]
    for number, speaker in zip((0, 3), speakers, strict=True):
        sealer = speaker.prove(watched)
        first = FIRST.pack(FIRST_MARK, 1, 16 * CHUNK_BYTES) + header(update(1), number)
        speaker.connection.setblocking(True)
        speaker.connection.sendall(sealed(sealer, HEADER, first))
        speaker.connection.sendall(sealed(sealer, CHUNK, bytes(CHUNK_BYTES))[:4000])
    watched.until(lambda: len(victim._bulk_in._rooms._buffers) == 2, "both to have begun")
    assert all(
        buffer.nbytes == CHUNK_BYTES + OVERHEAD for buffer in victim._bulk_in._rooms._buffers
    )
