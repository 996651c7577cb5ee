"""Sessions of the sealed payload lane: the keys of a connection, and its sealed records.

CURVE would carry payloads at a third of the speed. So payloads have their own connections, which
are sealed with AES-256-GCM, because processors have instructions for it. CURVE still carries the
secrets of these connections; in a run without keys the secrets are sent in the clear. Each session
is for one connection and one direction:

    control lane                [OFFER: mark, session, secret, incarnation]     sender to receiver
    payload lane                [OPEN: magic, session]                          sender to receiver
                                [WELCOME: random, incarnation] record 0         receiver to sender
                                record 0, record 1, ...                         sender to receiver
    record                      [RECORD: kind, length] sealed data, tag of 16 bytes

Both sides derive a secret for each direction with HKDF, from the secret of the sender. The salt
consists of the session and the random bytes of the receiver. The info has both public keys, both
incarnations and the direction. So each connection has new keys, and so has a connection after a
restart of either side. Record 0 is empty. It proves that its sender has the key; before that,
nothing is stored or allocated.

The nonce of a record is its number, which is not sent. So a repeated or moved record fails to
decrypt, and no record can be omitted. The head of a record is authenticated together with it. After
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
chunk that follows it."""
RECORDS_A_KEY = 2**19
"""Number of records under one key. Each record has at most 1 MiB, and every other one is small. An
attacker can distinguish 2**34 blocks of AES under one key from a random function with an advantage
of at most 2**-61. GCM itself limits the number of records to 2**32."""

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
    """Offer of a session. The sender of payloads sends it to the receiver over the control lane,
    once for each connection.

    Attributes:
        session: Name of the session, by which a connection identifies its peer. An observer can
            send the name as well, but has no key.
        secret: ``SECRET_BYTES`` random bytes for this session only. It is never shown.
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
        """Return the offer in ``frame``. Raises: Malformed: ``frame`` is not an offer."""
        if len(frame) != OFFER.size or frame[0] != OFFER_MARK:
            raise Malformed("not an offer of a session")
        return cls(*OFFER.unpack(frame)[1:])


@dataclass(frozen=True, slots=True)
class SessionParties:
    """Both sides of a session.

    Attributes:
        sender, receiver: Public keys of both sides, as text.
        sender_incarnation, receiver_incarnation: Incarnations of both sides at the start.
    """

    sender: str
    receiver: str
    sender_incarnation: int
    receiver_incarnation: int


def derive_secrets(
    offer: SessionOffer, random: bytes, parties: SessionParties
) -> tuple[bytes, bytes]:
    """Return two secrets of ``SECRET_BYTES``: the secret for the direction from sender to receiver,
    and the secret for the opposite direction.

    Args:
        random: ``SECRET_BYTES`` random bytes of the receiver, which need not be secret.
    """
    between = b"".join(
        (
            _LABEL,
            parties.sender.encode("ascii"),
            parties.receiver.encode("ascii"),
            _INCARNATIONS.pack(parties.sender_incarnation, parties.receiver_incarnation),
        )
    )
    salt = offer.session + random
    there, back = (
        HKDF(SHA256(), SECRET_BYTES, salt, between + direction).derive(offer.secret)
        for direction in (b"sender to receiver", b"receiver to sender")
    )
    return there, back


class _KeyChain:
    """Successive keys of one direction, and the number of the next record."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.number = 0
        self._use()

    def _use(self) -> None:
        self.key = AESGCM(_expand(self._secret, b"key"))
        self._secret = _expand(self._secret, b"next secret")

    def nonce(self) -> bytes:
        """Return the nonce of the next record, which must be used once. ``key`` becomes the key of
        this record. Numbers continue across keys, so no nonce repeats."""
        number = self.number
        if number and number % RECORDS_A_KEY == 0:
            self._use()
        self.number = number + 1
        return number.to_bytes(NONCE_BYTES, "big")


def _expand(secret: bytes, purpose: bytes) -> bytes:
    return HKDFExpand(SHA256(), SECRET_BYTES, purpose).derive(secret)


class RecordSealer:
    """Sealer of the records of one direction.

    Args:
        secret: Secret of this direction of this session. No other sealer may have it.
    """

    def __init__(self, secret: bytes) -> None:
        self._chain = _KeyChain(secret)

    def seal_into(self, kind: int, data: bytes | memoryview, room: memoryview) -> int:
        """Write the next record to the start of ``room``. Return the size of the record, which is
        ``len(data) + OVERHEAD``."""
        end = RECORD.size + len(data) + TAG_BYTES
        RECORD.pack_into(room, 0, kind, len(data))
        nonce = self._chain.nonce()
        self._chain.key.encrypt_into(nonce, data, room[: RECORD.size], room[RECORD.size : end])
        return end

    def proof(self) -> bytes:
        """Return an empty record."""
        room = bytearray(PROOF_BYTES)
        self.seal_into(PROOF, b"", memoryview(room))
        return bytes(room)


class RecordOpener:
    """Opener of the records of one direction, in the order in which they were sealed. After the
    first invalid record, it opens no further record."""

    def __init__(self, secret: bytes) -> None:
        self._chain = _KeyChain(secret)
        self._broken = False

    def open_into(self, head: bytes | memoryview, sealed: memoryview, room: memoryview) -> None:
        """Open the next record into ``room``, which has the size of the record's data.

        Args:
            head: Head of the record, ``RECORD.size`` bytes.
            sealed: Sealed data and tag.
        Raises: Malformed: It is not the next record of this session. The content of ``room`` must
            not be used then.
        """
        if self._broken or len(sealed) != len(room) + TAG_BYTES:
            self._broken = True
            raise Malformed("a record after one that failed to decrypt, or of another size")
        nonce = self._chain.nonce()
        try:
            self._chain.key.decrypt_into(nonce, sealed, head, room)
        except InvalidTag:
            self._broken = True
            raise Malformed("not the next record of this session") from None

    def pass_over(self) -> None:
        """Skip the next record. Its content is not needed."""
        self._chain.nonce()

    def open_proof(self, record: memoryview) -> None:
        """Open an empty record. Raises: Malformed: The record is not empty, or is not the next one
        of this session."""
        if len(record) != PROOF_BYTES or RECORD.unpack_from(record) != (PROOF, 0):
            raise Malformed("not an empty record")
        self.open_into(record[: RECORD.size], record[RECORD.size :], memoryview(bytearray()))


class OpeningSession:
    """Sender's side of a session, until the receiver sends its welcome."""

    def __init__(self, sender: str, receiver: str, incarnation: int) -> None:
        """Args: ``sender``, ``receiver``: Public keys. ``incarnation``: Incarnation of the
        sender."""
        self._sender, self._receiver = sender, receiver
        self.offer = SessionOffer.draw(incarnation)
        self.opening = OPEN.pack(MAGIC, self.offer.session)

    def welcomed(self, welcome: bytes) -> RecordSealer:
        """Return the sealer of the session. Raises: Malformed: The welcome does not come from the
        receiver of the offer."""
        if len(welcome) != WELCOME_BYTES:
            raise Malformed("not a welcome")
        random, incarnation = WELCOME.unpack_from(welcome)
        parties = SessionParties(self._sender, self._receiver, self.offer.incarnation, incarnation)
        there, back = derive_secrets(self.offer, random, parties)
        RecordOpener(back).open_proof(memoryview(welcome)[WELCOME.size :])
        return RecordSealer(there)


def make_welcome(
    offer: SessionOffer, sender: str, receiver: str, incarnation: int
) -> tuple[bytes, RecordOpener]:
    """Return the receiver's reply to a connection that names the session, and the opener of the
    connection's records.

    Args:
        sender, receiver: Public keys.
        incarnation: Incarnation of the receiver.
    """
    random = os.urandom(SECRET_BYTES)
    parties = SessionParties(sender, receiver, offer.incarnation, incarnation)
    there, back = derive_secrets(offer, random, parties)
    return WELCOME.pack(random, incarnation) + RecordSealer(back).proof(), RecordOpener(there)


def session_of(opening: bytes | bytearray) -> bytes:
    """Return the session that a connection names. Raises: Malformed: ``opening`` is invalid."""
    magic, session = OPEN.unpack(opening)
    if magic != MAGIC:
        raise Malformed("not a connection of the payload lane")
    named: bytes = session
    return named
