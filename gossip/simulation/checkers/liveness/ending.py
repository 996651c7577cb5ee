"""L12: a training in gossip rounds ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gossip.simulation.checkers.base import Checker

if TYPE_CHECKING:
    from gossip.core import PeerId
    from gossip.simulation.world import Swarm


class EverybodyEnds(Checker):
    """L12: once all scripts come to their last round, in gossip rounds each in its own time,
    everybody ends by itself, also who is behind, stands still, hangs or is killed meanwhile and
    started again."""

    invariant = "L12"

    def remaining(self, swarm: Swarm[Any]) -> list[PeerId]:
        """Who has not come to its end, and was not killed for good."""
        return [p for p, host in swarm.hosts.items() if host.running or host.state == "starting"]

    def judge_end(self, swarm: Swarm[Any], since: float) -> None:
        """Everybody has had the time to end since then."""
        for peer in self.remaining(swarm):
            core = swarm.hosts[peer].core
            text = (
                f"it has not ended {swarm.now - since:.1f} s after all scripts were to end: "
                f"{core.phase} in round {core.rounds.round_id}"
            )
            self.demand(False, swarm, peer, text)
        self.judged += 1
