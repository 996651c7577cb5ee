"""S24, S27: the parameters and samples from which an update is computed, and the fragment of the
model that a round exchanges."""

from __future__ import annotations

from gossip.core import Applied, Committed, Contributed, PeerId, StartRound, events, is_further
from gossip_lab.simulation.checkers.base import Checker, PerIncarnation, on_effect, on_event
from gossip_lab.simulation.world import ToyTrainer


class FragmentTurns(Checker):
    """S27: the fragments of a model take turns. The number of steps in a peer's history determines
    the fragment of a round: updates are requested for this fragment, and the aggregate changes only
    this fragment. Collective operations are not steps."""

    invariant = "S27"
    needs = "rolling"
    _before = PerIncarnation(dict[int, int])  # unapplied round -> number of steps before

    def make_records(self) -> None:
        # Hash of a history -> (number of its steps, roster of the next round, next round).
        self._steps: dict[bytes, tuple[int, tuple[PeerId, ...], int]] = {}

    @on_effect
    def judge_operations(self, start: StartRound) -> None:
        known = self._steps.get(self.rolling.chain)
        # A Byzantine donor may have misstated the round of its state, so the rounds are compared.
        if known is not None and self.rolling.round_id == start.round_id == known[2]:
            self.demand(
                start.round_id - start.collectives == known[0],
                f"round {start.round_id} is started with {start.collectives} collective operations "
                f"before it, but {known[0]} steps were made",
            )

    @on_effect
    def follow(self, committed: Committed) -> None:
        commit, settings = committed.commit, self.core.settings
        if commit.shard or getattr(self.trainer, "fragments", 1) == 1:
            return  # only the first shard's commit has collected values
        beginning = (0, settings.peers, 0) if commit.round_id == 0 else None
        known = self._steps.get(commit.parent, beginning)
        if known is None or known[2] != commit.round_id:
            # The history before is not known, or an attacker has changed its round number.
            return
        before, roster, _ = known
        operation = len(commit.collected) > settings.callers_too_few(len(roster))
        is_step = not (operation or is_further(commit.kind))
        self._steps[committed.chain] = before + is_step, commit.roster, commit.round_id + 1
        self._before[commit.round_id] = before

    @on_event
    def judge_moved(self, event: Applied) -> None:
        before, trainer = self._before.pop(event.round_id, None), self.trainer
        if before is None or trainer.moved[0] != event.round_id:
            return  # the round changed nothing
        self.demand(
            trainer.moved[1] == before % trainer.fragments,
            f"round {event.round_id} has moved fragment {trainer.moved[1]} of {trainer.fragments}, "
            f"but {before} steps were made before it",
        )


class FreshUpdates(Checker):
    """S24: an update is computed from the peer's present parameters, and on the samples that are
    assigned to the peer in this round. A trainer that computes the next update during a round uses
    parameters of the same history that lack this round. Without faults, all updates that were
    computed during a round are offered."""

    invariant = "S24"
    _given = PerIncarnation[StartRound | None]()

    @on_effect
    def record_start(self, start: StartRound) -> None:
        self._given = start

    @on_event
    def judge(self, event: Contributed) -> None:
        given, trainer = self._given, self.trainer
        made_of = trainer.history.made_of if isinstance(trainer, ToyTrainer) else None
        if given is None or made_of is None or not event.samples:
            return
        if not made_of.round_id == given.round_id == event.round_id:
            return  # the trainer has started another round; the core drops this
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
            f"{here} samples {read}, but its own are {has}",
        )

    def finish(self) -> None:
        for peer, host in self.swarm.hosts.items():
            if self.conditions.faultless and isinstance(host.trainer, ToyTrainer):
                dropped = host.trainer.history.dropped
                text = f"{dropped} updates that it has computed beside rounds were dropped"
                self.demand(not dropped, text, peer)


def _part(samples: events.DataSlice) -> tuple[object, ...]:
    return samples.epoch, samples.ranges
