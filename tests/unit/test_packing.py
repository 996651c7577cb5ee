"""Tables as bytes: what others take, and no more."""

from __future__ import annotations

import json
import random
import zlib

import pytest

from gossip.core import (
    CORE_BYTES_MAX,
    Commit,
    Contribution,
    Envelope,
    TrustSettings,
    TrustTable,
    attested_digest,
)
from gossip.core.ledger import packing
from gossip.core.ledger.packing import pack_json, squeeze, stretch, unpack_json
from gossip.transport import HEADER_BYTES_MAX, encode


def test_a_document_comes_back() -> None:
    document = [[0, 1, 2], {"chain": "ab"}, 1.25, None]
    assert unpack_json(pack_json(document)) == document
    assert pack_json(document) == pack_json(json.loads(json.dumps(document)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[1, 2]",
        squeeze(b"[1, 2]")[:-1],
        squeeze(b"[1, 2]") + b"x",
        squeeze(b"[1, 2"),
        squeeze(b"[" * 100_000),
        zlib.compress(bytes(packing.UNPACKED_BYTES_MAX + 1)),
        squeeze(b"[" + b"[]," * packing.LISTS_MAX + b"0]"),
        squeeze(b"[" + b"0," * packing.VALUES_MAX + b"0,0]"),
    ],
    ids=["nothing", "plain", "cut", "more", "not JSON", "nested", "too much", "lists", "values"],
)
def test_whatever_else_a_peer_sends_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack_json(data)


def test_little_is_never_unpacked_to_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "UNPACKED_BYTES_MAX", 1000)
    assert stretch(squeeze(bytes(1000))) == bytes(1000)
    with pytest.raises(ValueError, match="longer than 1000 bytes"):
        stretch(squeeze(bytes(1001)))


def test_what_is_known_of_a_thousand_peers_fits_a_message() -> None:
    """With full windows, and with what else a snapshot has of each peer."""
    drawn, n = random.Random(3), 1000
    table = TrustTable(TrustSettings(), 0, [1])
    for round_id in range(25):
        far = [drawn.lognormvariate(0.0, 0.3) for _ in range(n)]
        contributors = [Contribution(peer, 32, 1.0 / n, far[peer]) for peer in range(n)]
        table.observe_commit(round_id, contributors, [], roster=range(n))
    beside = [[peer, 32 * peer, 32 * peer + 32] for peer in range(n)]
    packed = pack_json([list(range(n)), table.pack(), beside])
    assert 40_000 < len(packed) <= CORE_BYTES_MAX
    text = stretch(packed)
    assert len(text) < packing.UNPACKED_BYTES_MAX // 1.9
    assert text.count(b"[") < packing.LISTS_MAX // 3.9
    assert text.count(b",") * CORE_BYTES_MAX / len(packed) < packing.VALUES_MAX, "all that fits"
    other = TrustTable(TrustSettings(), 0, [1])
    other.unpack(unpack_json(packed)[1])
    assert other.pack() == table.pack()


def test_a_commit_of_a_thousand_peers_fits_a_message() -> None:
    drawn, n = random.Random(4), 1000
    contributors = tuple(
        [Contribution(peer, 32, drawn.random(), drawn.random(), 123_456) for peer in range(n)]
    )
    commit = Commit(
        bytes(8), 1000, 0, 0, 0, 1, bytes(16), bytes(16), contributors, (), tuple(range(n)), 0.5, ""
    )
    assert len(encode(Envelope(bytes(8), 1, 0, commit))) <= HEADER_BYTES_MAX // 2


def test_what_is_vouched_for_does_not_depend_on_how_it_is_compressed() -> None:
    """Hosts may have other builds of zlib."""
    text = json.dumps([[0, 1, 2], [[0.25] * 50], []]).encode()
    cores = {zlib.compress(text, level) for level in (0, 1, 9)}
    assert len(cores) == 3
    assert len({attested_digest(b"l" * 8, 7, b"c" * 16, core, b"s" * 16) for core in cores}) == 1
