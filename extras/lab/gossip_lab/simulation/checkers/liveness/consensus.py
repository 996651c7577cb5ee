"""L5, of gossip rounds: replicas that nobody makes identical stay close to each other."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

from gossip_lab.simulation.checkers.safety import gossip_of
from gossip_lab.simulation.world import AnySwarm, ToyTrainer

from .liveness import RoundLiveness, Shortcoming


class ReplicasStayClose(RoundLiveness):
    """L5, of gossip rounds: in the calm the replicas' distance from their mean comes below the
    bound at which mixing is raised. Not asked where somebody lies:
    a mean is as far off as a liar likes."""

    invariant = "L5"

    def lacks(self, swarm: AnySwarm) -> Shortcoming:
        if self.circumstances.attackers:
            return None
        participants = self.participants(swarm)
        if len(participants) < 2 or gossip_of(participants[0][1]) is None:
            return None
        rows: list[list[float]] = []
        for peer, _ in participants:
            trainer = swarm.hosts[peer].trainer
            if isinstance(trainer, ToyTrainer):
                rows.append(trainer.parameters.tolist())
        apart, bound = consensus_distance(rows), participants[0][1].settings.gossip.consensus_bound
        if not apart <= bound:
            return participants[0][0], (
                f"the replicas are {apart:.3f} times its length away from their mean"
            )
        return None


def consensus_distance(rows: Sequence[Sequence[float]]) -> float:
    """The root mean square distance of replicas from their mean, as a share of its length."""
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    squares = sum(
        [(value - center) ** 2 for row in rows for value, center in zip(row, mean, strict=True)]
    )
    if not squares:
        return 0.0
    length = sqrt(sum([value * value for value in mean]))
    return sqrt(squares / len(rows)) / length if length else inf
