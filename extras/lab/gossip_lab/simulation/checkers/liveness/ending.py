"""L12: a training in gossip rounds ends, and ends well for those who have its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.core import Halt, Restore
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.world import ToyTrainer

if TYPE_CHECKING:
    from gossip.core import Effect, PeerId
    from gossip_lab.simulation.world import AnySwarm


class EverybodyEnds(Checker):
    """L12: once all scripts come to their last round, in gossip rounds each in its own time,
    everybody ends by itself, also who is behind, stands still, hangs or is killed meanwhile and
    started again. Who was sent the final state ends with exit code 0, in rolling rounds, too."""

    invariant = "L12"
    effects = (Halt, Restore)

    def make_records(self) -> None:
        # the round of the state that this life was sent last
        self._sent: dict[PeerId, int] = self.per_life()

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Restore):
            self._sent[peer] = effect.round_id
        if not isinstance(effect, Halt) or peer in self.circumstances.attackers:
            return
        trainer = swarm.hosts[peer].trainer
        last = trainer.rounds if isinstance(trainer, ToyTrainer) else None
        if last is not None and self._sent.get(peer, -1) >= last:
            text = f"it was sent the final state, and ends with exit code {effect.exit_code}: "
            self.demand(effect.exit_code == 0, swarm, peer, text + effect.reason)

    def remaining(self, swarm: AnySwarm) -> list[PeerId]:
        """Return the peers that have not come to their end and were not killed for good."""
        return [p for p, host in swarm.hosts.items() if host.running or host.state == "starting"]

    def judge_end(self, swarm: AnySwarm, since: float) -> None:
        """Everybody has had the time to end since then."""
        for peer in self.remaining(swarm):
            core = swarm.hosts[peer].core
            text = (
                f"it has not ended {swarm.now - since:.1f} s after all scripts were to end: "
                f"{core.phase} in round {core.rounds.round_id}"
            )
            self.demand(False, swarm, peer, text)
        self.judged += 1
