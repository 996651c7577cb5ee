"""What strangers and liars of the same user may write to the lane between peers of one host causes
counts, and nothing else."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from zeromq_rig import WatchedTransport, header, transport, update

from gossip.run.rendezvous import SeedFolder
from gossip.transport.chunks import FIRST, FIRST_MARK
from gossip.transport.unix import UnixLane

VECTOR = np.arange(100, dtype=np.float32)


@pytest.fixture
def victim():
    one = transport(limit=VECTOR.nbytes, same_host=True)
    yield one
    one.close()


@pytest.fixture
def stranger(victim):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.connect("\0" + victim.bulk.rpartition("@")[2])
        yield one


def packet(head: bytes, chunk: bytes = b"") -> bytes:
    return struct.pack("<I", len(head)) + head + chunk


def first(transfer: int, nbytes: int = VECTOR.nbytes) -> bytes:
    return FIRST.pack(FIRST_MARK, transfer, nbytes) + header(update())


@pytest.mark.parametrize(
    ("packets", "dropped"),
    [
        ([packet(first(1), bytes(399))], {"malformed": 1}),
        ([packet(first(1), bytes(401))], {"malformed": 1}),
        ([packet(first(1))], {"malformed": 1}),
        ([packet(first(1, 396), bytes(396))], {"wrong_size": 1}),
        ([packet(bytes([0xC5]))], {"malformed": 1}),
        ([packet(b"")], {"malformed": 1}),
        ([b"xx"], {"malformed": 1}),
    ],
)
def test_what_is_wrong_is_counted_and_the_next_is_heard(victim, stranger, packets, dropped):
    watched = WatchedTransport(victim)
    for each in packets:
        stranger.send(each)
    watched.until(lambda: victim.traffic.dropped == dropped, "the count")
    stranger.send(packet(first(9), VECTOR.tobytes()))
    watched.until(lambda: watched.received(victim), "a message that is right")
    received = watched.received(victim)
    assert len(received) == 1
    assert received[0].payload.data.tobytes() == VECTOR.tobytes()
    assert victim.traffic.dropped == dropped


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)  # the lowest that is free: none below it
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_lane_for_which_no_descriptor_is_left_is_made_once_there_is_one(victim):
    lane = UnixLane(victim.bulk)
    with no_descriptor_left():
        assert not lane.retry()
        assert lane.again_s == 0.0
    assert lane.retry()
    lane.close(0)


def test_a_folder_for_which_no_descriptor_is_left_is_read_once_there_is_one(tmp_path):
    SeedFolder(tmp_path, 1, 2).announce("tcp://a:1", "tcp://a:2", 0)
    ours = SeedFolder(tmp_path, 0, 2)
    with no_descriptor_left():
        assert ours.poll_seeds(0.0, all_linked=False) == []
    assert [seed.peer for seed in ours.poll_seeds(1.0, all_linked=False)] == [1]
