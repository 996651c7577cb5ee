"""Tools of the campaigns that measure large swarms: the traffic of peers, and a limit on waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from gossip.core import Envelope, Payload, PeerId
from gossip.inject import OutMessage
from gossip.transport import decode, encode
from gossip_lab.simulation.world import AnySwarm, SimulationStuck

STEP_S = 0.1


@dataclass(slots=True)
class TrafficMeter:
    """Value of ``Swarm.outgoing`` that encodes sent messages, and decodes the largest of each kind
    as its receiver would. Bytes are those of encoded messages, without payloads, and without the
    framing of ZeroMQ, TCP and IP.

    Attributes:
        by_peer: Bytes that each peer has sent.
        by_kind: Bytes of each type of message, by its name.
        largest: Bytes of the largest message of each type.
        sent: Number of messages of each type.
    """

    by_peer: Counter[PeerId] = field(default_factory=Counter)
    by_kind: Counter[str] = field(default_factory=Counter)
    largest: dict[str, int] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    _last: Envelope | None = None  # one object for several receivers, which is encoded once
    _length: int = 0

    def __call__(
        self, sender: PeerId, to: PeerId, said: Envelope, payload: Payload | None
    ) -> tuple[OutMessage, ...]:
        name = type(said.message).__name__
        if said is not self._last:
            data = encode(said)
            self._last, self._length = said, len(data)
            if len(data) > self.largest.get(name, 0):
                assert decode(data) == said
                self.largest[name] = len(data)
        self.sent[name] += 1
        self.by_kind[name] += self._length
        self.by_peer[sender] += self._length
        return ((to, said, payload),)


def advance(
    swarm: AnySwarm, predicate: Callable[[], bool], what: Callable[[], str], limit_s: float
) -> None:
    """Run until the predicate holds, and test it every ``STEP_S``: a test of a thousand tables
    takes a second. Raises: SimulationStuck: After ``limit_s``. ``what``: Describes the predicate.
    """
    until_s = swarm.now + limit_s
    while not predicate():
        if swarm.now >= until_s:
            raise SimulationStuck(
                f"not met after {limit_s:g} s: {what()}\n{swarm.summary()[:2000]}"
            )
        swarm.run_for(STEP_S)
