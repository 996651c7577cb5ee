"""L5, in gossip rounds: replicas stay close to each other, although they are not identical."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

from gossip_lab.simulation.world import ToyTrainer

from .liveness import RoundLiveness, Shortcoming


class BoundedConsensusDistance(RoundLiveness):
    """L5, in gossip rounds: in the calm phase the consensus distance falls below the bound above
    which mixing is raised. This is not judged if there are Byzantine peers, because they can move a
    mean arbitrarily far."""

    invariant = "L5"

    def find_shortcoming(self) -> Shortcoming:
        participants = self.participants()
        if self.conditions.attackers or len(participants) < 2:
            return None
        first, core = participants[0]
        if core.gossip is None:
            return None
        trainers = [self.swarm.hosts[peer].trainer for peer, _ in participants]
        apart = consensus_distance(
            [it.parameters.tolist() for it in trainers if isinstance(it, ToyTrainer)]
        )
        if not apart <= core.settings.gossip.consensus_bound:
            return first, f"the replicas are {apart:.3f} times its length away from their mean"
        return None


def consensus_distance(rows: Sequence[Sequence[float]]) -> float:
    """Return the root mean square distance of replicas from their mean, divided by the norm of the
    mean."""
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    squares = sum(
        [(value - center) ** 2 for row in rows for value, center in zip(row, mean, strict=True)]
    )
    if not squares:
        return 0.0
    length = sqrt(sum([value * value for value in mean]))
    return sqrt(squares / len(rows)) / length if length else inf
