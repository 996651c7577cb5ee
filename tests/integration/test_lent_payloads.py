"""Payloads that peers of one host read where they lie: whole, whatever their owner does meanwhile,
and from nothing but memory that keeps its size."""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from zeromq_rig import WatchedTransport, header, transport, update

from gossip.core.events import Payload
from gossip.core.messages import Commit
from gossip.ipc.arena import allocate
from gossip.transport.assembly import BLOCK_BYTES, IncomingPayload
from gossip.transport.chunks import COPIED, LENT, LENT_MARK, MAP_MARK, NEXT, RETURNED_MARK, UNMAPPED
from gossip.transport.lending import Lender, MappedMemory
from gossip.transport.zeromq import ZeroMQTransport
from gossip.vectors import is_finite, payload_digest

NUMBERS = 5 * BLOCK_BYTES // 8  # two blocks and a half
NBYTES = 4 * NUMBERS
KEEPS_ITS_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def commit() -> Commit:
    return Commit(b"lineage1", 3, 0, 0, 0, 0, b"d" * 16, b"e" * 16, (), (), (0, 1), None, "")


def no_room(round_id: int, shard: int, nbytes: int) -> None:
    return None


class Owner:
    """A transport that shares memory of its own, in which a vector lies."""

    def __init__(self, local: int = 0) -> None:
        self.transport = transport(local=local, limit=NBYTES, same_host=True)
        self.fd = allocate(2 * NBYTES)
        self.memory = np.frombuffer(mmap.mmap(self.fd, 2 * NBYTES), np.uint8)
        self.vector = self.memory[NBYTES:].view(np.float32)
        self.vector[:] = np.arange(NUMBERS, dtype=np.float32)
        self.transport.share(self.fd, self.memory, no_room)

    @property
    def payload(self) -> Payload:
        return Payload(self.vector, NBYTES)

    def close(self) -> None:
        self.transport.close()
        os.close(self.fd)


@pytest.fixture
def victim() -> Iterator[ZeroMQTransport]:
    one = transport(limit=NBYTES, same_host=True)
    yield one
    one.close()


@pytest.fixture
def owner() -> Iterator[Owner]:
    one = Owner()
    yield one
    one.close()


@pytest.fixture
def stranger(victim: ZeroMQTransport) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.connect("\0" + victim.bulk.rpartition("@")[2])
        one.settimeout(30)
        yield one


@contextmanager
def linked(owner: Owner, victim: ZeroMQTransport) -> Iterator[WatchedTransport]:
    watched = WatchedTransport(owner.transport, victim)
    watched.link(owner.transport, 1, victim)
    yield watched


def arrived(watched: WatchedTransport, victim: ZeroMQTransport) -> Payload:
    watched.until(lambda: bool(watched.received(victim)), "the payload")
    payload = watched.received(victim)[0].payload
    assert payload is not None
    return payload


def test_a_payload_in_shared_memory_is_read_where_it_lies_and_given_back(owner, victim):
    with linked(owner, victim) as watched:
        assert owner.transport.send(1, update(), owner.payload)
        assert owner.transport.in_flight(owner.vector)
        owner.vector[-1] = -1.0  # what was sent through a socket could not change any more
        payload = arrived(watched, victim)
        assert payload.data.tobytes() == owner.vector.tobytes()
        assert payload.finite
        assert not np.shares_memory(payload.data, owner.vector)
        watched.until(lambda: not owner.transport.in_flight(owner.vector), "it to be given back")


def test_what_its_owner_changes_behind_the_reader_leaves_what_was_read(owner, victim, monkeypatch):
    true, grow = owner.vector.copy(), IncomingPayload.grow

    def rewriting(incoming):
        # all that it has read so far, and is about to judge
        owner.vector[: (incoming.filled + BLOCK_BYTES) // 4] = np.nan
        return grow(incoming)

    monkeypatch.setattr(IncomingPayload, "grow", rewriting)
    with linked(owner, victim) as watched:
        owner.transport.send(1, commit(), owner.payload)
        payload = arrived(watched, victim)
    assert np.isnan(owner.vector).all()
    assert payload.data.tobytes() == true.tobytes()
    assert payload.finite
    assert payload.digest == payload_digest(true)


@pytest.mark.parametrize("bad", [np.nan, 7.0])
def test_what_is_judged_is_what_was_read_when_its_owner_changes_it_before_the_reader(
    owner, victim, monkeypatch, bad
):
    true, copy_from = owner.vector.copy(), IncomingPayload.copy_from

    def rewriting(incoming, source):
        done = copy_from(incoming, source)
        owner.vector[-1] = bad
        return done

    monkeypatch.setattr(IncomingPayload, "copy_from", rewriting)
    with linked(owner, victim) as watched:
        owner.transport.send(1, commit(), owner.payload)
        payload = arrived(watched, victim)
    assert payload.digest != payload_digest(true)
    assert payload.digest == payload_digest(payload.data)
    assert payload.finite == is_finite(payload.data) == (bad == 7.0)


def test_a_payload_is_read_to_its_end_though_its_owner_is_gone(owner, victim):
    with linked(owner, victim) as watched:
        owner.transport.send(1, update(), owner.payload)
        true = owner.vector.tobytes()
        owner.transport.close()
        assert arrived(WatchedTransport(victim), victim).data.tobytes() == true
        assert watched.received(victim) == []
        WatchedTransport(victim).until(lambda: not victim._bulk_in._connections, "the end")
    assert victim._bulk_in._mapped == {}
    assert victim._bulk_in._loans == {}


# --- updates that stay where they are -------------------------------------------------------------


@pytest.fixture
def adder(owner: Owner) -> Iterator[ZeroMQTransport]:
    """Has updates handed in where they lie."""
    one = transport(limit=NBYTES, same_host=True)
    fd = allocate(4096)
    memory = np.frombuffer(mmap.mmap(fd, 4096), np.uint8)
    one.share(fd, memory, no_room, updates_stay=True)
    yield one
    one.close()
    os.close(fd)


def test_an_update_stays_where_it_lies_for_as_long_as_somebody_refers_to_it(owner, adder):
    with linked(owner, adder) as watched:
        owner.transport.send(1, update(), owner.payload)
        payload = arrived(watched, adder)
        assert payload.finite
        assert payload.data.tobytes() == owner.vector.tobytes()
        owner.vector[3] = 12.0
        assert payload.data[3] == 12.0, "it is the same memory"
        with pytest.raises(ValueError, match="read-only"):
            payload.data[3] = 1.0
        part = payload.data[5:6]
        watched.forget(adder)
        del payload
        for _ in range(5):
            watched.turn()
        assert owner.transport.in_flight(owner.vector), "a part of it is referred to"
        del part
        watched.until(lambda: not owner.transport.in_flight(owner.vector), "it to be given back")


def test_an_update_that_stays_is_looked_at_when_it_comes(owner, adder):
    owner.vector[-1] = np.inf
    with linked(owner, adder) as watched:
        owner.transport.send(1, update(), owner.payload)
        assert not arrived(watched, adder).finite


def test_a_result_is_copied_though_updates_stay(owner, adder):
    with linked(owner, adder) as watched:
        owner.transport.send(1, commit(), owner.payload)
        payload = arrived(watched, adder)
        assert payload.digest == payload_digest(owner.vector)
        owner.vector[3] = 12.0
        assert payload.data[3] == 3.0
        watched.until(lambda: not owner.transport.in_flight(owner.vector), "it to be given back")


def dial(victim: ZeroMQTransport) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    one.connect("\0" + victim.bulk.rpartition("@")[2])
    return one


def test_an_update_can_be_read_when_its_connection_has_ended_and_is_returned_on_no_other(adder):
    watched, fd = WatchedTransport(adder), memory(NBYTES, KEEPS_ITS_SIZE)
    with dial(adder) as first:
        show(first, fd)
        lend(first, 0)
        payload = arrived(watched, adder)
        connections = list(adder._bulk_in._connections)
    watched.forget(adder)
    watched.until(lambda: not adder._bulk_in._connections, "the end")
    assert not payload.data.any()
    with dial(adder) as other:
        show(other, fd)
        lend(other, 0)
        watched.until(lambda: bool(watched.received(adder)), "the other's")
        assert list(adder._bulk_in._connections) == connections, "it has the same descriptor"
        del payload  # whose transfer has the number of the other's
        for _ in range(5):
            watched.turn()
        with pytest.raises(BlockingIOError):
            other.recv(100)
        watched.forget(adder)
        watched.turn()
        assert other.recv(100) == returned(77)
    os.close(fd)


def test_what_the_other_side_never_returns_is_free_when_the_link_ends(owner, stranger):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        name = "gossip-" + os.urandom(8).hex()
        listener.bind(f"\0{name}")
        listener.listen()
        other = transport(local=1, limit=NBYTES, same_host=True)
        watched = WatchedTransport(owner.transport, other)
        owner.transport.connect(1, other.control, f"unix://@{name}")
        connection, _ = listener.accept()
        watched.until(lambda: owner.transport._table.links[1].up, "the link")
        owner.transport.send(1, update(), owner.payload)
        connection.send(returned(12345))
        connection.send(b"x")
        connection.send(returned(1)[:-1])
        for _ in range(5):
            owner.transport.poll(0.01)
        assert owner.transport.in_flight(owner.vector)
        connection.close()
        watched.until(lambda: not owner.transport.in_flight(owner.vector), "it to be free")
        other.close()


def test_memory_that_cannot_be_sealed_is_not_shared_and_said_so_once(victim):
    one = transport(local=0, limit=NBYTES, same_host=True)
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), NBYTES)
        memory = np.frombuffer(mmap.mmap(file.fileno(), NBYTES), np.uint8)
        for _ in range(2):
            one.share(file.fileno(), memory, no_room)
        assert [notice.message for notice in one.traffic.notices] == [
            "memory cannot be shared with the other peers of this host: [Errno 22] Invalid argument"
        ]
        watched = WatchedTransport(one, victim)
        watched.link(one, 1, victim)
        vector = memory.view(np.float32)
        one.send(1, update(), Payload(vector, NBYTES))
        assert arrived(watched, victim).data.tobytes() == vector.tobytes()
        assert victim._bulk_in._mapped == {}
    one.close()


def test_a_payload_that_cannot_be_mapped_is_sent_as_are_later_ones(owner, victim, monkeypatch):
    def no_memory(fd: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("gossip.transport.unix.MappedMemory", no_memory)
    with linked(owner, victim) as watched:
        for _ in range(2):
            owner.transport.send(1, update(), owner.payload)
        watched.until(lambda: len(watched.received(victim)) == 2, "both")
        owner.transport.send(1, update(), owner.payload)
        watched.until(lambda: len(watched.received(victim)) == 3, "the next")
    for received in watched.received(victim):
        assert received.payload.data.tobytes() == owner.vector.tobytes()
    assert victim.traffic.dropped == {"malformed": 3}, "the descriptor, and both payloads, once"
    assert [notice.message for notice in owner.transport.traffic.notices] == [
        "peer 1 cannot map the memory of this peer: payloads go over a socket"
    ]


def test_sealed_memory_keeps_its_size_and_nobody_else_writes_to_it(owner):
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(owner.fd, NBYTES)
    with pytest.raises(OSError, match="not permitted"):
        mmap.mmap(owner.fd, NBYTES)
    owner.vector[0] = 5.0
    assert MappedMemory(owner.fd).part(NBYTES, 4).view(np.float32)[0] == 5.0


def test_a_result_is_received_in_the_room_that_there_is_for_it(owner, victim):
    place = np.zeros(NBYTES, np.uint8)
    asked = []

    def room(*what: int) -> np.ndarray:
        asked.append(what)
        return place

    victim._reception.room = room
    with linked(owner, victim) as watched:
        owner.transport.send(1, update(), owner.payload)
        owner.transport.send(1, commit(), owner.payload)
        watched.until(lambda: len(watched.received(victim)) == 2, "both")
    assert asked == [(3, 0, NBYTES)]
    assert place.tobytes() == owner.vector.tobytes()


# --- what a stranger may send ---------------------------------------------------------------------


def packet(head: bytes) -> bytes:
    return struct.pack("<I", len(head)) + head


def returned(transfer: int, how: int = COPIED) -> bytes:
    return packet(NEXT.pack(RETURNED_MARK, transfer, how))


def show(stranger: socket.socket, *fds: int, region: int = 1, tail: bytes = b"") -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    stranger.sendmsg([packet(NEXT.pack(MAP_MARK, region, 0) + tail)], rights)


def lend(stranger: socket.socket, offset: int, nbytes: int = NBYTES, region: int = 1) -> None:
    head = LENT.pack(LENT_MARK, 77, region, offset, nbytes) + header(update())
    stranger.send(packet(head))


def memory(nbytes: int, seals: int) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def shrunk() -> int:
    fd = memory(2 * NBYTES, 0)
    os.ftruncate(fd, NBYTES - 4)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, KEEPS_ITS_SIZE)
    return fd


HOSTILE: dict[str, Callable[[], int]] = {
    "unsealed": lambda: memory(2 * NBYTES, 0),
    "sealed against growing only": lambda: memory(2 * NBYTES, fcntl.F_SEAL_GROW),
    "empty": lambda: memory(0, KEEPS_ITS_SIZE),
    "larger than a process can map": lambda: memory(2**45, KEEPS_ITS_SIZE),
    "a file": lambda: os.open(__file__, os.O_RDONLY),
    "a folder": lambda: os.open("/", os.O_RDONLY),
    "an event": lambda: os.eventfd(0),
    "something that never ends": lambda: os.open("/dev/zero", os.O_RDONLY),
}


def test_memory_in_huge_pages_is_refused(monkeypatch):
    fd = memory(2**21, KEEPS_ITS_SIZE)
    MappedMemory(fd)
    # not every kernel has them
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bsize=2**21))
    with pytest.raises(OSError, match="pages of 2097152 bytes"):
        MappedMemory(fd)
    os.close(fd)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_descriptor_of_no_memory_that_keeps_its_size_is_refused(victim, stranger, kind):
    watched, before = WatchedTransport(victim), descriptors()
    fd = HOSTILE[kind]()
    show(stranger, fd)
    os.close(fd)
    lend(stranger, 0)
    # the descriptor, and then a payload in memory that is not known
    watched.until(lambda: victim.traffic.dropped == {"malformed": 2}, "the count")
    assert stranger.recv(100) == returned(77, UNMAPPED)
    works(victim, stranger, watched)
    assert descriptors() == before + 2, "the connection and the mapping, and nothing else"


@pytest.mark.parametrize("count", [0, 2, 20])
def test_another_number_of_descriptors_than_one_is_refused(victim, stranger, count):
    watched, before = WatchedTransport(victim), descriptors()
    fds = [memory(NBYTES, KEEPS_ITS_SIZE) for _ in range(count)]
    show(stranger, *fds)
    for fd in fds:
        os.close(fd)
    watched.until(lambda: victim.traffic.dropped == {"malformed": 1}, "the count")
    works(victim, stranger, watched)
    assert descriptors() == before + 2


@pytest.mark.parametrize(
    ("kind", "offset", "region"),
    [
        ("too short", 0, 1),
        ("whole", 4, 1),
        ("whole", 2**63, 1),
        ("whole", 2**64 - 4, 1),
        ("whole", 0, 2),
    ],
)
def test_a_payload_that_is_not_all_there_is_refused_and_given_back(
    victim, stranger, kind, offset, region
):
    watched = WatchedTransport(victim)
    fd = shrunk() if kind == "too short" else memory(NBYTES, KEEPS_ITS_SIZE)
    show(stranger, fd)
    os.close(fd)
    lend(stranger, offset, region=region)
    watched.until(lambda: victim.traffic.dropped == {"malformed": 1}, "the count")
    assert stranger.recv(100) == returned(77)
    works(victim, stranger, watched)


def test_the_size_of_a_lent_payload_is_known_here_and_not_believed(victim, stranger):
    watched = WatchedTransport(victim)
    fd = memory(2 * NBYTES, KEEPS_ITS_SIZE)
    show(stranger, fd)
    os.close(fd)
    lend(stranger, 0, nbytes=NBYTES + 4)
    lend(stranger, 0, nbytes=NBYTES - 4)
    lend(stranger, 0, nbytes=2**64 - 1)
    lend(stranger, 0, nbytes=0)
    watched.until(lambda: victim.traffic.dropped == {"too_large": 2, "wrong_size": 2}, "the counts")
    for _ in range(4):
        assert stranger.recv(100) == returned(77)
    works(victim, stranger, watched)


@pytest.mark.parametrize(
    "sent",
    [
        packet(bytes([MAP_MARK])),
        packet(bytes([LENT_MARK])),
        packet(LENT.pack(LENT_MARK, 1, 1, 0, NBYTES)),
        packet(LENT.pack(LENT_MARK, 1, 1, 0, NBYTES) + b"no message"),
        packet(LENT.pack(LENT_MARK, 1, 1, 0, NBYTES) + header(update())) + b"more",
        returned(1),
    ],
)
def test_what_is_wrong_is_counted_and_the_next_is_heard(victim, stranger, sent):
    watched = WatchedTransport(victim)
    stranger.send(sent)
    watched.until(lambda: sum(victim.traffic.dropped.values()) >= 1, "the count")
    assert set(victim.traffic.dropped) == {"malformed"}
    works(victim, stranger, watched)


def test_who_replaces_its_memory_lends_from_the_new_one(victim, stranger):
    watched = WatchedTransport(victim)
    works(victim, stranger, watched)
    works(victim, stranger, watched, value=2.0)
    assert len(victim._bulk_in._mapped) == 1


def test_who_replaces_its_memory_by_what_cannot_be_mapped_is_told_to_send(victim, stranger):
    watched = WatchedTransport(victim)
    works(victim, stranger, watched)
    fd = HOSTILE["unsealed"]()
    show(stranger, fd, region=10)
    os.close(fd)
    lend(stranger, 0, region=10)
    watched.until(lambda: victim.traffic.dropped == {"malformed": 2}, "the count")
    assert stranger.recv(100) == returned(77, UNMAPPED)


def works(
    victim: ZeroMQTransport, stranger: socket.socket, watched: WatchedTransport, value: float = 1.0
) -> None:
    """Memory that keeps its size is read."""
    fd, before = memory(NBYTES, KEEPS_ITS_SIZE), len(watched.received(victim))
    np.frombuffer(mmap.mmap(fd, NBYTES), np.float32)[:] = value
    show(stranger, fd, region=9)
    os.close(fd)
    lend(stranger, 0, region=9)
    watched.until(lambda: len(watched.received(victim)) > before, "the payload")
    payload = watched.received(victim)[-1].payload
    assert (payload.data == value).all()
    while stranger.recv(100) != returned(77):
        pass  # of those that were refused before


def test_the_owner_of_memory_knows_what_lies_in_it():
    fd = allocate(4096)
    whole = np.frombuffer(mmap.mmap(fd, 4096), np.uint8)
    lender = Lender(fd, whole)
    assert lender.offset_of(whole[100:200]) == 100
    assert lender.offset_of(whole) == 0
    assert lender.offset_of(np.zeros(4, np.uint8)) is None
    os.close(fd)
