"""Attacks of a fault plan on updates: the attacks of real runs, applied to toy vectors.

Simulated attackers know the seed from which every peer draws its noise, so they can compute updates
that real attackers can only guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
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


class ToyAttack:
    """Attack of one peer: a function ``(update, round_id) -> forged update``. ``told`` is the
    number of forged updates."""

    def __init__(self, attacker: ByzantineFault, peer: PeerId, schedule: Schedule) -> None:
        self.attacker = attacker
        self.peer = peer
        self.seed = schedule.seed
        self.kind = attacker.built_in or kind_of(attacker.attack)
        self.told = 0
        attackers = FaultPlan(schedule.faults).attackers
        self._honest = [other for other in range(schedule.peers) if other not in attackers]
        self._alike = sorted(
            other for other, lie in attackers.items() if lie.attack == attacker.attack
        )
        self._aggregator, self._attackers = schedule.aggregator, len(attackers)

    @property
    def is_per_receiver(self) -> bool:
        """Whether the attack sends each neighbour a different update. Then ``PerReceiverAttack``
        forges the updates, and the trainer contributes the honest update."""
        return self.kind.shape == "apart"

    def __call__(self, update: Vector, round_id: int) -> Vector:
        if self.is_per_receiver:
            return update
        self.told += 1
        if self.attacker.attack == "label_flip":
            return -update  # an update from wrong labels points away from the target
        return self._attack_updates(update, round_id)

    def forge_for(
        self, update: Vector, receiver: PeerId, theirs: Vector | None, others: Iterable[Vector]
    ) -> Vector:
        """Return the forged vector for one neighbour."""
        import torch

        self.told += 1
        known = None if theirs is None else torch.tensor(theirs)
        lie = self._attack.tell(
            torch.tensor(update), receiver, known, [torch.tensor(other) for other in others]
        )
        said: Vector = lie.numpy()
        return said

    def _attack_updates(self, update: Vector, round_id: int) -> Vector:
        """Return the forged update. The updates of other peers with the same parameters are
        computed from this peer's own update, because their noise is known."""
        import torch

        attack = self._attack
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
            rule=attack.attacker_group.rule,
            own=updates_of(self._alike),
            round_id=round_id,
        )
        said: Vector = lies[self._alike.index(self.peer)].numpy()
        return said

    @cached_property
    def _attack(self) -> Attack:
        import torch

        from gossip.aggregators import load

        torch.set_num_threads(1)
        rule, f = load(self._aggregator), self._attackers
        group = AttackerGroup(
            max(1, len(self._honest)),
            max(1, len(self._alike)),
            seed=self.seed,
            rule=lambda updates: rule(updates, f=f),
        )
        return make(self.attacker.attack, self.attacker.strength_to_make, self.seed, group)


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
