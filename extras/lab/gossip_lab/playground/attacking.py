"""Attacks of a world: what its Byzantine peers send in place of their updates."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gossip.aggregators import attacks
from gossip.faults import ByzantineFault

from .parts import Parts

Kind: TypeAlias = Literal["gradient", "parameters"]
"""What peers push."""


class Attackers:
    """Byzantine peers of a world.

    Attributes:
        flipped: ``(n,)`` bool: peers that train on wrong labels.
        liars: ``(n,)`` bool: peers that send another update than theirs.
        apart: ``(n,)`` bool: those of them that send each receiver another one, in gossip rounds.
    """

    def __init__(self, parts: Parts) -> None:
        n, seed = parts.peers, parts.settings.seed
        self.flipped, self.liars, self.apart = np.zeros((3, n), bool)
        self._byzantine = np.zeros(n, bool)
        self._byzantine[sorted(parts.mishaps.byzantine)] = True
        self._rule = partial(parts.rule, f=parts.settings.f)
        # of updates, and of parameters: an attack may have a memory
        self._attacks: list[tuple[ByzantineFault, attacks.Attack, attacks.Attack]] = []
        honest = n - len(parts.mishaps.byzantine)
        for fault in parts.mishaps.attacks:
            peers = list(fault.peers)
            if fault.attack in attacks.DATA_ATTACKS:
                self.flipped[peers] = True
                continue
            group = attacks.AttackerGroup(max(1, honest), len(peers), seed=seed)
            both = [
                attacks.make(fault.attack, fault.strength_to_make, seed, group) for _ in range(2)
            ]
            self.liars[peers] = True
            self.apart[peers] = both[0].tells_each
            self._attacks.append((fault, both[0], both[1]))

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
        for fault, *both in self._attacks:
            attack = both[kind == "parameters"]
            lying = np.isin(peers, fault.peers)
            if attack.tells_each or not lying.any():
                continue
            if not attack.guesses:
                for row in rows[lying].tolist():
                    vectors[row] = attack(vectors[row], round_id)
                continue
            own = vectors[rows[lying]]
            honest = vectors[rows[~self._byzantine[peers]]]
            vectors[rows[lying]] = attack.collude(
                honest if len(honest) else own,
                len(own),
                rule=self._rule,
                own=own,
                round_id=round_id,
            ).float()

    def falsify_for(
        self, update: Tensor, sender: int, receiver: int, others: Iterable[Tensor]
    ) -> Tensor:
        """Return the update ``(d,)`` that a peer of ``apart`` sends to one receiver.

        Args:
            update: Its true update.
            others: Of the receiver, then of its honest neighbours, their updates of the round.
        """
        theirs, *rest = others
        attack = next(attack for fault, attack, _ in self._attacks if sender in fault.peers)
        return attack.tell(update, receiver, theirs, rest)
