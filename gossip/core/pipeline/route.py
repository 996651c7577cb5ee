"""Which member of a stage computes a micro-batch: a pure function, so that nobody has to be told.

Weighted rendezvous hashing: each member draws a number from (seed, round, micro-batch, stage, its
id), and the best draw wins. Who is left out moves nothing but what was its own. Source: Thaler,
Ravishankar 1998; with weights: Schindelhauer, Schomaker 2005 (weight over the logarithm of the
draw).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log

from gossip.core.messages import PeerId


@dataclass(frozen=True, slots=True)
class Router:
    """The ways of all micro-batches of a run.

    Attributes:
        seed: of the run.
        weights: how much of the micro-batches a peer gets; 1.0 where it is not named.
    """

    seed: int
    weights: Mapping[PeerId, float]

    def ranking(
        self, round_id: int, micro_batch: int, stage: int, members: Iterable[PeerId]
    ) -> list[PeerId]:
        """``members`` of a stage, who is to compute the micro-batch first, and behind it whoever
        would if those before it were not there. The order of ``members`` does not matter."""
        where = f"{self.seed}/{round_id}/{micro_batch}/{stage}"
        return sorted(members, key=lambda peer: (-self._score(where, peer), peer))

    def route(
        self, round_id: int, micro_batch: int, attempt: int, rosters: Sequence[Iterable[PeerId]]
    ) -> tuple[PeerId, ...]:
        """One member of each stage. ``rosters``: of each stage, who is not skipped; none is empty.
        Each attempt goes to the next in order, and begins again behind the last."""
        ranked = [
            self.ranking(round_id, micro_batch, stage, roster)
            for stage, roster in enumerate(rosters)
        ]
        return tuple([order[attempt % len(order)] for order in ranked])

    def _score(self, where: str, peer: PeerId) -> float:
        digest = hashlib.blake2b(f"{where}/{peer}".encode(), digest_size=7).digest()
        draw = (int.from_bytes(digest, "little") + 0.5) / 2.0**56  # within (0, 1)
        return self.weights.get(peer, 1.0) / -log(draw)
