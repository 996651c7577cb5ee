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
            facts: tuple[Any, ...] = said, event.payload
        else:
            facts = tuple([getattr(event, name) for name in type(event).__match_args__])
        head = f"{now_ns} {peer} {type(event).__name__} "
        self._hash.update(head.encode() + _described(facts))

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _described(value: Any) -> bytes:
    """Return bytes for a part of an event that do not depend on memory addresses."""
    if isinstance(value, tuple):
        return b" ".join(map(_described, value))
    if isinstance(value, Payload):
        content = value.digest or bytes_of_state(value)
        return b"%d %d %b" % (value.nbytes, value.finite, content)
    return repr(value).encode()
