"""Hash of all delivered events of a run, with their times. Runs with equal hashes are identical."""

from __future__ import annotations

import hashlib
import struct
from array import array
from typing import Any

from gossip.core import Event, Payload, PeerId, events

PIECES_MAX = 2048  # hashed at once, which is several times faster

_HEAD = struct.Struct("<QIB")  # time in ns, peer, kind of record
_NUMBERS = struct.Struct("<QQ")
_TIMER = struct.Struct("<QIBQ")
_REAL = struct.Struct("<d")
_PROGRESS = struct.Struct("<QIBQd")
_AS_SENT, _AS_TOLD, _FIRED, _GOES_ON = range(4)


class Trace:
    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._pieces: list[bytes] = []

    def delivered(self, now_ns: int, peer: PeerId, event: Event, said: bytes | None = None) -> None:
        """Add a delivered event to the hash. ``said`` has the bytes of a received message, if
        messages are encoded."""
        kind, pieces = type(event), self._pieces
        of_kind: Any = event  # types are compared, which is faster than isinstance
        if said is not None:
            pieces += (_HEAD.pack(now_ns, peer, _AS_SENT), said)
            if of_kind.payload is not None:
                pieces.append(_facts(of_kind.payload))
        elif kind is events.TimerFired:
            pieces.append(_TIMER.pack(now_ns, peer, _FIRED, of_kind.token))
        elif kind is events.TrainerProgress:
            pieces.append(_PROGRESS.pack(now_ns, peer, _GOES_ON, of_kind.step, of_kind.age_s))
        else:
            pieces.append(_HEAD.pack(now_ns, peer, _AS_TOLD))
            pieces.append(_words(event))
        if len(pieces) >= PIECES_MAX:
            self._absorb()

    def hexdigest(self) -> str:
        self._absorb()
        return self._hash.hexdigest()

    def _absorb(self) -> None:
        self._hash.update(b"".join(self._pieces))
        self._pieces.clear()


def _words(event: Event) -> bytes:
    """Return bytes for the event that do not depend on memory addresses."""
    match event:
        case events.Received(sender, incarnation, message, payload):
            return f"Received {sender}.{incarnation} {message!r} ".encode() + _facts(payload)
        case events.Contributed(round_id, samples, payloads, loss):
            head = b"Contributed" + _NUMBERS.pack(round_id, samples) + _real(loss)
            return b" ".join([head, *[_facts(payload) for payload in payloads]])
        case events.Applied(round_id):
            return b"Applied %d" % round_id
        case events.Aggregated(ticket, payload):
            return b"Aggregated %d %b %b " % (
                ticket,
                array("d", event.weights).tobytes(),
                event.reason.encode(),
            ) + _facts(payload)
        case events.SnapshotTaken(round_id, payload):
            return b"SnapshotTaken %d " % round_id + _facts(payload)
        case _:
            return repr(event).encode()


def _real(value: float | None) -> bytes:
    return b"-" if value is None else _REAL.pack(value)


def _facts(payload: Payload | None) -> bytes:
    if payload is None:
        return b"-"
    tobytes = getattr(payload.data, "tobytes", None)
    content = payload.digest or (tobytes() if tobytes else b"")
    return _NUMBERS.pack(payload.nbytes, payload.finite) + content
