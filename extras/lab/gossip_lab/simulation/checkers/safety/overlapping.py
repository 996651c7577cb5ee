"""S24: the state and the samples from which an update is computed."""

from __future__ import annotations

from gossip.core import Contributed, StartRound, events
from gossip_lab.simulation.checkers.base import Checker, PerLife
from gossip_lab.simulation.checkers.watching import on_effect, on_event
from gossip_lab.simulation.world import ToyTrainer


class ComputedInTurn(Checker):
    """S24: an update is computed from its peer's parameters as they are or, if a trainer computes
    beside a round, from those one round older, in any case of the same history. It uses the samples
    that its peer has in its round. Without any fault all updates computed beside a round are
    offered."""

    invariant = "S24"
    _given = PerLife[StartRound | None](lambda: None)

    @on_effect
    def record_start(self, start: StartRound) -> None:
        self._given = start

    @on_event
    def judge(self, event: Contributed) -> None:
        given, trainer = self._given, self.trainer
        made_of = trainer.made_of if isinstance(trainer, ToyTrainer) else None
        if given is None or made_of is None or not event.samples:
            return
        if not made_of.round_id == given.round_id == event.round_id:
            return  # it has started another round, and the core drops this update
        here = f"its update of round {given.round_id} is of"
        self.demand(
            made_of.lacks <= trainer.overlap, f"{here} parameters that lack {made_of.lacks} rounds"
        )
        self.demand(
            not made_of.restores, f"{here} parameters that it has replaced by those of others"
        )
        has, read = given.samples, made_of.samples
        self.demand(
            has is None or (read is not None and _part(has) == _part(read)),
            f"{here} samples {read}, and its own are {has}",
        )

    def finish(self) -> None:
        for peer, host in self.swarm.hosts.items():
            if self.circumstances.faultless and isinstance(host.trainer, ToyTrainer):
                dropped = host.trainer.dropped
                text = f"{dropped} updates that it has computed beside rounds were dropped"
                self.demand(not dropped, text, peer)


def _part(samples: events.DataSlice) -> tuple[object, ...]:
    return samples.epoch, samples.ranges
