"""Assignment of a micro-batch to a member of each stage. It is a pure function, so all peers
compute it without messages.

Weighted rendezvous hashing orders the members of a stage for each micro-batch. A member's score
depends on its weight and on a pseudorandom number from (seed, round, micro-batch, stage, id of the
member). The member with the largest score is first. Source: Thaler, Ravishankar 1998; with weights:
Schindelhauer, Schomaker 2005 (weight divided by the negative logarithm of the number). If there are
few micro-batches, chance could assign most of them to one member, for which all others would wait.
Therefore the first choices are assigned in proportion to the weights. If a member is lost, only its
own micro-batches move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from math import log
from typing import TypeAlias

from gossip.core import PeerId

KEPT_MAX = 16
"""Largest number of cached lists of first choices. There is one list per round and stage."""
ALL_EVERY = 16
"""In every round that is a multiple of this number, each member gets a micro-batch, even if it is
slow. So a member that has become fast again is measured. If there are more members than
micro-batches, the members take turns."""
Weights: TypeAlias = Mapping[PeerId, float]


class Router:
    """Routes of all micro-batches of a run.

    Args:
        seed: Seed of the run.
        micro_batches: Number of micro-batches of a step.
    """

    def __init__(self, seed: int, micro_batches: int) -> None:
        self.seed, self.micro_batches = seed, micro_batches
        self._cached_homes = lru_cache(KEPT_MAX)(self._homes)

    def ranking(
        self, round_id: int, micro_batch: int, stage: int, weights: Weights
    ) -> list[PeerId]:
        """Return the members of a stage in order of priority for a micro-batch. The first reachable
        member computes it. The next attempt is sent to the next member in this order.

        Args:
            weights: Weight of each member in the division of the micro-batches.
        """
        home = self._cached_homes(round_id, stage, tuple(sorted(weights.items())))[micro_batch]
        others = {peer: weight for peer, weight in weights.items() if peer != home}
        return [home, *self._drawn(f"{round_id}/{micro_batch}/{stage}", others)]

    def _homes(
        self, round_id: int, stage: int, items: tuple[tuple[PeerId, float], ...]
    ) -> list[PeerId]:
        """Return the first choice for each micro-batch: the member that is furthest below its
        share. The order of members with equal deficits changes in each round. ``items``: weights of
        the members."""
        weights = dict(items)
        order = self._drawn(f"{round_id}/{stage}", weights)
        whole = sum(weights.values())
        taken = dict.fromkeys(weights, 0)
        homes: list[PeerId] = []
        for number in range(1, self.micro_batches + 1):
            behind = {p: number * weights[p] / whole - taken[p] for p in order}
            home = max(order, key=behind.__getitem__)
            taken[home] += 1
            homes.append(home)
        if round_id % ALL_EVERY == 0:
            if self.micro_batches < len(weights):
                return self._in_turn(round_id // ALL_EVERY, sorted(weights))
            _assign_to_idle_peers(homes, taken)
        return homes

    def _in_turn(self, turn: int, members: list[PeerId]) -> list[PeerId]:
        first = turn * self.micro_batches
        return [members[at % len(members)] for at in range(first, first + self.micro_batches)]

    def _drawn(self, where: str, weights: Weights) -> list[PeerId]:
        return sorted(weights, key=lambda p: (-self._score(where, p, weights[p]), p))

    def _score(self, where: str, peer: PeerId, weight: float) -> float:
        name = f"{self.seed}/{where}/{peer}".encode()
        draw = int.from_bytes(hashlib.blake2b(name, digest_size=7).digest(), "little")
        return weight / -log((draw + 0.5) / 2.0**56)


def _assign_to_idle_peers(homes: list[PeerId], taken: dict[PeerId, int]) -> None:
    """Assign the last micro-batch of the busiest member to each member without one."""
    for peer in [peer for peer, count in taken.items() if not count]:
        most = max(taken, key=lambda other: (taken[other], -other))
        homes[len(homes) - 1 - homes[::-1].index(most)] = peer
        taken[most], taken[peer] = taken[most] - 1, 1
