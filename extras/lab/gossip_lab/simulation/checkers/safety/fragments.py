"""S27: which part of the model a round is on."""

from __future__ import annotations

from gossip.core import (
    Applied,
    Committed,
    CoreSettings,
    Effect,
    Event,
    PeerId,
    StartRound,
    is_further,
)
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.world import AnySwarm, ToyTrainer

from .rounds import rolling_of


class TakesTurns(Checker):
    """S27: fragments of a model take turns by the number of steps in the history of their peer: an
    aggregate moves the one whose turn it is, and an update is asked for of no other. A collective
    operation is no step."""

    invariant = "S27"
    events = (Applied,)
    effects = (Committed, StartRound)

    def make_records(self) -> None:
        # By the chain behind a round: steps in that history, roster and number of the next round.
        self._steps: dict[bytes, tuple[int, tuple[PeerId, ...], int]] = {}
        self._before = self.per_life(dict[int, int])  # a round that is not applied: steps before

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        trainer, core = swarm.hosts[peer].trainer, swarm.inspections.get(peer)
        if not isinstance(trainer, ToyTrainer) or trainer.fragments == 1 or core is None:
            return
        if isinstance(effect, Committed):
            self._follow(peer, effect, core.settings)
            return
        rounds = rolling_of(core)
        known = None if rounds is None else self._steps.get(rounds.chain)
        if not isinstance(effect, StartRound) or rounds is None or known is None:
            return
        if rounds.round_id == effect.round_id == known[2]:  # a liar may tell another of its state
            self.demand(
                effect.round_id - effect.collectives == known[0],
                *(swarm, peer),
                f"round {effect.round_id} is told of {effect.collectives} collective operations "
                f"before it, and is behind {known[0]} steps",
            )

    def _follow(self, peer: PeerId, effect: Committed, settings: CoreSettings) -> None:
        commit = effect.commit
        if commit.shard:
            return  # what was collected is said with the first shard
        beginning = (0, settings.peers, 0) if commit.round_id == 0 else None
        known = self._steps.get(commit.parent, beginning)
        if known is None or known[2] != commit.round_id:
            return  # of a history whose beginning nobody has applied, or that a liar has renumbered
        before, roster, _ = known
        operation = len(commit.collected) > settings.callers_too_few(len(roster))
        is_step = not (operation or is_further(commit.kind))
        self._steps[effect.chain] = before + is_step, commit.roster, commit.round_id + 1
        self._before[peer][commit.round_id] = before

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        trainer = swarm.hosts[peer].trainer
        if not isinstance(event, Applied) or not isinstance(trainer, ToyTrainer):
            return
        before = self._before[peer].pop(event.round_id, None)
        round_id, fragment = trainer.moved
        if before is None or round_id != event.round_id:
            return  # it changed nothing
        self.demand(
            fragment == before % trainer.fragments,
            *(swarm, peer),
            f"round {round_id} has moved fragment {fragment} of {trainer.fragments}, and is behind "
            f"{before} steps",
        )


__all__ = ["TakesTurns"]
