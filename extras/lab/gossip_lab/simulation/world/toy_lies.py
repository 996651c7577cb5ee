"""Attacks of a fault plan on updates: the attacks of real runs, applied to toy vectors.

Simulated attackers know the seed from which every peer draws its noise, so they can compute updates
that real attackers can only guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gossip.aggregators.attacks import Attack, AttackerGroup, kind_of, make
from gossip.core import Envelope, Payload, PeerId, Push
from gossip.faults import ByzantineFault, FaultPlan
from gossip.inject import OutMessage

from .toy_model import NOISE, STEP_SIZE
from .toy_payloads import Vector, noise_of, payload_of
from .wire import Outgoing, send_unchanged

if TYPE_CHECKING:
    from torch import Tensor

    from gossip_lab.simulation.schedules import Schedule

Lie = Callable[[Vector, int], Vector]

PLAIN: dict[str, Callable[[Vector, np.float32], Vector]] = {
    "sign_flip": lambda update, strength: -update * strength,
    # An update from wrong labels points away from the target.
    "label_flip": lambda update, strength: -update,
    "scale": lambda update, strength: update * strength,
    "nan": lambda update, strength: np.full_like(update, np.nan),
    "inf": lambda update, strength: np.copysign(np.float32(np.inf), update),
    "zero": lambda update, strength: np.zeros_like(update),
}
"""Attacks that depend only on the attacker's own update: name -> ``(update, strength) -> forged
update``."""


class ToyAttack:
    """Attack of one peer: a function ``(update, round_id) -> forged update``. ``told`` is the
    number of forged updates."""

    def __init__(self, attacker: ByzantineFault, peer: PeerId, schedule: Schedule) -> None:
        self.attacker = attacker
        self.peer = peer
        self.seed = schedule.seed
        self.kind = attacker.built_in or kind_of(attacker.attack)
        self.told = 0
        self._old: list[Vector] = []
        attackers = FaultPlan(schedule.faults).attackers
        self._honest = [other for other in range(schedule.peers) if other not in attackers]
        self._alike = sorted(
            other for other, lie in attackers.items() if lie.attack == attacker.attack
        )
        self._aggregator, self._attackers = schedule.aggregator, len(attackers)
        self._attack: Attack | None = None
        self._rule: Callable[[Tensor], Tensor] | None = None

    @property
    def is_per_receiver(self) -> bool:
        """Whether the attack sends each neighbour a different update. Then ``PerReceiverAttack``
        forges the updates, and the trainer contributes the honest update."""
        return self.kind.shape == "apart"

    def __call__(self, update: Vector, round_id: int) -> Vector:
        if self.is_per_receiver:
            return update
        self.told += 1
        # If the strength is None, attacks from ``gossip.aggregators.attacks`` use their own
        # default.
        strength = 1.0 if self.attacker.strength is None else self.attacker.strength
        if self.attacker.attack in PLAIN:
            return PLAIN[self.attacker.attack](update, np.float32(strength))
        match self.attacker.attack:
            case "bit_flip":
                rng = np.random.default_rng([self.seed, 5, self.peer, round_id])
                hit = rng.random(len(update)) < strength
                return (update.view(np.uint32) ^ (np.uint32(1 << 30) * hit)).view(np.float32)
            case "gaussian":
                noise = np.random.default_rng([self.seed, 4, self.peer, round_id]).standard_normal(
                    len(update)
                )
                return (noise * strength).astype(np.float32)
            case "stale":
                self._old = [*self._old[-int(strength) :], update.copy()]
                return self._old[0]
            case _:
                return self._of_group(update, round_id)

    def forge_for(
        self, update: Vector, receiver: PeerId, theirs: Vector | None, others: Iterable[Vector]
    ) -> Vector:
        """Return the forged vector for one neighbour."""
        import torch

        self.told += 1
        known = None if theirs is None else torch.tensor(theirs)
        lie = self._ready().tell(
            torch.tensor(update), receiver, known, [torch.tensor(other) for other in others]
        )
        said: Vector = lie.numpy()
        return said

    def _of_group(self, update: Vector, round_id: int) -> Vector:
        """Return the forged update of an attack from ``gossip.aggregators.attacks``. The updates of
        other peers with the same parameters are computed from this peer's own update, because their
        noise is known."""
        import torch

        attack = self._ready()
        if self.kind.shape == "alone":
            return attack(torch.tensor(update), round_id).numpy()
        own = np.array(noise_of(f"{self.seed}/{self.peer}/{round_id}", len(update)))

        def updates_of(peers: Iterable[PeerId]) -> Tensor:
            noises = np.array(
                [noise_of(f"{self.seed}/{peer}/{round_id}", len(update)) for peer in peers]
            )
            return torch.tensor((update + STEP_SIZE * NOISE * (noises - own)).astype(np.float32))

        honest = updates_of(self._honest or self._alike)
        lies = attack.collude(
            honest,
            len(self._alike),
            rule=self._rule,
            own=updates_of(self._alike),
            round_id=round_id,
        )
        said: Vector = lies[self._alike.index(self.peer)].numpy()
        return said

    def _ready(self) -> Attack:
        if self._attack is None:
            import torch

            from gossip.aggregators import load

            torch.set_num_threads(1)
            attacker_group = AttackerGroup(
                max(1, len(self._honest)), max(1, len(self._alike)), seed=self.seed
            )
            self._attack = make(
                self.attacker.attack, self.attacker.strength_to_make, self.seed, attacker_group
            )
            bound, attackers = load(self._aggregator), self._attackers

            def tried(updates: Tensor) -> Tensor:
                return bound(updates, f=attackers)

            self._rule = tried
        return self._attack


class PerReceiverAttack:
    """Attacks that send each neighbour a different vector, for use as ``Swarm.outgoing``. The
    attackers know the last pushes of all honest peers."""

    def __init__(self, lies: Mapping[PeerId, ToyAttack], then: Outgoing | None) -> None:
        self._lies, self._then = lies, then or send_unchanged
        self._said: dict[tuple[str, PeerId], Any] = {}

    def __call__(
        self, sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None
    ) -> Iterable[OutMessage]:
        message = envelope.message
        if isinstance(message, Push) and payload is not None:
            if sender in self._lies:
                others = [
                    vector
                    for (what, peer), vector in sorted(self._said.items())
                    if what == message.what and peer != to
                ]
                lie = self._lies[sender].forge_for(
                    payload.data, to, self._said.get((message.what, to)), others
                )
                payload = payload_of(lie)
            else:
                self._said[message.what, sender] = payload.data
        return self._then(sender, to, envelope, payload)
