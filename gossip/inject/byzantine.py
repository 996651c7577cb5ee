"""Byzantine peers, and the registry of their attacks on messages.

An attack receives one outgoing message and returns the messages to send instead. Real nodes
(``faulty_node``) and simulated nodes (``gossip_lab.simulation.world.liars``) use the same attacks.
The state of the core stays correct, so a Byzantine peer continues to take part in rounds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossip.core import Envelope, Message, Payload, PeerId
from gossip.vectors import payload_digest, to_bytes

OutMessage: TypeAlias = tuple[PeerId, Envelope | bytes, Payload | None]
"""Receiver, envelope (or arbitrary bytes), and payload."""


class Letter(NamedTuple):
    """Message that an honest core sends, with its receiver and payload."""

    to: PeerId
    envelope: Envelope
    payload: Payload | None

    @property
    def message(self) -> Message:
        return self.envelope.message

    def saying(self, **changes: Any) -> Letter:
        """Return a copy of the letter in which these fields of the message are changed."""
        message = replace(self.message, **changes)
        return self._replace(envelope=replace(self.envelope, message=message))

    def holding(self, content: Payload) -> Letter:
        """Return a copy of the letter with the payload ``content``, and the digest of
        ``content`` in the message."""
        return self.saying(digest=content.digest)._replace(payload=content)


@dataclass(slots=True)
class ByzantinePeer:
    """Byzantine peer, with the data that its attacks use.

    Args:
        peers: All peers of the run.
        core: Returns the peer's core, which stays honest; a restart replaces it.
        rng: Random generator for attacks that choose messages at random.
        lies: Names of the peer's attacks. Each attack changes the output of the previous attack.
        rounds: Number of rounds of the run; None means unlimited.
    """

    peer: PeerId
    peers: tuple[PeerId, ...]
    core: Callable[[], Any]
    rng: random.Random
    lies: tuple[str, ...]
    rounds: int | None = None
    # Returns the bytes of a result, given the message that it answers. Simulated peers do not
    # encode.
    written: Callable[[Message, NDArray[Any]], NDArray[np.uint8]] = lambda _, values: to_bytes(
        values
    )
    told: Counter[str] = field(default_factory=Counter)  # attack -> messages that it has replaced
    heard: dict[str, OutMessage] = field(default_factory=dict)  # messages to replay
    # Digests of the results that this peer has forged. It may receive these results from other
    # peers.
    forged: set[bytes] = field(default_factory=set)
    _made: tuple[Any, Payload] | None = None  # last result of ``once``, and its key

    def disguise(self, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[OutMessage]:
        """Return the messages to send instead of the one in ``envelope``."""
        out_messages: list[OutMessage] = [(to, envelope, payload)]
        for name in self.lies:
            replaced: list[OutMessage] = []
            for receiver, what, content in out_messages:
                instead = (
                    LIES[name](self, Letter(receiver, what, content))
                    if isinstance(what, Envelope)
                    else None
                )
                self.told[name] += instead is not None
                replaced += [(receiver, what, content)] if instead is None else instead
            out_messages = replaced
        return out_messages

    def forge(self, values: NDArray[Any], result_of: Message | None = None) -> Payload:
        """Return a float payload with its metadata. The memory of ``values`` becomes read-only,
        because several peers receive the payload.

        Args:
            result_of: Commit of the forged result, or the update to which the result replies. If
                None, the payload has no digest.
        """
        values = np.ascontiguousarray(values)
        values.setflags(write=False)
        content = to_bytes(values) if result_of is None else self.written(result_of, values)
        return Payload(
            values,
            len(content),
            bool(np.isfinite(values).all()),
            b"" if result_of is None else payload_digest(content),
        )

    def once(self, key: tuple[str, bytes], make: Callable[[], Payload]) -> Payload:
        """Return the forged payload for ``key``, which is the same for all receivers. The last
        payload is cached, because forging megabytes takes long."""
        if self._made is None or self._made[0] != key:
            self._made = (key, make())
        return self._made[1]


Instead: TypeAlias = Sequence[OutMessage] | None
"""Messages to send in place of a letter; None if the letter is sent unchanged."""
Lie: TypeAlias = Callable[[ByzantinePeer, Letter], Instead]

LIES: dict[str, Lie] = {}


def lie(function: Lie) -> Lie:
    """Register an attack under the name of its function."""
    LIES[function.__name__] = function
    return function
