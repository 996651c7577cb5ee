"""With keys, only who is on the list is heard, and only in its own name
(docs/design_notes.md N10 to N13)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import zmq
from zeromq_rig import (
    PATIENCE_S,
    READY,
    KeysOf,
    Known,
    SealedSpeaker,
    WatchedTransport,
    connect_zmtp,
    floats,
    header,
    raw,
    transport,
    update,
)
from zmq.utils.monitor import parse_monitor_message

from gossip.core.events import LinkDown, LinkUp
from gossip.core.messages import Ping
from gossip.errors import LocalError
from gossip.transport import guard, links, sockets, strangers
from gossip.transport.chunks import CHUNK_BYTES_LEAST, FIRST, FIRST_MARK, NEXT, NEXT_MARK
from gossip.transport.curve import KeyPair, as_client, new_pair
from gossip.transport.sessions import OVERHEAD, RECORD
from gossip.transport.zeromq import ZeroMQTransport


@pytest.fixture
def known() -> Known:
    return Known(range(4))


@pytest.fixture
def peer(known: Known) -> Callable[..., ZeroMQTransport]:
    """Makes the transport of one of them."""

    def make(local: int, pair: KeyPair | None = None, **options) -> ZeroMQTransport:
        keys = known.of(local) if pair is None else KeysOf(known, pair)
        return transport(local=local, keys=keys, **options)

    return make


def linked(
    watched: WatchedTransport,
    first: ZeroMQTransport,
    second: ZeroMQTransport,
    peers: tuple[int, int] = (0, 1),
) -> None:
    first.connect(peers[1], second.control, second.bulk)
    second.connect(peers[0], first.control, first.bulk)
    watched.until(lambda: LinkUp(peers[1]) in watched.heard[first], "a link")
    watched.until(lambda: LinkUp(peers[0]) in watched.heard[second], "a link back")


class Stranger:
    """A socket that connects to a lane, and what its monitor tells."""

    def __init__(self, address: str, curve: tuple[KeyPair, str] | None, **options) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        for name, value in ({"linger": 0} | options).items():
            self.socket.set(getattr(zmq, name.upper()), value)
        if curve is not None:
            as_client(self.socket, *curve)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_ALL)
        self.seen: list[int] = []
        self.socket.connect(address)
        for _ in range(10):
            self.socket.send_multipart([header(Ping(1, 1, ()))])
            self.socket.send_multipart([header(update(1))])

    def saw(self, *events: int) -> bool:
        while self.monitor.poll(0):
            self.seen.append(int(parse_monitor_message(self.monitor.recv_multipart())["event"]))
        return any(event in self.seen for event in events)


@contextmanager
def knocking(address: str, curve: tuple[KeyPair, str] | None, **options) -> Iterator[Stranger]:
    stranger = Stranger(address, curve, **options)
    try:
        yield stranger
    finally:
        stranger.context.destroy(linger=0)


def test_peers_with_keys_hear_each_other_on_both_lanes(peer):
    one, other = peer(0), peer(1, limit=3 * 2**20)
    watched = WatchedTransport(one, other)
    linked(watched, one, other)
    assert one.send(1, Ping(1, 1, ()))
    assert one.send(1, update(7), floats(3 * 2**20))
    watched.until(lambda: len(watched.received(other)) == 2, "both")
    assert {arrival.sender for arrival in watched.received(other)} == {0}
    assert not other.traffic.dropped
    assert not other.traffic.notices


def test_nothing_travels_in_the_clear(peer):
    """Neither lane, nor where peers of one host would have a lane without keys."""
    one, other = peer(0, limit=8, same_host=True), peer(1, limit=8, same_host=True)
    watched = WatchedTransport(one, other)
    heard: list[bytes] = []
    addresses = [relay(getattr(other, lane), heard) for lane in ("control", "bulk")]
    one.connect(1, *addresses)
    watched.until(lambda: LinkUp(1) in watched.heard[one], "a link")
    assert one.send(1, Ping(1, 1, ()))
    assert one.send(1, update(3), floats(8))
    watched.until(lambda: len(watched.received(other)) == 2, "both")
    said = b"".join(heard)
    assert b"CURVE" in said
    assert b"this-run" not in said
    assert b"lineage1" not in said
    assert floats(8).data.tobytes() not in said


PLACES = {
    "kind": lambda data: 0,
    "padding": lambda data: 2,
    "length": lambda data: 4,
    "length beyond all bounds": lambda data: 7,
    "header": lambda data: RECORD.size + 3,
    "tag of the header": lambda data: second_record(data) - 1,
    "length of the chunk": lambda data: second_record(data) + 4,
    "chunk": lambda data: second_record(data) + RECORD.size + 99,
    "tag of the chunk": lambda data: len(data) - 1,
}
"""Where a bit is flipped in the two records of a payload of one chunk."""


def second_record(data: bytes) -> int:
    return RECORD.unpack_from(data)[1] + OVERHEAD


@pytest.mark.parametrize("place", PLACES)
def test_a_flipped_bit_costs_the_payload_lane_a_moment(peer, place: str):
    """Nothing of it is heard, and the next connection has another session."""
    one, other = peer(0), peer(1, limit=SPOILT_BYTES)
    watched = WatchedTransport(one, other)
    flips: list[int] = []

    def flip(data: bytes) -> bytes:
        """Of the first payload, once it is wanted."""
        if not flips or len(data) < SPOILT_BYTES:
            return data
        flips.clear()
        changed = bytearray(data)
        changed[PLACES[place](data)] ^= 1
        return bytes(changed)

    one.connect(1, other.control, relay(other.bulk, [], flip))
    watched.until(lambda: LinkUp(1) in watched.heard[one], "a link")
    # A relay may read the end of a handshake and the first payload at once.
    assert one.send(1, update(1), floats(SPOILT_BYTES))
    watched.until(lambda: bool(watched.received(other)), "a first payload")
    flips.append(1)
    assert one.send(1, update(2), floats(SPOILT_BYTES))
    watched.until(lambda: not flips, "a flipped bit")
    rounds = iter(range(3, 100_000))

    def comes() -> bool:
        one.send(1, update(next(rounds)), floats(SPOILT_BYTES))
        return len(watched.received(other)) > 1

    watched.until(comes, "a later payload")
    assert LinkDown(1, "bulk connection closed") in watched.heard[one]
    assert 2 not in [arrival.message.round_id for arrival in watched.received(other)]
    assert other.traffic.dropped["bad_record"] == 1


SPOILT_BYTES = 8192


def relay(
    address: str, heard: list[bytes], change: Callable[[bytes], bytes] = lambda data: data
) -> str:
    """Passes on what comes for an address, and keeps it. ``change``: what it makes of what goes
    there."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(
        source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]
    ) -> None:
        try:
            while data := source.recv(65536):
                heard.append(data)
                target.sendall(change(data))
        except OSError:
            return
        finally:
            for end in (source, target):
                with suppress(OSError):  # it has ended before
                    end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        while True:
            near, _ = listener.accept()
            far = raw(address)
            threading.Thread(target=pump, args=(far, near, lambda data: data), daemon=True).start()
            threading.Thread(target=pump, args=(near, far, change), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


# --- who is not let in ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "counts", "event"),
    [
        ("unknown key", ("unknown_key",), zmq.EVENT_HANDSHAKE_FAILED_AUTH),
        ("wrong server key", ("stale_key",), zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL),
        # Who has no key and hangs up first has only broken off.
        ("no key", ("no_key", "bad_handshake"), zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL),
    ],
)
def test_who_has_not_the_right_keys_says_nothing(
    peer, known: Known, how: str, counts: tuple[str, ...], event: int
):
    victim = peer(1)
    watched = WatchedTransport(victim)
    curve = {
        "unknown key": (new_pair(), known.listed[1]),
        "wrong server key": (known.pairs[0], new_pair().public),
        "no key": None,
    }[how]
    with knocking(victim.control, curve) as stranger:
        # Whether it hears why before it hears that the connection has ended is chance.
        watched.until(lambda: stranger.saw(event, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL), how)
        watched.until(
            lambda: any(victim.traffic.dropped.get(count, 0) > 0 for count in counts),
            f"a count of {counts}",
        )
    assert victim.traffic.received_bytes == 0
    assert watched.heard[victim] == []


def test_when_nobody_answers_for_the_keys_nobody_is_let_in(peer, known: Known):
    """N11: libzmq lets everybody in whom it cannot ask about, unless it is told not to."""
    victim = peer(1)
    watched = WatchedTransport(victim)
    victim._guard._authenticator.close()
    failed = (
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
        zmq.EVENT_HANDSHAKE_FAILED_AUTH,
        zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    )
    with knocking(victim.control, (known.pairs[0], known.listed[1])) as friend:
        watched.until(
            lambda: friend.saw(*failed, zmq.EVENT_DISCONNECTED, zmq.EVENT_HANDSHAKE_SUCCEEDED),
            "an answer",
        )
        assert not friend.saw(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    assert victim.traffic.received_bytes == 0


def test_an_open_door_is_found_before_anything_starts(known: Known, monkeypatch):
    """The self-test, as if everybody were admitted."""
    monkeypatch.setattr(guard.Guard, "_admit", lambda self, key, address: True)
    with pytest.raises(LocalError, match="which admits it, so nothing is started"):
        transport(keys=known.of(1)).close()


@pytest.mark.parametrize("keys", [False, True])
def test_a_stranger_can_only_fill_memory_where_there_are_no_keys(peer, keys: bool):
    """N10: what has no end is kept by libzmq from the moment that it lets somebody in."""
    victim = peer(1) if keys else transport(local=1)
    connection = raw(victim.control) if keys else connect_zmtp(victim.control)
    connection.settimeout(2.0)
    sent = 0
    try:
        if keys:
            connection.sendall(
                b"\xff"
                + bytes(8)
                + b"\x7f\x03\x00"
                + b"CURVE".ljust(20, b"\0")
                + b"\0"
                + bytes(31)
                + READY
            )
        for _ in range(2000):
            connection.sendall(b"\x03" + (60_000).to_bytes(8, "big") + bytes(60_000))
            sent += 60_000
    except (ConnectionError, TimeoutError):
        pass
    finally:
        connection.close()
        if not keys:
            victim.close()
    assert (sent > 100_000_000) is not keys, f"{sent} bytes were taken"


# --- in whose name --------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", ["control", "bulk", "bulk payload"])
def test_nobody_speaks_in_anothers_name(peer, known: Known, lane: str):
    victim = peer(1)
    watched = WatchedTransport(victim)
    payload = floats(8).data.tobytes()
    attacker = SealedSpeaker(victim, known, 3)
    attacker.prove(watched)
    for sender in (0, 3):
        if lane == "control":
            attacker._dealer.send(header(Ping(1, 1, ()), sender))
        elif lane == "bulk":
            attacker.say(header(update(1), sender))
        else:
            first = FIRST.pack(FIRST_MARK, sender, 8) + header(update(1), sender)
            attacker.say(first, payload)
    watched.until(lambda: len(watched.received(victim)) == 1, "what it says in its own name")
    attacker.close()
    assert [arrival.sender for arrival in watched.received(victim)] == [3]
    assert victim.traffic.dropped == {"wrong_name": 1}
    assert [notice.message for notice in victim.traffic.notices] == [
        "peer 3 sends messages in the name of peer 0"
    ]


@pytest.mark.parametrize("attackers_key", [0, 3])
def test_nobody_adds_to_a_payload_on_another_connection(peer, known: Known, attackers_key: int):
    victim = peer(1, limit=2 * CHUNK_BYTES_LEAST)
    watched = WatchedTransport(victim)
    owner, attacker = SealedSpeaker(victim, known, 0), None
    owner.prove(watched)
    first = FIRST.pack(FIRST_MARK, 7, 2 * CHUNK_BYTES_LEAST) + header(update(1))
    speaking = threading.Thread(target=owner.say, args=(first, bytes(CHUNK_BYTES_LEAST)))
    speaking.start()
    watched.until(lambda: len(victim._reception.assembly) == 1, "the first chunk to be read")
    speaking.join()
    attacker = SealedSpeaker(victim, known, attackers_key)
    attacker.prove(watched)
    speaking = threading.Thread(
        target=attacker.say, args=(NEXT.pack(NEXT_MARK, 7, 1), bytes(CHUNK_BYTES_LEAST))
    )
    speaking.start()
    watched.until(lambda: bool(victim.traffic.dropped), "the other chunk to be read")
    speaking.join()
    for one in (owner, attacker):
        one.close()
    assert victim.traffic.dropped == {"unknown_transfer": 1}
    assert watched.received(victim) == []


# --- the list changes -----------------------------------------------------------------------------


def test_who_is_put_on_the_list_gets_in_without_being_told(peer, known: Known, monkeypatch):
    """N12: after a refusal libzmq gives up, so we try again ourselves."""
    one, other = peer(0), peer(1)
    watched = WatchedTransport(one, other)
    key = known.listed[0]
    known.list(0, None)
    one.connect(1, other.control, other.bulk)
    watched.until(
        lambda: other.traffic.dropped.get("unknown_key", 0) >= 4,
        "more refusals than the first ones of both lanes",
    )
    assert other.traffic.received_bytes == 0
    assert one._table._keys.refreshes
    assert other._table._keys.refreshes
    known.list(0, key)
    watched.until(lambda: LinkUp(1) in watched.heard[one], "a link")


def test_a_key_that_comes_later_is_waited_for(peer, known: Known):
    one, other = peer(0), peer(1)
    watched = WatchedTransport(one, other)
    key = known.listed[1]
    known.list(1, None)
    one.connect(1, other.control, other.bulk)
    one.poll(0.2)
    assert one.traffic.dropped == {"keyless": 1}
    assert not one._table.links
    known.list(1, key)
    watched.until(lambda: LinkUp(1) in watched.heard[one], "a link")


@pytest.mark.parametrize("speaks", [True, False])
def test_who_is_struck_off_the_list_is_cut_off(peer, known: Known, speaks: bool, monkeypatch):
    """Whether it says something or not; and nothing of what it says is heard."""
    one, other, third = peer(0), peer(1), peer(2)
    watched = WatchedTransport(one, other, third)
    linked(watched, one, other)
    linked(watched, third, other, (2, 1))
    for sender in (one, third):
        assert sender.send(1, update(1), floats(8))
    watched.until(lambda: len(watched.received(other)) == 2, "both")
    # who is struck off need not hear of it, nor be honest
    one._table._keys = one._guard.keys = Known([1, 2]).of(1)
    one._table._keys.known.listed[1] = known.listed[1]
    known.list(0, None)
    for _ in range(10 if speaks else 0):
        one.send(1, update(2), floats(8))
        one.send(1, Ping(5, 1, ()))
    watched.until(
        lambda: any(isinstance(arrival, LinkDown) for arrival in watched.heard[one]),
        "the end of its link",
    )
    watched.until(
        lambda: LinkDown(0, "its key was revoked") in watched.heard[other], "our end of it"
    )
    assert third.send(1, update(9), floats(8))
    watched.until(lambda: len(watched.received(other)) == 3, "another one that is still listed")
    assert sorted(arrival.sender for arrival in watched.received(other)) == [0, 2, 2] or not speaks
    assert not any(isinstance(arrival, LinkDown) for arrival in watched.heard[third])
    watched.until(
        lambda: other.traffic.dropped.get("unknown_key", 0) > 0,
        "it to be refused when it comes again",
    )


def test_who_has_another_key_after_a_restart_is_linked_again(peer, known: Known):
    one, other = peer(0), peer(1)
    watched = WatchedTransport(one, other)
    linked(watched, one, other)
    ports = {
        "control_port": int(other.control.rpartition(":")[2]),
        "bulk_port": int(other.bulk.rpartition(":")[2]),
    }
    other.close()
    watched.driven = (one,)
    watched.until(lambda: isinstance(watched.heard[one][-1], LinkDown), "its end")
    pair = new_pair()
    known.list(1, pair.public)
    heir = peer(1, pair, **ports)
    watched.driven, watched.heard[heir] = (one, heir), []
    watched.until(lambda: watched.heard[one].count(LinkUp(1)) == 2, "a link to the new one")
    heir.connect(0, one.control, one.bulk)
    watched.until(lambda: LinkUp(0) in watched.heard[heir], "one back")
    assert heir.send(0, Ping(1, 1, ()))
    watched.until(lambda: len(watched.received(one)) == 1, "what it says")


def test_whoever_is_let_in_and_says_nothing_has_to_go(peer, known: Known, monkeypatch):
    """It would be nobody's connection for ever. Ours say something at once, so theirs stand."""
    monkeypatch.setattr(guard, "SILENT_S", 0.3)
    one, other = peer(0), peer(1)
    watched = WatchedTransport(one, other)
    linked(watched, one, other)
    context = zmq.Context()
    mute = context.socket(zmq.DEALER)
    as_client(mute, known.pairs[3], known.listed[1])
    monitor = mute.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    mute.connect(other.control)
    watched.until(lambda: bool(monitor.poll(0)), "its end")
    context.destroy(linger=0)
    assert not any(
        isinstance(arrival, LinkDown) for heard in watched.heard.values() for arrival in heard
    )


# --- what people are told -------------------------------------------------------------------------


def notices(one: ZeroMQTransport) -> list[str]:
    return [notice.message for notice in one.traffic.notices]


def test_an_unknown_key_is_told_on_both_sides_once(peer, known: Known, monkeypatch):
    monkeypatch.setattr(links, "PATIENCE_S", 0.3)
    monkeypatch.setattr(strangers, "NOTICE_S", 0.3)
    one, other = peer(0), peer(1)
    watched = WatchedTransport(one, other)
    key = known.listed[0]
    known.list(0, None)
    one.connect(1, other.control, other.bulk)
    watched.until(lambda: bool(notices(one) and notices(other)), "both to tell")
    refused = other.traffic.dropped["unknown_key"]
    watched.until(lambda: other.traffic.dropped["unknown_key"] > refused + 2, "more refusals")
    assert notices(one) == [
        f"peer 1 at {one._table.links[1].control.address} does not know the local key {key[:8]}..."
    ] or notices(one) == [
        f"peer 1 at {one._table.links[1].bulk.address} does not know the local key {key[:8]}..."
    ]
    assert notices(other) == [
        f"rejected a connection from 127.0.0.1: its key {key[:8]}... is in no seed file on this "
        "host"
    ]


def test_a_key_that_is_on_its_way_is_no_matter(peer, known: Known, monkeypatch):
    monkeypatch.setattr(strangers, "NOTICE_S", 0.5)
    one, other = peer(0), peer(1)
    watched = WatchedTransport(one, other)
    key = known.listed[0]
    known.list(0, None)
    one.connect(1, other.control, other.bulk)
    watched.until(lambda: other.traffic.dropped.get("unknown_key", 0) > 0, "a refusal")
    known.list(0, key)
    watched.until(lambda: LinkUp(1) in watched.heard[one], "a link")
    end = time.monotonic() + 1.0
    watched.until(lambda: time.monotonic() > end, "a while")
    assert notices(one) == notices(other) == []


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        (True, False, "has no key"),
        (False, True, "accepts no peer without a key"),
        (True, True, "ends every handshake"),
    ],
)
def test_a_missing_link_is_explained(known: Known, monkeypatch, here: bool, there: bool, said: str):
    """A connection may be reset before we have read why, each time: then it is one of several
    reasons that are told."""
    monkeypatch.setattr(links, "PATIENCE_S", 0.3)
    one = transport(local=0, keys=known.of(0) if here else None)
    other = transport(local=1, keys=known.of(1) if there else None)
    if here and there:
        wrong = Known([1])
        wrong.list(0, known.listed[0])
        one.close()
        one = transport(local=0, keys=KeysOf(wrong, known.pairs[0]))
    watched = WatchedTransport(one, other)
    try:
        one.connect(1, other.control, other.bulk)
        watched.until(lambda: bool(notices(one)), "a line")
    finally:
        one.close()
        other.close()
    assert len(notices(one)) == 1
    assert notices(one)[0].startswith("peer 1 at tcp://127.0.0.1:")
    assert said in notices(one)[0]
    assert PATIENCE_S > 0.3


@pytest.mark.parametrize("keyed", [False, True])
def test_of_one_that_takes_connections_and_says_nothing_nobody_says_that_it_is_the_keys(
    known: Known, monkeypatch, keyed: bool
):
    """As a stopped process does: its kernel goes on taking connections."""
    monkeypatch.setattr(links, "PATIENCE_S", 0.3)
    monkeypatch.setitem(sockets._BOTH_WAYS, zmq.HANDSHAKE_IVL, 100)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address = f"tcp://127.0.0.1:{stopped.getsockname()[1]}"
        one = transport(local=0, keys=known.of(0) if keyed else None)
        watched = WatchedTransport(one)
        try:
            one.connect(1, address, address)
            watched.until(lambda: bool(notices(one)), "a line")
        finally:
            one.close()
    assert "sends nothing" in notices(one)[0]
    assert "it is stopped, hangs, or is no peer of gossip" in notices(one)[0]
    assert "key" not in notices(one)[0]
