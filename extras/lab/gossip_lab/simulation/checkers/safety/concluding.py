"""S9 at the end of a training: who is told that its last state is everybody's holds what everybody
holds, to the last bit."""

from __future__ import annotations

from collections.abc import Iterable

from gossip.core import ConfirmState, PeerId, Restore, StateConfirmed
from gossip_lab.simulation.checkers.base import Checker, TaintedStates
from gossip_lab.simulation.checkers.watching import on_effect, on_event
from gossip_lab.simulation.world import ToyTrainer


class EndsAlike(Checker):
    """S9: all who are told before one round that others hold what they hold hold the same, where
    somebody may lie (f > 0) and somebody could have told: more than 2f run that hold no liar's
    state, or nobody else holds one. In the end all who have asked are told so, when more than 2f
    run that hold no liar's state."""

    invariant = "S9"
    needs = "rolling"

    def make_records(self) -> None:
        self._told: dict[int, tuple[bytes, PeerId]] = {}
        self.waiting: dict[PeerId, float] = self.per_life()  # who has asked, and since when
        self._misled = TaintedStates(self.circumstances)

    def begin_life(self) -> None:
        super().begin_life()
        self._misled.forget(self.peer)

    @on_event
    def record_question(self, event: ConfirmState) -> None:
        self.waiting.setdefault(self.peer, self.now)

    @on_effect
    def record_restore(self, restore: Restore) -> None:
        self._misled.restores(self.swarm, self.peer)

    @on_effect
    def judge(self, confirmed: StateConfirmed) -> None:
        since, f, trainer = self.waiting.pop(self.peer, None), self.core.settings.f, self.trainer
        if since is None or not f:
            return
        others = sum(host.running for host in self.swarm.hosts.values()) - 1
        self.demand(
            confirmed.agreed or self._alike() <= 2 * f,
            f"it is told that its last state may be another than that of {others} others",
        )
        if not confirmed.agreed or not isinstance(trainer, ToyTrainer):
            return
        ends = f"it ends before round {confirmed.round_id} with"
        self.demand(
            trainer.next_round == confirmed.round_id,
            f"{ends} the state before round {trainer.next_round}",
        )
        told = (trainer.digest, self.peer)
        digest, first = self._told.setdefault(confirmed.round_id, told)
        misled = self.peer in self._misled or first in self._misled
        if misled and self._alike() <= 2 * f:
            return  # too few are left who could have told it
        text = f"{ends} {trainer.digest.hex()}, peer {first} with {digest.hex()}"
        self.demand(trainer.digest == digest, text)

    def judge_end(self, peers: Iterable[PeerId]) -> None:
        """The training is over: where one of ``peers`` has come to its last round all of them that
        run have, and nobody waits any more."""
        hosts = self.swarm.hosts
        trainers = {peer: hosts[peer].trainer for peer in peers if hosts[peer].running}
        came = {
            peer
            for peer, it in trainers.items()
            if peer in self.waiting or (isinstance(it, ToyTrainer) and it.confirmed)
        }
        for peer in trainers if came else ():
            where = hosts[peer].core.rounds.round_id
            text = f"it has not come to its last round, and is in {where}"
            self.demand(peer in came, text, peer)
        for peer, since in self.waiting.items():
            core = self.swarm.inspections[peer]
            if self._misled.lying and self._alike() <= 2 * core.settings.f:
                continue  # too few are left who could have told it
            text = f"it has asked at {since:.2f} s whether its last state is everybody's, in vain"
            self.demand(not hosts[peer].running, text, peer)

    def _alike(self) -> int:
        """How many run that hold no liar's state."""
        hosts = self.swarm.hosts.items()
        return sum(host.running and other not in self._misled for other, host in hosts)
