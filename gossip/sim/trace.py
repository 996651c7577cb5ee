"""A hash of all that was delivered in a run, and when: two runs with the same one are the same run."""

from __future__ import annotations

import hashlib

from gossip.core import events
from gossip.core.events import Event, Payload
from gossip.core.messages import PeerId


class Trace:
    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def delivered(self, now: float, peer: PeerId, event: Event) -> None:
        self._hash.update(f"{now!r} {peer} {fingerprint(event)}\n".encode())

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def fingerprint(event: Event) -> str:
    """What happened, in words that do not depend on where objects lie in memory."""
    match event:
        case events.Received(sender, incarnation, message, payload):
            return f"Received {sender}.{incarnation} {message!r} {_facts(payload)}"
        case events.Contributed():
            return f"Contributed {event.round_id} {event.samples} {[_facts(p) for p in event.payloads]} {event.loss!r}"
        case events.Aggregated(ticket, payload):
            return f"Aggregated {ticket} {_facts(payload)} {event.weights!r} {event.reason}"
        case events.SnapshotTaken(round_id, payload):
            return f"SnapshotTaken {round_id} {_facts(payload)}"
        case _:
            return repr(event)


def _facts(payload: Payload | None) -> str:
    if payload is None:
        return "-"
    tobytes = getattr(payload.data, "tobytes", None)
    digest = payload.digest or (hashlib.blake2b(tobytes(), digest_size=16).digest() if tobytes else b"")
    return f"{payload.nbytes} {payload.finite} {digest.hex()}"
