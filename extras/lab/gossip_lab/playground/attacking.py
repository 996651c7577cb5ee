"""Attacks of a world: the vectors that its Byzantine peers send instead of their updates."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, zeros_like

from gossip.aggregators import attacks
from gossip.errors import AggregationError, ConfigError
from gossip.faults import ByzantineFault
from gossip.topologies import draw
from gossip.training import seeded_generators

from .parts import Parts

Kind: TypeAlias = Literal["gradient", "parameters", "first", "second"]
"""Kinds of vectors that peers push; ``first`` and ``second`` are the moments of AdamW."""
KINDS: tuple[Kind, ...] = get_args(Kind)


class Attackers:
    """Byzantine peers of a world.

    Raises: ConfigError: An attack that sends each receiver a different update is used in rolling
    rounds.

    Attributes:
        flipped: ``(n,)`` bool: peers that train on wrong labels.
        false: ``(n,)`` bool: peers that do not send their true update.
        apart: ``(n,)`` bool: peers of ``false`` that send each receiver a different update. This
            occurs only in gossip rounds.
        colluding: ``(n,)`` bool: peers of ``false`` with an attack that needs vectors of honest
            peers.
    """

    def __init__(self, parts: Parts) -> None:
        n, seed = parts.peers, parts.settings.seed
        self.flipped, self.false, self.apart, self.colluding = np.zeros((4, n), bool)
        self._parts, self._honest = parts, parts.honest
        self._rule: attacks.Aggregator = partial(parts.rule, f=parts.settings.f)
        self._locked = np.zeros(n, bool)
        # An attack has an instance for each kind of vectors, because an attack may have a memory.
        self._attacks: list[tuple[ByzantineFault, dict[Kind, attacks.Attack]]] = []
        self._alone: dict[tuple[Kind, int], attacks.Attack] = {}
        honest = int(self._honest.sum())
        for fault in parts.mishaps.attacks:
            peers = list(fault.peers)
            if fault.attack in attacks.DATA_ATTACKS:
                self.flipped[peers] = True
                continue
            group = attacks.AttackerGroup(max(1, honest), len(peers), seed=seed)
            make = partial(attacks.make, fault.attack, fault.strength_to_make, attacker_group=group)
            of_kind: dict[Kind, attacks.Attack] = {kind: make(seed) for kind in KINDS}
            attack = of_kind["gradient"]
            if attack.tells_each and parts.topology.rolling:
                raise ConfigError(
                    f"{fault}: in rolling rounds an update has only one receiver",
                    "it is an attack on gossip rounds, such as topology random-k",
                )
            self.false[peers] = True
            self.apart[peers] = attack.tells_each
            self.colluding[peers] = attack.guesses
            self._attacks.append((fault, of_kind))
            for kind in KINDS:
                for peer in peers:  # same seed as in a real run
                    self._alone[kind, peer] = make(seed + peer)

    def alike(self, peer: int) -> frozenset[int]:
        """Return the peers with the same attack on updates as ``peer``, itself included; empty if
        ``peer`` has no attack."""
        return next(
            (frozenset(fault.peers) for fault, _ in self._attacks if peer in fault.peers),
            frozenset(),
        )

    def inform(self, rule: attacks.Aggregator, locked: NDArray[np.bool_]) -> None:
        """Set the knowledge of colluding attackers for this round. By default they know the rule,
        and assume that no peer is in quarantine.

        Args:
            rule: The rule as the server of the round runs it, ``(m, d) -> (d,)``.
            locked: ``(n,)``: peers in quarantine; the rule does not receive their updates.
        """
        self._rule, self._locked = rule, locked

    def inform_of_loss(self, parameters: Tensor, round_id: int, kind: Kind = "gradient") -> None:
        """Let colluding attackers evaluate a rule that needs a loss, as a peer with these
        parameters does. They compute the loss on their own samples. Without effect if the rule
        needs no loss."""
        rule, task, f = self._parts.rule, self._parts.task, self._parts.settings.f
        if not rule.needs_trainer:
            return
        is_mix = kind == "parameters"
        loss = task.reference_loss(parameters, round_id, reader="spy")
        inputs = {"f": f, "round_id": round_id, **loss.inputs(rule.needs, mix=is_mix)}

        def aggregate(vectors: Tensor) -> Tensor:
            if is_mix:  # the rule receives differences
                return rule(vectors - parameters, **inputs) + parameters
            return rule(vectors, **inputs)

        self._rule = aggregate

    def falsify(
        self,
        vectors: Tensor,
        rows: NDArray[np.int64],
        peers: NDArray[np.int64],
        round_id: int,
        kind: Kind = "gradient",
    ) -> None:
        """Replace the vectors of the attackers among ``peers``, in place. Vectors of attackers in
        ``apart`` do not change.

        Args:
            vectors: ``(v, d)``.
            rows: ``(m,)``: row of ``vectors`` with the true vector of each of ``peers``.
            peers: ``(m,)``, ascending.
        """
        is_honest, is_locked = self._honest[peers], self._locked[peers]
        for fault, of_kind in self._attacks:
            attack = of_kind[kind]
            lying = np.isin(peers, fault.peers)
            if attack.tells_each or not lying.any():
                continue
            honest = is_honest if is_honest.any() else lying
            locked = is_locked[honest]
            if not attack.guesses:
                for row, peer in zip(rows[lying].tolist(), peers[lying].tolist(), strict=True):
                    alone = self._alone[kind, peer]
                    alone.somebody_locked |= bool(locked.any())
                    with self._drawing(fault, kind, peer, round_id):
                        vectors[row] = alone(vectors[row], round_id)
                continue
            own = vectors[rows[lying]]
            free = ~np.concatenate([locked, is_locked[lying]])
            with self._drawing(fault, kind, round_id):
                vectors[rows[lying]] = attack.collude(
                    vectors[rows[honest]],
                    len(own),
                    rule=partial(_try_rule, self._rule, free),
                    own=own,
                    round_id=round_id,
                    locked=np.flatnonzero(locked).tolist(),
                ).float()

    def falsify_for(
        self, update: Tensor, sender: int, receiver: int, others: Iterable[Tensor], *words: object
    ) -> Tensor:
        """Return the update ``(d,)`` that a peer of ``apart`` sends to one receiver.

        Args:
            update: True update of ``sender``.
            others: Updates of the receiver and, after it, of the receiver's honest neighbours in
                the round.
            words: Kind of the vector and round, for the random numbers of the attack.
        """
        theirs, *rest = others
        fault, kinds = next(each for each in self._attacks if sender in each[0].peers)
        with self._drawing(fault, sender, receiver, *words):
            return kinds["gradient"].tell(update, receiver, theirs, rest)

    def _drawing(self, fault: ByzantineFault, *words: object) -> AbstractContextManager[None]:
        """Return a context in which a function of the user draws the same random numbers in both
        engines. Attacks of gossip have their own generators."""
        if ":" not in fault.attack:
            return nullcontext()
        return seeded_generators(draw("attack", self._parts.settings.seed, *words), devices=())


def _try_rule(rule: attacks.Aggregator, free: NDArray[np.bool_], updates: Tensor) -> Tensor:
    """Return the aggregate of the rule. Return zeros if the rule fails, because a lost round makes
    no step.

    Args:
        free: ``(m,)``: updates of peers that are not in quarantine.
        updates: ``(m, d)``.
    """
    try:
        return rule(updates if free.all() else updates[np.flatnonzero(free)])
    except Exception as error:
        if isinstance(error, ConfigError) and not isinstance(error, AggregationError):
            raise
        return zeros_like(updates[0])
