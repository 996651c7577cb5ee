"""Byzantine peers of a simulation. Their cores are honest, but their nodes replace some messages.

swarm.outgoing = ByzantinePeers(swarm, {3: ("false_deaths", "wrong_results")})
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gossip.core import Envelope, Payload, PeerId
from gossip.inject import LIES, ByzantinePeer, OutMessage

from . import message_lies  # noqa: F401 - registers its attacks

if TYPE_CHECKING:
    from .driver import AnySwarm


class ByzantinePeers:
    """Attacks of some peers, for use as ``Swarm.outgoing``. Attacks are named as in ``LIES``, and
    stop when ``active`` is False.

    Raises: KeyError: There is no such attack.
    """

    def __init__(self, swarm: AnySwarm, lies: Mapping[PeerId, Iterable[str]]) -> None:
        self.attackers = {
            peer: _attacker(swarm, peer, tuple(names)) for peer, names in lies.items()
        }
        self.active = True

    def count_attacks(self) -> Counter[str]:
        """Return how often each attack took place, summed over the peers."""
        total: Counter[str] = Counter()
        for attacker in self.attackers.values():
            total.update(attacker.told)
        return total

    def __call__(
        self, sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None
    ) -> Iterable[OutMessage]:
        if not self.active or sender not in self.attackers:
            return [(to, envelope, payload)]
        return self.attackers[sender].disguise(to, envelope, payload)


def _attacker(swarm: AnySwarm, peer: PeerId, names: tuple[str, ...]) -> ByzantinePeer:
    for name in names:
        LIES[name]
    rng = random.Random(f"liar/{swarm.seed}/{peer}")
    return ByzantinePeer(peer, tuple(swarm.hosts), lambda: swarm.hosts[peer].core, rng, names)
