"""S9 at the end of a training: who is told that its last state is everybody's holds what everybody
holds, to the last bit."""

from __future__ import annotations

from collections.abc import Iterable

from gossip.core import ConfirmState, Effect, Event, PeerId, Restore, StateConfirmed
from gossip_lab.simulation.checkers.base import Checker, TaintedStates
from gossip_lab.simulation.world import AnySwarm, ToyTrainer

from .rounds import rolling_of


class EndsAlike(Checker):
    """S9: all who are told before one round that others hold what they hold hold the same, where
    somebody may lie (f > 0) and somebody could have told: more than 2f run that hold no liar's
    state, or nobody else holds one. In the end all who have asked are told so, when more than 2f
    run that hold no liar's state."""

    invariant = "S9"
    events = (ConfirmState,)
    effects = (StateConfirmed, Restore)

    def make_records(self) -> None:
        self._told: dict[int, tuple[bytes, PeerId]] = {}
        self.waiting: dict[PeerId, float] = self.per_life()  # who has asked, and since when
        self._misled = TaintedStates(self.circumstances)

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        super().on_start(swarm, peer)
        self._misled.forget(peer)

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, ConfirmState) and rolling_of(swarm.inspections.get(peer)) is not None:
            self.waiting.setdefault(peer, swarm.now)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Restore):
            self._misled.restores(swarm, peer)
        if not isinstance(effect, StateConfirmed):
            return
        since, core, trainer = (
            self.waiting.pop(peer, None),
            swarm.inspections.get(peer),
            swarm.hosts[peer].trainer,
        )
        if since is None or core is None or not core.settings.f:
            return
        running = sum(host.running for host in swarm.hosts.values())
        enough = effect.agreed or self._alike(swarm) <= 2 * core.settings.f
        self.demand(
            enough,
            swarm,
            peer,
            f"it is told that its last state may be another than that of {running - 1} others",
        )
        if not effect.agreed or not isinstance(trainer, ToyTrainer):
            return
        text = (
            f"it ends before round {effect.round_id} with the state before round "
            f"{trainer.next_round}"
        )
        self.demand(trainer.next_round == effect.round_id, swarm, peer, text)
        digest, first = self._told.setdefault(effect.round_id, (trainer.digest, peer))
        if (peer in self._misled or first in self._misled) and self._alike(
            swarm
        ) <= 2 * core.settings.f:
            return  # too few are left who could have told it
        text = (
            f"it ends before round {effect.round_id} with {trainer.digest.hex()}, peer {first} "
            f"with {digest.hex()}"
        )
        self.demand(trainer.digest == digest, swarm, peer, text)

    def judge_end(self, swarm: AnySwarm, peers: Iterable[PeerId]) -> None:
        """The training is over: where one of ``peers`` has come to its last round all of them that
        run have, and nobody waits any more."""
        trainers = {peer: swarm.hosts[peer].trainer for peer in peers if swarm.hosts[peer].running}
        came = {
            peer
            for peer, it in trainers.items()
            if peer in self.waiting or (isinstance(it, ToyTrainer) and it.confirmed)
        }
        for peer in trainers if came else ():
            where = swarm.hosts[peer].core.rounds.round_id
            self.demand(
                peer in came, swarm, peer, f"it has not come to its last round, and is in {where}"
            )
        for peer, since in self.waiting.items():
            host, core = swarm.hosts[peer], swarm.inspections.get(peer)
            if (
                self._misled.lying
                and core is not None
                and self._alike(swarm) <= 2 * core.settings.f
            ):
                continue  # too few are left who could have told it
            text = f"it has asked at {since:.2f} s whether its last state is everybody's, in vain"
            self.demand(not host.running, swarm, peer, text)

    def _alike(self, swarm: AnySwarm) -> int:
        """How many run that hold no liar's state."""
        return sum(
            host.running and other not in self._misled for other, host in swarm.hosts.items()
        )


__all__ = ["EndsAlike"]
