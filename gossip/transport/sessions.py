"""Sessions of the sealed bulk lane: the keys of a connection, and its sealed records.

CURVE would carry payloads at a third of the speed. So payloads have their own connections, which
are sealed with AES-256-GCM, for which processors have instructions. The secrets of these
connections are sent over CURVE. In a run without keys the secrets are sent in the clear. Each
session is for one connection, which carries payloads in one direction:

    control lane                [OFFER: mark, session, secret, incarnation]     sender to receiver
    bulk lane                   [OPEN: magic, session]                          sender to receiver
                                [WELCOME: random, incarnation] record 0         receiver to sender
                                record 0, record 1, ...                         sender to receiver
    record                      [RECORD: kind, length] sealed data, tag of 16 bytes

Both sides derive a secret for each direction with HKDF, from the secret of the sender. The salt
consists of the session and the random bytes of the receiver. The info has both public keys, both
incarnations and the direction. So each connection has new keys, also after a restart of one side.
Record 0 is empty. It proves that its sender has the key. Before this proof, nothing is stored or
allocated for the sender.

The nonce of a record is the record's number, which is not sent. So a repeated, moved or omitted
record makes decryption fail. The head of a record is authenticated together with its data. After
``RECORDS_A_KEY`` records, both sides use the next key of the chain.

Sources: NIST SP 800-38D (GCM); RFC 5869 (HKDF); RFC 8446, 5.2, 5.3, 5.5 and 7.2 (records, nonces
and key updates of TLS 1.3, on which these are modelled).
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from gossip.errors import Malformed

from .chunks import OFFER_MARK

SESSION_BYTES = 16
SECRET_BYTES = 32
TAG_BYTES = 16
NONCE_BYTES = 12
MAGIC = b"gsl1"

PROOF, MESSAGE, HEADER, CHUNK = 1, 2, 3, 4
"""Kinds of records: an empty record, a message without a payload, the header of a chunk, and the
chunk that follows the header."""
RECORDS_A_KEY = 2**19
"""Number of records that are sealed with one key. A record has at most 1 MiB, and every second
record is a small header, so these are at most 2**34 blocks of AES. An attacker can distinguish them
from the output of a random function with an advantage of at most 2**-61. GCM itself limits the
number of records to 2**32."""

OFFER = struct.Struct(f"<Bxxx{SESSION_BYTES}s{SECRET_BYTES}sQ")
OPEN = struct.Struct(f"<4s{SESSION_BYTES}s")
WELCOME = struct.Struct(f"<{SECRET_BYTES}sQ")
RECORD = struct.Struct("<BxxxI")
OVERHEAD = RECORD.size + TAG_BYTES
PROOF_BYTES = OVERHEAD
WELCOME_BYTES = WELCOME.size + PROOF_BYTES

_LABEL: Final = b"gossip payload lane, version 1"
_INCARNATIONS = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class SessionOffer:
    """Offer of a session. The sender of payloads sends an offer to the receiver over the control
    lane, one for each connection.

    Attributes:
        session: Random name of the session. A connection sends it to identify its peer. An observer
            of the network can send the name, too, but does not have the keys.
        secret: ``SECRET_BYTES`` random bytes for this session only. ``repr`` does not show them.
        incarnation: Incarnation of the sender.
    """

    session: bytes
    secret: bytes = field(repr=False)
    incarnation: int

    @classmethod
    def draw(cls, incarnation: int) -> SessionOffer:
        return cls(os.urandom(SESSION_BYTES), os.urandom(SECRET_BYTES), incarnation)

    def encode(self) -> bytes:
        return OFFER.pack(OFFER_MARK, self.session, self.secret, self.incarnation)

    @classmethod
    def decode(cls, frame: bytes) -> SessionOffer:
        """Return the offer that ``frame`` contains. Raises: Malformed: ``frame`` is not an
        offer."""
        if len(frame) != OFFER.size or frame[0] != OFFER_MARK:
            raise Malformed("not an offer of a session")
        return cls(*OFFER.unpack(frame)[1:])


def derive_secrets(
    offer: SessionOffer, random: bytes, sender: str, receiver: str, incarnation: int
) -> tuple[bytes, bytes]:
    """Return two secrets of ``SECRET_BYTES``: the secret for the direction from sender to receiver,
    and the secret for the opposite direction.

    Args:
        random: ``SECRET_BYTES`` random bytes of the receiver, which need not be secret.
        sender, receiver: Public keys of both sides, as text; "" without keys.
        incarnation: Incarnation of the receiver when the session begins.
    """
    between = b"".join(
        (
            _LABEL,
            sender.encode("ascii"),
            receiver.encode("ascii"),
            _INCARNATIONS.pack(offer.incarnation, incarnation),
        )
    )
    salt = offer.session + random
    there, back = (
        HKDF(SHA256(), SECRET_BYTES, salt, between + direction).derive(offer.secret)
        for direction in (b"sender to receiver", b"receiver to sender")
    )
    return there, back


class _KeyChain:
    """Successive keys for the records of one direction, and the number of the next record."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.number = 0
        self._use()

    def _use(self) -> None:
        self.key = AESGCM(_expand(self._secret, b"key"))
        self._secret = _expand(self._secret, b"next secret")

    def nonce(self) -> bytes:
        """Return the nonce of the next record, and set ``key`` to the key of that record. The nonce
        must be used only once. Numbers continue when the key changes, so no nonce is repeated."""
        number = self.number
        if number and number % RECORDS_A_KEY == 0:
            self._use()
        self.number = number + 1
        return number.to_bytes(NONCE_BYTES, "big")


def _expand(secret: bytes, purpose: bytes) -> bytes:
    return HKDFExpand(SHA256(), SECRET_BYTES, purpose).derive(secret)


class RecordSealer:
    """Encrypts and authenticates the records of one direction.

    Args:
        secret: Secret of the session for this direction. No other sealer may use the same secret.
    """

    def __init__(self, secret: bytes) -> None:
        self._chain = _KeyChain(secret)

    def seal_into(self, kind: int, data: bytes | memoryview, room: memoryview) -> int:
        """Seal ``data`` as the next record, at the start of ``room``. Return the size of the
        record, which is ``len(data) + OVERHEAD``."""
        end = RECORD.size + len(data) + TAG_BYTES
        RECORD.pack_into(room, 0, kind, len(data))
        nonce = self._chain.nonce()
        self._chain.key.encrypt_into(nonce, data, room[: RECORD.size], room[RECORD.size : end])
        return end

    def proof(self) -> bytes:
        """Return the next record, without data. It proves that this side has the secret."""
        room = bytearray(PROOF_BYTES)
        self.seal_into(PROOF, b"", memoryview(room))
        return bytes(room)


class RecordOpener:
    """Decrypts and verifies the records of one direction, in the order in which they were sealed.
    After an invalid record, it rejects all further records."""

    def __init__(self, secret: bytes) -> None:
        self._chain = _KeyChain(secret)
        self._broken = False

    def open_into(self, head: bytes | memoryview, sealed: memoryview, room: memoryview) -> None:
        """Open the next record and write its data to ``room``, which has the size of the data.

        Args:
            head: Head of the record, ``RECORD.size`` bytes.
            sealed: Sealed data and tag of the record.
        Raises: Malformed: The record is not the next record of this session. The content of
        ``room`` must not be used then.
        """
        if self._broken or len(sealed) != len(room) + TAG_BYTES:
            self._broken = True
            raise Malformed("a record after an invalid record, or of a wrong size")
        nonce = self._chain.nonce()
        try:
            self._chain.key.decrypt_into(nonce, sealed, head, room)
        except InvalidTag:
            self._broken = True
            raise Malformed("not the next record of this session") from None

    def pass_over(self) -> None:
        """Skip the next record without opening it."""
        self._chain.nonce()

    def open_proof(self, record: memoryview) -> None:
        """Verify an empty record. Raises: Malformed: The record is not empty, or is not the next
        record of this session."""
        if len(record) != PROOF_BYTES or RECORD.unpack_from(record) != (PROOF, 0):
            raise Malformed("not an empty record")
        self.open_into(record[: RECORD.size], record[RECORD.size :], memoryview(bytearray()))


class OpeningSession:
    """A session at the sender, until the receiver sends its welcome."""

    def __init__(self, sender: str, receiver: str, incarnation: int) -> None:
        """``sender``, ``receiver``: Public keys of both sides; "" without keys. ``incarnation``:
        Incarnation of the sender."""
        self._sender, self._receiver = sender, receiver
        self.offer = SessionOffer.draw(incarnation)
        self.opening = OPEN.pack(MAGIC, self.offer.session)

    def welcomed(self, welcome: bytes) -> RecordSealer:
        """Return the sealer of the session. Raises: Malformed: The welcome does not come from the
        receiver of the offer."""
        if len(welcome) != WELCOME_BYTES:
            raise Malformed("not a welcome")
        random, incarnation = WELCOME.unpack_from(welcome)
        there, back = derive_secrets(self.offer, random, self._sender, self._receiver, incarnation)
        RecordOpener(back).open_proof(memoryview(welcome)[WELCOME.size :])
        return RecordSealer(there)


def make_welcome(
    offer: SessionOffer, sender: str, receiver: str, incarnation: int
) -> tuple[bytes, RecordOpener]:
    """Return the receiver's reply to a connection that has named the session, and the opener for
    the records of the connection.

    Args:
        sender, receiver: Public keys of both sides; "" without keys.
        incarnation: Incarnation of the receiver.
    """
    random = os.urandom(SECRET_BYTES)
    there, back = derive_secrets(offer, random, sender, receiver, incarnation)
    return WELCOME.pack(random, incarnation) + RecordSealer(back).proof(), RecordOpener(there)


def session_of(opening: bytes | bytearray) -> bytes:
    """Return the session that a connection names. Raises: Malformed: ``opening`` is invalid."""
    magic, session = OPEN.unpack(opening)
    if magic != MAGIC:
        raise Malformed("not a connection of the bulk lane")
    named: bytes = session
    return named
