"""L12: a training in gossip rounds ends, and ends successfully for all peers that have its
result."""

from __future__ import annotations

from gossip.core import Halt, PeerId, Restore
from gossip_lab.simulation.checkers.base import Checker, PerLife
from gossip_lab.simulation.checkers.watching import on_effect
from gossip_lab.simulation.world import ToyTrainer


class EverybodyEnds(Checker):
    """L12: once all scripts reach their last round, in gossip rounds each in its own time, all
    peers end by themselves. This includes peers that are behind, pause, hang or are killed and
    restarted in between. A peer that was sent the final state ends with exit code 0, in rolling
    rounds, too."""

    invariant = "L12"

    # the round of the state that this life was sent last
    _sent = PerLife[int](lambda: -1)

    @on_effect
    def record_restore(self, restore: Restore) -> None:
        self._sent = restore.round_id

    @on_effect
    def judge(self, halt: Halt) -> None:
        last = self.trainer.rounds if isinstance(self.trainer, ToyTrainer) else None
        if self.peer in self.circumstances.attackers or last is None:
            return
        if self._sent >= last:
            text = f"it was sent the final state, and ends with exit code {halt.exit_code}: "
            self.demand(halt.exit_code == 0, text + halt.reason)

    def remaining(self) -> list[PeerId]:
        """Return the peers that have not ended and were not killed for good."""
        hosts = self.swarm.hosts.items()
        return [p for p, host in hosts if host.running or host.state == "starting"]

    def judge_end(self, since: float) -> None:
        """Judge that all peers have ended: they have had the time since then."""
        self.judged += 1
        for peer in self.remaining():
            core = self.swarm.hosts[peer].core
            raise self.violated(
                f"it has not ended {self.now - since:.1f} s after all scripts were to end: "
                f"{core.phase} in round {core.rounds.round_id}",
                peer,
            )
