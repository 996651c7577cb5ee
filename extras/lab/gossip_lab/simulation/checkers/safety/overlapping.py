"""S24: what an update is computed of."""

from __future__ import annotations

from gossip.core import Contributed, Effect, Event, PeerId, StartRound, events
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.world import AnySwarm, MadeOf, ToyTrainer


class ComputedInTurn(Checker):
    """S24: an update is of its peer's parameters as they are or, where a trainer computes beside a
    round, of those one round older, and in any case of the same history; and of the samples that
    its peer has in its round. Without any fault all that is computed beside a round is offered."""

    invariant = "S24"
    events = (Contributed,)
    effects = (StartRound,)

    def make_records(self) -> None:
        self._given: dict[PeerId, StartRound] = self.per_life()

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, StartRound):
            self._given[peer] = effect

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        given = self._given.get(peer)
        if not isinstance(event, Contributed) or not event.samples or given is None:
            return
        trainer = swarm.hosts[peer].trainer
        # Else it was told of another round meanwhile, and the core leaves this update out.
        made_of = trainer.made_of if isinstance(trainer, ToyTrainer) else None
        if made_of is not None and made_of.round_id == given.round_id == event.round_id:
            self._judge(swarm, peer, given, made_of)

    def finish(self, swarm: AnySwarm) -> None:
        for peer, host in swarm.hosts.items():
            trainer = host.trainer
            if self.circumstances.faultless and isinstance(trainer, ToyTrainer):
                text = f"{trainer.dropped} updates that it has computed beside rounds were dropped"
                self.demand(not trainer.dropped, swarm, peer, text)

    def _judge(self, swarm: AnySwarm, peer: PeerId, given: StartRound, made_of: MadeOf) -> None:
        trainer = swarm.hosts[peer].trainer
        assert isinstance(trainer, ToyTrainer)
        here = f"its update of round {given.round_id}"
        self.demand(
            made_of.lacks <= trainer.overlap,
            *(swarm, peer, f"{here} is of parameters that lack {made_of.lacks} rounds"),
        )
        self.demand(
            not made_of.restores,
            *(swarm, peer, f"{here} is of parameters that it has replaced by those of others"),
        )
        has, read = given.samples, made_of.samples
        self.demand(
            has is None or (read is not None and _part(has) == _part(read)),
            *(swarm, peer, f"{here} is of samples {read}, and its own are {has}"),
        )


def _part(samples: events.DataSlice) -> tuple[object, ...]:
    return samples.epoch, samples.ranges


__all__ = ["ComputedInTurn"]
