"""Choice of the updates of a pipeline stage that together make a whole step. Each update names its
micro-batches, and each micro-batch must count exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gossip.core.messages import PeerId
from gossip.core.settings import COVER_TRIES


def cover(sets: Mapping[PeerId, Sequence[int]], micro_batches: int) -> frozenset[PeerId] | None:
    """Return peers that together have each micro-batch exactly once; None if ``COVER_TRIES`` tries
    find none. Small sets are tried first, so that a peer that claims all micro-batches does not
    displace the other peers."""
    order = sorted((p for p in sets if sets[p]), key=lambda peer: (len(sets[peer]), peer))
    tries = 0
    stack: list[tuple[frozenset[PeerId], frozenset[int]]] = [(frozenset(), frozenset())]
    while stack and tries < COVER_TRIES:
        tries += 1
        chosen, covered = stack.pop()
        first = next((b for b in range(micro_batches) if b not in covered), None)
        if first is None:
            return chosen
        fitting = [p for p in order if first in sets[p] and covered.isdisjoint(sets[p])]
        stack += [(chosen | {p}, covered.union(sets[p])) for p in reversed(fitting)]
    return None
