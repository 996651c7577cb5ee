"""A list of who is allowed, over ZeroMQ: who is not on it is kept out,
and people are told by whom and why, once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_zeromq_keys import notices
from zeromq_rig import WatchedTransport, transport

from gossip.core.events import LinkUp
from gossip.run import keyring
from gossip.run.keyring import Keyring
from gossip.run.keys import AllowList, fingerprint
from gossip.run.rendezvous import SeedFolder
from gossip.transport import links, strangers
from gossip.transport.curve import KeyPair, new_pair
from gossip.transport.zeromq import ZeroMQTransport

PAIRS = [new_pair() for _ in range(3)]


@pytest.fixture
def peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., ZeroMQTransport]]:
    """Makes the transport of one of them, which goes by a list of its own,
    and by the seeds of all."""
    monkeypatch.setattr(links, "PATIENCE_S", 0.3)
    monkeypatch.setattr(strangers, "NOTICE_S", 0.3)
    monkeypatch.setattr(keyring, "ALLOWED_S", 0.05)
    made: list[ZeroMQTransport] = []

    def make(local: int, allowed: Path | None) -> ZeroMQTransport:
        folder = SeedFolder(tmp_path / "seeds", local, 4)
        keys = Keyring(PAIRS[local], folder, None if allowed is None else AllowList(allowed))
        made.append(transport(local=local, keys=keys))
        folder.announce(made[-1].control, made[-1].bulk, 0, PAIRS[local].public)
        return made[-1]

    yield make
    for one in made:
        one.close()


def write(path: Path, pairs: list[KeyPair]) -> Path:
    path.write_text("".join(f"{pair.public} somebody\n" for pair in pairs))
    return path


def drive(watched: WatchedTransport, seconds: float) -> None:
    end = time.monotonic() + seconds
    watched.until(lambda: time.monotonic() > end, "a while")


def test_who_is_not_on_the_list_is_named_once_and_let_in_when_it_is_added(peer, tmp_path: Path):
    path = write(tmp_path / "allowed", PAIRS[:1])
    one, other, third = peer(0, path), peer(1, None), peer(2, None)
    for knocking in (other, third):
        knocking._table._keys.refresh()
        knocking.connect(0, one.control, one.bulk)
    one._table._keys.refresh()
    watched = WatchedTransport(one, other, third)
    watched.until(lambda: len(notices(one)) >= 2 and bool(notices(other)), "lines on both sides")
    drive(watched, 1.0)
    assert notices(one) == [
        (
            f"peer {number} is not admitted: its key {pair.public[:8]}... (fingerprint "
            f"{fingerprint(pair.public)}) is not on the allow-list {path}"
        )
        for number, pair in ((1, PAIRS[1]), (2, PAIRS[2]))
    ]
    assert PAIRS[1].public in one.traffic.notices[0].hint
    assert [notice.about for notice in (*one.traffic.notices, *other.traffic.notices)][:3] == [
        1,
        2,
        0,
    ]
    write(path, PAIRS[:2])
    watched.until(lambda: LinkUp(0) in watched.heard[other], "a link")
    assert len(notices(one)) == 2


def test_who_is_struck_off_while_it_runs_is_told_as_that_on_both_sides(peer, tmp_path: Path):
    path = write(tmp_path / "allowed", PAIRS[:2])
    one, other = peer(0, path), peer(1, path)
    for mine, there, number in ((one, other, 1), (other, one, 0)):
        mine._table._keys.refresh()
        mine.connect(number, there.control, there.bulk)
    watched = WatchedTransport(one, other)
    watched.until(
        lambda: LinkUp(1) in watched.heard[one] and LinkUp(0) in watched.heard[other], "links"
    )
    write(path, PAIRS[:1])
    watched.until(lambda: bool(notices(one) and notices(other)), "lines on both sides")
    drive(watched, 1.0)
    struck = (
        f"{PAIRS[1].public[:8]}... (fingerprint {fingerprint(PAIRS[1].public)}) was struck off "
        f"the allow-list {path}"
    )
    assert notices(one) == [f"peer 1 is not admitted: its key {struck}"]
    assert [line.partition(" does not admit this peer: ")[2] for line in notices(other)] == [
        f"the local key {struck}"
    ]


def test_a_stranger_with_a_key_that_is_on_no_list_is_told_as_that(peer, tmp_path: Path):
    """Before its seed file is here."""
    path = write(tmp_path / "allowed", PAIRS[:1])
    one, other = peer(0, path), peer(1, None)
    other._table._keys.refresh()
    (tmp_path / "seeds" / "1.addr").unlink()
    other.connect(0, one.control, one.bulk)
    watched = WatchedTransport(one, other)
    watched.until(lambda: bool(notices(one)), "a line")
    assert notices(one)[0].startswith(
        f"rejected a connection from 127.0.0.1: its key {PAIRS[1].public[:8]}... (fingerprint "
    )
    assert notices(one)[0].endswith(f"is not on the allow-list {path}")
