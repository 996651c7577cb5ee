"""Byzantine peers, the lies that they send, and the names of these lies.

A lie takes one letter on its way out and returns the letters that are sent instead. Real nodes
(``outbox``) and simulated ones (``gossip_lab.simulation.world.liars``) use the same lies. The state
of the core stays true, so a Byzantine peer goes on taking part.
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
"""To whom, what is said (bytes: whatever a liar likes), and the payload."""


class Letter(NamedTuple):
    """Message that an honest core sends, with its receiver and payload."""

    to: PeerId
    envelope: Envelope
    payload: Payload | None

    @property
    def message(self) -> Message:
        return self.envelope.message

    def saying(self, **changes: Any) -> Letter:
        """Return the letter with some fields of its message changed."""
        message = replace(self.message, **changes)
        return self._replace(envelope=replace(self.envelope, message=message))

    def holding(self, content: Payload) -> Letter:
        """Return the letter with another payload, and its digest."""
        return self.saying(digest=content.digest)._replace(payload=content)


@dataclass(slots=True)
class ByzantinePeer:
    """One Byzantine peer: what it has to lie with.

    Args:
        peers: Of the run.
        core: Its honest core, as it is at the moment.
        rng: For lies that are told now and then.
        lies: The names of those that it tells, each made of what the one before has left.
        rounds: Of the run; None: nobody counts them.
    """

    peer: PeerId
    peers: tuple[PeerId, ...]
    core: Callable[[], Any]
    rng: random.Random
    lies: tuple[str, ...]
    digest_of: Callable[[Any], bytes] = (
        payload_digest  # a result's: simulated trainers have their own
    )
    rounds: int | None = None
    # how a result is written that answers this message; simulated peers write it as it lies
    written: Callable[[Message, NDArray[Any]], NDArray[np.uint8]] = lambda _, values: to_bytes(
        values
    )
    told: Counter[str] = field(default_factory=Counter)  # how often each lie was told
    heard: dict[str, OutMessage] = field(default_factory=dict)  # what a lie keeps for later
    # digests of results that are lies already, and may come back to their teller
    forged: set[bytes] = field(default_factory=set)
    _made: tuple[Any, Payload] | None = None  # the last forgery, and of what

    def disguise(self, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[OutMessage]:
        """Return the messages that are sent in place of this one."""
        out_messages: list[OutMessage] = [(to, envelope, payload)]
        for name in self.lies:
            said: list[OutMessage] = []
            for receiver, what, content in out_messages:
                instead = (
                    LIES[name](self, Letter(receiver, what, content))
                    if isinstance(what, Envelope)
                    else None
                )
                self.told[name] += instead is not None
                said += [(receiver, what, content)] if instead is None else instead
            out_messages = said
        return out_messages

    def forge(self, values: NDArray[Any], result_of: Message | None = None) -> Payload:
        """A float payload with its facts. The memory is made read-only: it goes to several.

        Args:
            result_of: The commit whose result it is to be, or the update that it is the answer to;
                only then it has a digest.
        """
        values = np.ascontiguousarray(values)
        values.setflags(write=False)
        content = to_bytes(values) if result_of is None else self.written(result_of, values)
        return Payload(
            values,
            len(content),
            bool(np.isfinite(values).all()),
            b"" if result_of is None else self.digest_of(content),
        )

    def once(self, key: tuple[str, bytes], make: Callable[[], Payload]) -> Payload:
        """A forgery that goes to several, made for the first of them:
        to forge megabytes takes a while."""
        if self._made is None or self._made[0] != key:
            self._made = (key, make())
        return self._made[1]


Instead: TypeAlias = Sequence[OutMessage] | None
"""Messages that are sent in place of a letter; None: the letter is sent as it is."""
Lie: TypeAlias = Callable[[ByzantinePeer, Letter], Instead]

LIES: dict[str, Lie] = {}


def lie(function: Lie) -> Lie:
    LIES[function.__name__] = function
    return function
