"""Attacks of a world: the vectors that its Byzantine peers send instead of their updates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, zeros_like

from gossip.aggregators import attacks
from gossip.errors import AggregationError, ConfigError
from gossip.faults import ByzantineFault

from .parts import Parts

Kind: TypeAlias = Literal["gradient", "parameters", "first", "second"]
"""Vectors that peers push; the last two are moments of AdamW."""
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """Knowledge of colluding attackers beyond the honest vectors.

    Attributes:
        rule: The rule as the server of the round runs it, ``(m, d) -> (d,)``.
        locked: ``(n,)`` bool: peers in quarantine, whose updates the rule does not receive.
    """

    rule: attacks.Aggregator
    locked: NDArray[np.bool_]


class Attackers:
    """Byzantine peers of a world.

    Raises: ConfigError: In rolling rounds, an attack sends each receiver a different update.

    Attributes:
        flipped: ``(n,)`` bool: peers that train on wrong labels.
        false: ``(n,)`` bool: peers that do not send their true update.
        apart: ``(n,)`` bool: those of ``false`` that send each receiver a different update, in
            gossip rounds.
        colluding: ``(n,)`` bool: those of ``false`` with an attack that needs vectors of honest
            peers.
    """

    def __init__(self, parts: Parts) -> None:
        n, seed = parts.peers, parts.settings.seed
        self.flipped, self.false, self.apart, self.colluding = np.zeros((4, n), bool)
        self._byzantine = np.zeros(n, bool)
        self._byzantine[sorted(parts.mishaps.byzantine)] = True
        self._known = Knowledge(partial(parts.rule, f=parts.settings.f), np.zeros(n, bool))
        # one instance for each kind of vectors, because an attack may have a memory
        self._attacks: list[tuple[ByzantineFault, dict[Kind, attacks.Attack]]] = []
        self._alone: dict[tuple[Kind, int], attacks.Attack] = {}
        honest = n - len(parts.mishaps.byzantine)
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
                for peer in peers:  # with the seed of a run
                    self._alone[kind, peer] = make(seed + peer)

    def alike(self, peer: int) -> frozenset[int]:
        """Return the peers with the same attack on updates as ``peer``; none if it has no
        attack."""
        return next(
            (frozenset(fault.peers) for fault, _ in self._attacks if peer in fault.peers),
            frozenset(),
        )

    def inform(self, known: Knowledge) -> None:
        """Set the knowledge of the attackers in this round. By default they know the rule, but
        no quarantine."""
        self._known = known

    def falsify(
        self,
        vectors: Tensor,
        rows: NDArray[np.int64],
        peers: NDArray[np.int64],
        round_id: int,
        kind: Kind = "gradient",
    ) -> None:
        """Replace the vectors of the attackers among ``peers``, in place. Those of ``apart`` stay.

        Args:
            vectors: ``(v, d)``.
            rows: ``(m,)``: the rows with the true updates, or parameters, of ``peers``.
            peers: ``(m,)``, ascending.
        """
        known, is_honest = self._known, ~self._byzantine[peers]
        for fault, of_kind in self._attacks:
            attack = of_kind[kind]
            lying = np.zeros(len(self._byzantine), bool)
            lying[list(fault.peers)] = True
            lying = lying[peers]
            if attack.tells_each or not lying.any():
                continue
            honest = is_honest if is_honest.any() else lying
            locked = known.locked[peers[honest]]
            if not attack.guesses:
                for row, peer in zip(rows[lying].tolist(), peers[lying].tolist(), strict=True):
                    alone = self._alone[kind, peer]
                    alone.somebody_locked |= bool(locked.any())
                    vectors[row] = alone(vectors[row], round_id)
                continue
            own = vectors[rows[lying]]
            free = ~np.concatenate([locked, known.locked[peers[lying]]])
            vectors[rows[lying]] = attack.collude(
                vectors[rows[honest]],
                len(own),
                rule=partial(_try_rule, known.rule, free),
                own=own,
                round_id=round_id,
                locked=np.flatnonzero(locked).tolist(),
            ).float()

    def falsify_for(
        self, update: Tensor, sender: int, receiver: int, others: Iterable[Tensor]
    ) -> Tensor:
        """Return the update ``(d,)`` that a peer of ``apart`` sends to one receiver.

        Args:
            update: Its true update.
            others: Updates of the receiver and then of its honest neighbours in the round.
        """
        theirs, *rest = others
        attack = next(kinds["gradient"] for fault, kinds in self._attacks if sender in fault.peers)
        return attack.tell(update, receiver, theirs, rest)


def _try_rule(rule: attacks.Aggregator, free: NDArray[np.bool_], updates: Tensor) -> Tensor:
    """Return the step that the rule would make; zeros if it fails, because the round is then lost.

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
