"""Updates that this peer sends in place of its own, when the fault plan makes it Byzantine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch

from gossip.aggregators import BoundRule
from gossip.aggregators.attacks import DATA_ATTACKS, Attack, AttackerGroup, make
from gossip.core import Apply, Message, Payload, PeerId, Push
from gossip.errors import ConfigError
from gossip.faults import ByzantineFault, FaultPlan
from gossip.vectors import fragment_of

ROUNDS_KEPT = 8


class UpdateAttack:
    """Twists what leaves this peer. Lies about data are told in the trainer,
    before there is an update.

    Liars of one kind know of each other from the plan, and of the others what every replica knows:
    the results of the rounds (``saw``), and in gossip rounds what neighbours have told
    them (``record_push``).

    Attributes:
        fragments: Of the model, one of which each round exchanges: an attack remembers what was
            told of each.

    Args:
        peers: Of the run.
        rule: For attacks that try themselves on it, with its f: on updates ``(n, d)``.
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
        """How a drill has this peer lie now, beside the plan."""
        if lie != self._drilled:
            self._drilled = lie
            self._lie_as(
                {**self._planned, **({} if lie is None else dict.fromkeys(lie.peers, lie))}
            )

    def _lie_as(self, attackers: Mapping[PeerId, ByzantineFault]) -> None:
        self._lie = attackers.get(self._peer)
        self._attackers = frozenset(attackers)
        self._attacks: dict[str, Attack] = {}
        self._parameters: dict[int, np.ndarray] = {}  # own ones of rounds that are not over
        # what -> what each neighbour told last
        self._said: dict[str, dict[PeerId, torch.Tensor]] = {}
        alike = [
            other
            for other, lie in attackers.items()
            if self._lie is not None and lie.attack == self._lie.attack
        ]
        rank = sorted(alike).index(self._peer) if self._peer in alike else 0
        self._attacker_group = AttackerGroup(
            max(1, self._peers - len(attackers)), max(1, len(alike)), rank, self._seed, self._rule
        )
        self._guesses = self._lies_about("update") and self._attack("update").guesses
        self.tells_each = self._lies_about("update") and self._attack("update").tells_each

    def _lies_about(self, what: str) -> bool:
        return self._lie is not None and self._lie.attack not in DATA_ATTACKS

    @property
    def lies(self) -> bool:
        """Whether it says another update than its own, the same to everybody."""
        return self._lies_about("update") and not self.tells_each

    def _attack(self, what: str) -> Attack:
        assert self._lie is not None
        if what not in self._attacks:
            self._attacks[what] = make(
                self._lie.attack,
                self._lie.strength_to_make,
                self._seed + self._peer,
                self._attacker_group,
            )
        return self._attacks[what]

    def tamper_with(self, truth: np.ndarray, round_id: int, what: str) -> np.ndarray:
        """The lie to tell, in memory of its own. ``what`` names the stream: a replayed update is
        not a replayed parameter."""
        if self._guesses and what == "parameters":
            self._parameters[round_id] = truth.copy()
            while len(self._parameters) > ROUNDS_KEPT:
                del self._parameters[min(self._parameters)]
        stream = self._updates(round_id, self._collectives) if what == "update" else what
        with torch.no_grad():
            # a copy: an attack of a user's file may change what it gets
            lie = self._attack(stream)(torch.from_numpy(truth.copy()), round_id)
        if lie.shape != truth.shape:
            raise ConfigError(
                f"the attack {self._lie} made {tuple(lie.shape)} of an update of {truth.shape}"
            )
        return _as_array(lie, truth)

    def begins(self, collectives: int) -> None:
        """A round that may be computed now, behind so many that were no steps."""
        self._collectives = collectives

    def _updates(self, round_id: int, collectives: int) -> str:
        """The stream of the updates of a round: those of one fragment."""
        fragment = fragment_of(round_id, collectives, self.fragments)
        return f"update {fragment}" if fragment else "update"

    def saw(self, done: Apply) -> None:
        """Record the outcome of a round: an attack that guesses what the others send learns from
        it."""
        if not self._guesses:
            return
        if done.payloads:
            self._attack(self._updates(done.round_id, done.collectives)).saw(
                torch.cat([_as_tensor(payload) for payload in done.payloads]), done.round_id
            )
        own = self._parameters.pop(done.round_id, None)
        if own is not None and done.mix is not None:
            # What the rule made of the neighbours' differences to us:
            # where they stand, on the whole.
            self._attack("parameters").saw(
                torch.from_numpy(own) + _as_tensor(done.mix), done.round_id
            )

    # --- to each neighbour another ----------------------------------------------------------------

    def record_push(self, sender: PeerId, message: Message, payload: Payload | None) -> None:
        """Record what a neighbour has sent."""
        if self.tells_each and isinstance(message, Push) and payload is not None and payload.finite:
            self._said.setdefault(message.what, {})[sender] = _as_tensor(payload)

    def replace_payload(
        self, receiver: PeerId, message: Message, payload: Payload | None
    ) -> Payload | None:
        """Return the payload that this neighbour receives instead."""
        if not self.tells_each or not isinstance(message, Push) or payload is None:
            return payload
        said = self._said.get(message.what, {})
        others = [
            vector
            for peer, vector in sorted(said.items())
            if peer != receiver and peer not in self._attackers
        ]
        with torch.no_grad():
            lie = self._attack("update").tell(
                _as_tensor(payload), receiver, said.get(receiver), others
            )
        told = _as_array(lie, payload.data)
        return replace(payload, data=told, finite=bool(np.isfinite(told).all()), encoded=None)


def rule_of(bound: BoundRule, f: int, *, centered: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """The run's rule as a liar can try it out.

    Args:
        centered: In gossip rounds each neighbour is its own center; the first row stands for it.
    """

    def tried(updates: torch.Tensor) -> torch.Tensor:
        return bound(updates, f=f, center=updates[0].clone() if centered else None)

    return tried


def _as_tensor(payload: Payload) -> torch.Tensor:
    """A copy: the memory of a payload is read-only, or will be used again."""
    return torch.from_numpy(np.array(payload.data, dtype=np.float32))


def _as_array(lie: torch.Tensor, truth: np.ndarray) -> np.ndarray:
    """float32 in memory of its own."""
    twisted: np.ndarray = lie.detach().to(torch.float32).contiguous().numpy()
    return twisted.copy() if np.may_share_memory(twisted, truth) else twisted
