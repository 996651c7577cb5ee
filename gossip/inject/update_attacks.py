"""Computes the false updates that this peer sends if the fault plan makes it Byzantine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch

from gossip.aggregators import BoundRule
from gossip.aggregators.attacks import DATA_ATTACKS, Attack, AttackerGroup, make
from gossip.core import Apply, Message, Payload, PeerId, Push
from gossip.faults import ByzantineFault, FaultPlan
from gossip.vectors import fragment_of

ROUNDS_KEPT = 8


class UpdateAttack:
    """Attacks with the updates and parameters that this peer sends. Attacks on training data are in
    the trainer (``faulty_trainer``).

    Attackers of one kind cooperate without messages: the fault plan names all of them. An attack
        uses only data that an honest peer has, too: the results of rounds (``saw``), and in gossip
        rounds the pushes of neighbours (``record_push``).

    Attributes:
        fault: Fault that makes this peer Byzantine; None if none does.
        fragments: Number of fragments of the model. Each round exchanges one fragment, and an
            attack has separate memory for each fragment.

    Args:
        peers: Number of peers of the run.
        rule: Aggregation rule of the run with its f bound. It maps updates ``(n, d)`` to ``(d,)``.
            Some attacks evaluate it.
    """

    def __init__(
        self,
        plan: FaultPlan,
        peer: PeerId,
        seed: int,
        peers: int = 2,
        rule: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self._seed, self._peer, self._peers, self._rule = seed, peer, peers, rule
        self.fragments, self._collectives = 1, 0
        self._planned = plan.attackers
        self._drilled: ByzantineFault | None = None
        self._lie_as(plan.attackers)

    def drill(self, lie: ByzantineFault | None) -> None:
        """Set the attack of a drill. For the peers of the drill it replaces the attack of the
        plan."""
        if lie != self._drilled:
            self._drilled = lie
            self._lie_as(
                {**self._planned, **({} if lie is None else dict.fromkeys(lie.peers, lie))}
            )

    def _lie_as(self, attackers: Mapping[PeerId, ByzantineFault]) -> None:
        self.fault = attackers.get(self._peer)
        self._attackers = frozenset(attackers)
        self._attacks: dict[str, Attack] = {}
        self._parameters: dict[int, np.ndarray] = {}  # unfinished round -> this peer's parameters
        # stream -> last vector of each neighbour
        self._received: dict[str, dict[PeerId, torch.Tensor]] = {}
        alike = [
            other
            for other, lie in attackers.items()
            if self.fault is not None and lie.attack == self.fault.attack
        ]
        rank = sorted(alike).index(self._peer) if self._peer in alike else 0
        self._attacker_group = AttackerGroup(
            max(1, self._peers - len(attackers)), max(1, len(alike)), rank, self._seed, self._rule
        )
        false = self.fault is not None and self.fault.attack not in DATA_ATTACKS
        self._guesses = false and self._attack("update").guesses
        self.tells_each = false and self._attack("update").tells_each
        # Whether this peer sends a false update that is the same for all peers.
        self.lies = false and not self.tells_each

    def _attack(self, what: str) -> Attack:
        assert self.fault is not None
        if what not in self._attacks:
            self._attacks[what] = make(
                self.fault.attack,
                self.fault.strength_to_make,
                self._seed + self._peer,
                self._attacker_group,
            )
        return self._attacks[what]

    def tamper_with(self, truth: np.ndarray, round_id: int, what: str) -> np.ndarray:
        """Return the false vector to send, in new memory. ``what``: "update" or "parameters"; an
        attack has separate memory for the two."""
        if self._guesses and what == "parameters":
            self._parameters[round_id] = truth.copy()
            while len(self._parameters) > ROUNDS_KEPT:
                del self._parameters[min(self._parameters)]
        stream = self._updates(round_id, self._collectives) if what == "update" else what
        with torch.no_grad():
            # The attack receives a copy, because an attack in a user's file may change its
            # argument.
            lie = self._attack(stream)(torch.from_numpy(truth.copy()), round_id)
        return _as_array(lie, truth)

    def begins(self, collectives: int) -> None:
        """Record, before a round is computed, how many earlier rounds were not steps."""
        self._collectives = collectives

    def _updates(self, round_id: int, collectives: int) -> str:
        """Return the name of the stream to which a round's updates belong. Each fragment has its
        own stream."""
        fragment = fragment_of(round_id, collectives, self.fragments)
        return f"update {fragment}" if fragment else "update"

    def saw(self, done: Apply) -> None:
        """Record the outcome of a round, for attacks that estimate the honest updates."""
        if not self._guesses:
            return
        if done.payloads:
            self._attack(self._updates(done.round_id, done.collectives)).saw(
                torch.cat([_as_tensor(payload) for payload in done.payloads]), done.round_id
            )
        own = self._parameters.pop(done.round_id, None)
        if own is not None and done.mix is not None:
            # ``mix`` is the rule's aggregate of the differences between the neighbours' parameters
            # and this peer's, so the sum is the typical position of a neighbour.
            self._attack("parameters").saw(
                torch.from_numpy(own) + _as_tensor(done.mix), done.round_id
            )

    # --- a different payload for each neighbour ---------------------------------------------------

    def record_push(self, sender: PeerId, message: Message, payload: Payload | None) -> None:
        """Record the vector that a neighbour has sent."""
        if self.tells_each and isinstance(message, Push) and payload is not None and payload.finite:
            self._received.setdefault(message.what, {})[sender] = _as_tensor(payload)

    def replace_payload(
        self, receiver: PeerId, message: Message, payload: Payload | None
    ) -> Payload | None:
        """Return the payload to send to this neighbour instead of ``payload``."""
        if not self.tells_each or not isinstance(message, Push) or payload is None:
            return payload
        received = self._received.get(message.what, {})
        others = [
            vector
            for peer, vector in sorted(received.items())
            if peer != receiver and peer not in self._attackers
        ]
        with torch.no_grad():
            lie = self._attack("update").tell(
                _as_tensor(payload), receiver, received.get(receiver), others
            )
        false = _as_array(lie, payload.data)
        return replace(payload, data=false, finite=bool(np.isfinite(false).all()), encoded=None)


def rule_of(bound: BoundRule, f: int, *, centered: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the run's rule as a function of the updates alone, for attacks that evaluate it.

    Args:
        centered: Whether the first row is the center of the rule. In gossip rounds this is so: each
            neighbour centers the rule at its own row.
    """

    def tried(updates: torch.Tensor) -> torch.Tensor:
        return bound(updates, f=f, center=updates[0].clone() if centered else None)

    return tried


def _as_tensor(payload: Payload) -> torch.Tensor:
    """Return a copy of the payload as float32, because its memory is read-only or will be
    reused."""
    return torch.from_numpy(np.array(payload.data, dtype=np.float32))


def _as_array(lie: torch.Tensor, truth: np.ndarray) -> np.ndarray:
    """Return ``lie`` as float32 in memory that it does not share with ``truth``."""
    changed: np.ndarray = lie.detach().to(torch.float32).contiguous().numpy()
    return changed.copy() if np.may_share_memory(changed, truth) else changed
