"""Which member of a stage computes a micro-batch: a pure function, so that nobody has to be told.

Weighted rendezvous hashing orders the members of a stage for each micro-batch: each draws a number
from (seed, round, micro-batch, stage, its id), and the best draw wins. Source: Thaler,
Ravishankar 1998; with weights: Schindelhauer, Schomaker 2005 (weight over the logarithm of the
draw). Of few micro-batches chance would give one member most, and all would wait for it: so first
choices are dealt out by weight, and who is lost moves nothing but what was its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import log

from gossip.core.messages import PeerId

KEPT_MAX = 16
"""First choices that are remembered, of a round and a stage each."""


class Router:
    """The ways of all micro-batches of a run.

    Args:
        seed: of the run.
        micro_batches: of a step.
        weights: how much of the micro-batches a peer gets; 1.0 where it is not named.
    """

    def __init__(self, seed: int, micro_batches: int, weights: Mapping[PeerId, float]) -> None:
        self.seed, self.micro_batches, self.weights = seed, micro_batches, weights
        self._kept: dict[tuple[int, int, tuple[PeerId, ...]], list[PeerId]] = {}

    def route(
        self, round_id: int, micro_batch: int, rosters: Sequence[Sequence[PeerId]]
    ) -> tuple[PeerId, ...]:
        """The member of each stage that computes a micro-batch first. ``rosters``: of each stage,
        by the last commit; none is empty."""
        return tuple(
            [
                self.ranking(round_id, micro_batch, stage, roster)[0]
                for stage, roster in enumerate(rosters)
            ]
        )

    def ranking(
        self, round_id: int, micro_batch: int, stage: int, roster: Sequence[PeerId]
    ) -> list[PeerId]:
        """The members of a stage, in any order, as those who are to compute the micro-batch: the
        first one that is there does, and the next attempt goes to the one behind it."""
        key = round_id, stage, tuple(sorted(roster))
        homes = self._kept.get(key)
        if homes is None:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            homes = self._kept[key] = self._homes(round_id, stage, key[2])
        home = homes[micro_batch]
        others = [peer for peer in key[2] if peer != home]
        return [home, *self._drawn(f"{round_id}/{micro_batch}/{stage}", others)]

    def _homes(self, round_id: int, stage: int, roster: tuple[PeerId, ...]) -> list[PeerId]:
        """The first choice of each micro-batch: whoever is furthest behind its part by weight; of
        equals another one each round."""
        order = self._drawn(f"{round_id}/{stage}", roster)
        whole = sum(self._weight(peer) for peer in roster)
        taken = dict.fromkeys(roster, 0)
        homes: list[PeerId] = []
        for number in range(1, self.micro_batches + 1):
            behind = {p: number * self._weight(p) / whole - taken[p] for p in order}
            home = max(order, key=behind.__getitem__)
            taken[home] += 1
            homes.append(home)
        return homes

    def _drawn(self, where: str, peers: Sequence[PeerId]) -> list[PeerId]:
        return sorted(peers, key=lambda peer: (-self._score(where, peer), peer))

    def _score(self, where: str, peer: PeerId) -> float:
        name = f"{self.seed}/{where}/{peer}".encode()
        draw = int.from_bytes(hashlib.blake2b(name, digest_size=7).digest(), "little")
        return self._weight(peer) / -log((draw + 0.5) / 2.0**56)

    def _weight(self, peer: PeerId) -> float:
        return self.weights.get(peer, 1.0)
