"""Hash of all delivered events of a run, with their times. Runs with equal hashes are identical."""

from __future__ import annotations

import hashlib
from typing import Any

from gossip.core import Event, Payload, PeerId, events

from .toy_payloads import bytes_of_state


class Trace:
    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def delivered(self, now_ns: int, peer: PeerId, event: Event, said: bytes | None = None) -> None:
        """Add a delivered event to the hash. ``said`` has the bytes of a received message, if
        messages are encoded."""
        if isinstance(event, events.Received) and said is not None:
            self._hash.update(said)
            facts: Any = _described(event.payload)
        else:
            facts = [_described(getattr(event, name)) for name in type(event).__match_args__]
        self._hash.update(f"{now_ns} {peer} {type(event).__name__} {facts}".encode())

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _described(value: Any) -> Any:
    """Return a part of an event, with a payload's bytes instead of its memory address."""
    if isinstance(value, Payload):
        return value.nbytes, value.finite, value.digest or bytes_of_state(value)
    return [_described(part) for part in value] if isinstance(value, tuple) else value
