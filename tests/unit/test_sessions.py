"""Keys of the payload lane: what opens, and what does not."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gossip.errors import Malformed
from gossip.transport import sessions
from gossip.transport.sessions import (
    CHUNK,
    MESSAGE,
    OPEN,
    OVERHEAD,
    RECORD,
    TAG_BYTES,
    WELCOME,
    OpeningSession,
    RecordOpener,
    RecordSealer,
    SessionOffer,
    derive_secrets,
    make_welcome,
    session_of,
)

SENDER, RECEIVER, OTHER = "s" * 40, "r" * 40, "o" * 40
OFFER = SessionOffer(b"i" * 16, b"x" * 32, 7)
RANDOM = b"w" * 32


def secret(
    offer: SessionOffer = OFFER,
    random: bytes = RANDOM,
    sender: str = SENDER,
    receiver: str = RECEIVER,
    incarnation: int = 9,
) -> bytes:
    return derive_secrets(offer, random, sender, receiver, incarnation)[0]


def seal(sealer: RecordSealer, data: bytes, kind: int = CHUNK) -> bytes:
    room = bytearray(len(data) + OVERHEAD)
    assert sealer.seal_into(kind, data, memoryview(room)) == len(room)
    return bytes(room)


def opened(opener: RecordOpener, record: bytes) -> bytes:
    """Raises: Malformed."""
    room = bytearray(max(0, len(record) - OVERHEAD))
    view = memoryview(record)
    opener.open_into(view[: RECORD.size], view[RECORD.size :], memoryview(room))
    return bytes(room)


def a_pair() -> tuple[RecordSealer, RecordOpener]:
    return RecordSealer(secret()), RecordOpener(secret())


def test_what_is_sealed_opens_in_its_order():
    sealer, opener = a_pair()
    said = [b"", b"a", b"header" * 9, bytes(70_000)]
    assert [opened(opener, seal(sealer, data)) for data in said] == said


def test_nothing_of_the_data_is_in_a_record():
    sealer, _ = a_pair()
    record = seal(sealer, b"0123456789abcdef" * 8)
    assert b"0123456789abcdef" not in record
    assert seal(sealer, b"0123456789abcdef" * 8)[RECORD.size :] != record[RECORD.size :]


def test_the_records_are_those_of_the_documents():
    """RFC 5869 by hand, and GCM with the number of the record as the nonce."""

    def hkdf(ikm: bytes, salt: bytes, info: bytes) -> bytes:
        return expand(hmac.digest(salt, ikm, hashlib.sha256), info)

    def expand(key: bytes, info: bytes) -> bytes:
        return hmac.digest(key, info + b"\x01", hashlib.sha256)

    info = b"".join(
        (
            b"gossip payload lane, version 1",
            SENDER.encode() + RECEIVER.encode(),
            (7).to_bytes(8, "little") + (9).to_bytes(8, "little"),
            b"sender to receiver",
        )
    )
    by_hand = hkdf(OFFER.secret, OFFER.session + RANDOM, info)
    assert secret() == by_hand
    sealer = RecordSealer(by_hand)
    seal(sealer, b"first")
    head = RECORD.pack(CHUNK, 6)
    key = AESGCM(expand(by_hand, b"key"))
    assert seal(sealer, b"second") == head + key.encrypt((1).to_bytes(12, "big"), b"second", head)


REFUSED: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "again": lambda r: [r[0], r[0]],
    "in another order": lambda r: [r[1], r[0]],
    "one left out": lambda r: [r[0], r[2]],
    "a former one": lambda r: [r[0], r[1], r[0]],
    "cut short": lambda r: [r[0][:-1]],
    "the tag cut off": lambda r: [r[0][:-TAG_BYTES]],
    "longer": lambda r: [r[0] + b"\0"],
    "nothing": lambda r: [r[0][: RECORD.size]],
    "the tag of another": lambda r: [r[0][:-TAG_BYTES] + r[1][-TAG_BYTES:]],
    "the head of another kind": lambda r: [RECORD.pack(MESSAGE, 5) + r[0][RECORD.size :]],
}


@pytest.mark.parametrize("how", REFUSED)
def test_only_the_next_record_opens(how: str):
    sealer, opener = a_pair()
    records = [seal(sealer, data) for data in (b"one", b"two", b"three")]
    *before, last = REFUSED[how](records)
    if how != "in another order":
        for record in before:
            opened(opener, record)
    else:
        last = before[0]
    with pytest.raises(Malformed):
        opened(opener, last)


def test_a_flipped_bit_anywhere_is_found():
    record = seal(a_pair()[0], b"some data")
    for bit in range(8 * len(record)):
        changed = bytearray(record)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Malformed):
            opened(a_pair()[1], bytes(changed))


def test_behind_a_record_that_does_not_open_none_does():
    sealer, opener = a_pair()
    first, second = seal(sealer, b"one"), seal(sealer, b"two")
    with pytest.raises(Malformed):
        opened(opener, second)
    for record in (second, first):
        with pytest.raises(Malformed):
            opened(opener, record)


def test_a_record_that_nobody_wants_keeps_its_number():
    sealer, opener = a_pair()
    records = [seal(sealer, data) for data in (b"one", b"two", b"three")]
    opened(opener, records[0])
    opener.pass_over()
    assert opened(opener, records[2]) == b"three"


OTHERS = {
    "direction": lambda: derive_secrets(OFFER, RANDOM, SENDER, RECEIVER, 9)[1],
    "session": lambda: secret(replace(OFFER, session=b"j" * 16)),
    "secret": lambda: secret(replace(OFFER, secret=b"y" * 32)),
    "answer": lambda: secret(random=b"v" * 32),
    "sender": lambda: secret(sender=OTHER),
    "receiver": lambda: secret(receiver=OTHER),
    "both keys, exchanged": lambda: secret(sender=RECEIVER, receiver=SENDER),
    "life of the sender": lambda: secret(replace(OFFER, incarnation=8)),
    "life of the receiver": lambda: secret(incarnation=10),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_sealed_for_one_session_opens_in_no_other(other: str):
    record = seal(a_pair()[0], b"data")
    with pytest.raises(Malformed):
        opened(RecordOpener(OTHERS[other]()), record)


# --- many records ---------------------------------------------------------------------------------


def test_keys_follow_each_other_on_both_sides(monkeypatch):
    monkeypatch.setattr(sessions, "RECORDS_A_KEY", 3)
    sealer, opener = a_pair()
    keys = []
    for number in range(10):
        assert opened(opener, seal(sealer, b"%d" % number)) == b"%d" % number
        keys.append(sealer._chain.key)
    assert len(set(map(id, keys))) == 4
    assert sealer._chain.number == 10


def test_at_the_border_of_two_keys_only_the_next_record_opens(monkeypatch):
    monkeypatch.setattr(sessions, "RECORDS_A_KEY", 3)
    sealer, opener = a_pair()
    records = [seal(sealer, b"same") for _ in range(5)]
    for record in records[:3]:
        opened(opener, record)
    with pytest.raises(Malformed):
        opened(opener, records[4])
    _, opener = a_pair()
    opener._chain.number = 3  # of the next key, under the former one
    opener._chain._use = lambda: None
    with pytest.raises(Malformed):
        opened(opener, records[3])


def test_no_number_comes_again(monkeypatch):
    """Behind the last one there is none: not the first again."""
    sealer, _ = a_pair()
    assert sessions.RECORDS_A_KEY <= 2**32 // 1024
    sealer._chain.number = 2**96 - 1
    seal(sealer, b"last")
    with pytest.raises(OverflowError):
        seal(sealer, b"one more")


# --- how they begin -------------------------------------------------------------------------------


def test_both_sides_of_a_session_come_to_the_same_keys():
    sender = OpeningSession(SENDER, RECEIVER, 7)
    offer = SessionOffer.decode(sender.offer.encode())
    assert offer == sender.offer
    assert session_of(sender.opening) == offer.session
    welcome, opener = make_welcome(offer, SENDER, RECEIVER, 9)
    sealer = sender.welcomed(welcome)
    opener.open_proof(memoryview(sealer.proof()))
    assert opened(opener, seal(sealer, b"data")) == b"data"


@pytest.mark.parametrize("bit", [0, 8 * 32, 8 * 40, 8 * 44, 8 * WELCOME.size + 8 * 12])
def test_a_welcome_that_was_changed_is_none(bit: int):
    sender = OpeningSession(SENDER, RECEIVER, 7)
    welcome, _ = make_welcome(sender.offer, SENDER, RECEIVER, 9)
    changed = bytearray(welcome)
    changed[bit // 8] ^= 1
    with pytest.raises(Malformed):
        sender.welcomed(bytes(changed))


@pytest.mark.parametrize(
    ("sender", "receiver"), [(OTHER, RECEIVER), (SENDER, OTHER), (RECEIVER, SENDER)]
)
def test_a_welcome_is_for_these_two(sender: str, receiver: str):
    opening = OpeningSession(SENDER, RECEIVER, 7)
    welcome, _ = make_welcome(opening.offer, sender, receiver, 9)
    with pytest.raises(Malformed):
        opening.welcomed(welcome)


def test_a_welcome_does_not_open_as_what_the_sender_says():
    """Its own record, sent back to who said it."""
    opening = OpeningSession(SENDER, RECEIVER, 7)
    welcome, opener = make_welcome(opening.offer, SENDER, RECEIVER, 9)
    with pytest.raises(Malformed):
        opener.open_proof(memoryview(welcome)[WELCOME.size :])


def test_each_connection_has_new_keys():
    """Also of the same two lives; and the receiver's part alone is enough."""
    opening = OpeningSession(SENDER, RECEIVER, 7)
    first, _ = make_welcome(opening.offer, SENDER, RECEIVER, 9)
    second, opener = make_welcome(opening.offer, SENDER, RECEIVER, 9)
    record = seal(opening.welcomed(first), b"", sessions.PROOF)
    with pytest.raises(Malformed):
        opener.open_proof(memoryview(record))
    assert opening.offer.secret != OpeningSession(SENDER, RECEIVER, 7).offer.secret
    assert first != second


@pytest.mark.parametrize(
    "frame",
    [b"", b"\xcf", OFFER.encode()[:-1], OFFER.encode() + b"\0", b"\xc1" + OFFER.encode()[1:]],
)
def test_what_is_no_offer_is_refused(frame: bytes):
    with pytest.raises(Malformed):
        SessionOffer.decode(frame)


def test_a_connection_that_begins_otherwise_names_no_session():
    with pytest.raises(Malformed):
        session_of(OPEN.pack(b"\xff\0\0\0", b"i" * 16))


def test_a_secret_is_never_shown():
    assert OFFER.secret.hex() not in repr(OFFER)
    assert repr(OFFER.secret) not in repr(OFFER)
