"""When a stage may apply a round that it has committed: when every stage has.

Until then any micro-batch of the round may have to be computed again, with the parameters before it
in all stages. From then on nobody needs an activation of that round any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gossip.core import (
    CoreSettings,
    Effect,
    MemberTable,
    PeerId,
    PipelineSettings,
    Send,
    StageDone,
    StageSpeeds,
    Timers,
    record,
    weights_of,
)

from .route import Router, Weights

ASK_EVERY_S = 0.25
"""How often who waits asks those it has not heard of: what they said may be lost."""


@record
class BarrierTimer:
    """Those who have not said that they hold this round are asked."""

    round_id: int


class StageBarrier:
    """Args:
    settings: of the run, with all stages.
    """

    def __init__(
        self,
        local: PeerId,
        settings: CoreSettings,
        pipeline: PipelineSettings,
        members: MemberTable,
        timers: Timers[Any],
    ) -> None:
        self.local, self.settings, self.pipeline = local, settings, pipeline
        self.members, self.timers = members, timers
        self._router = Router(settings.seed, pipeline.micro_batches)
        stage = pipeline.stage_of(local)
        assert stage is not None, f"peer {local} is in no stage"
        self.stage = stage
        self._everybody = tuple([p for each in pipeline.stages for p in each if p != local])
        self.locked_here: tuple[PeerId, ...] = ()  # of the own stage
        self._told: dict[PeerId, tuple[int, StageDone]] = {}  # in which incarnation
        self._begun: dict[PeerId, int] = {}  # the incarnation in which each was in a round last

    def roster_of(self, stage: int) -> tuple[PeerId, ...]:
        """Return the peers of another stage, by the word of its members; at first all that the plan
        names."""
        latest = self._latest_of(stage)
        return self.pipeline.stages[stage] if latest is None else latest.roster

    def _latest_of(self, stage: int) -> StageDone | None:
        """Return what the member of the stage that is furthest has said; None: nobody has said
        anything."""
        known = [p for p in self.pipeline.stages[stage] if p in self._told]
        # Of those who are there: a stage that was made anew has another roster than the dead knew.
        there = [p for p in known if not self.members.skip_reason(p) and self._speaks(p)]
        told = [self._told[p][1] for p in there or known]
        return max(told, key=lambda each: each.committed, default=None)

    def locked_of(self, stage: int) -> frozenset[PeerId]:
        """Return the peers in quarantine in another stage, as enough of its members say: no liar
        locks up anybody."""
        told = [self._told[p][1] for p in self.pipeline.stages[stage] if p in self._told]
        named = Counter([peer for each in told for peer in each.locked])
        return frozenset([p for p, count in named.items() if count >= self.settings.audit_votes])

    def working(self, stage: int) -> tuple[PeerId, ...]:
        """Return the peers with work in another stage: its roster without those in quarantine."""
        roster, locked = self.roster_of(stage), self.locked_of(stage)
        return tuple([peer for peer in roster if peer not in locked]) or roster

    def weights_of(self, stage: int) -> dict[PeerId, float]:
        """Return the share of the micro-batches of each peer that gets work in another stage."""
        latest, roster = self._latest_of(stage), self.roster_of(stage)
        pass_us = () if latest is None else latest.pass_us
        return self.weights(roster, pass_us, self.working(stage))

    def weights(
        self, roster: Sequence[PeerId], pass_us: Sequence[int], working: Sequence[PeerId]
    ) -> dict[PeerId, float]:
        """Return the share of each peer of a roster that gets work. ``pass_us``: time of each of
        the roster; empty: as the plan predicts."""
        if not pass_us:
            predicted = StageSpeeds(self.settings.f, dict(self.pipeline.pass_us))
            pass_us = predicted.pass_us(roster)
        found = weights_of(dict(zip(roster, pass_us, strict=True)))
        return {peer: found[peer] for peer in working}

    def ranking(
        self, round_id: int, micro_batch: int, stage: int, weights: Weights | None = None
    ) -> list[PeerId]:
        """Return the peers of a stage in the order in which they are to compute a micro-batch.
        ``weights``: those of ``weights_of`` by default."""
        weights = self.weights_of(stage) if weights is None else weights
        return self._router.ranking(round_id, micro_batch, stage, weights)

    def _speaks(self, peer: PeerId) -> bool:
        """Whether what it has said is of the life that is known of it."""
        return self._told[peer][0] >= self.members.incarnation_of(peer)

    def note_begun(self, peer: PeerId, incarnation: int) -> bool:
        """Its rounds have begun, it says. Returns whether that is news of this life of it."""
        news = self._begun.get(peer, -1) < incarnation
        if news:
            self._begun[peer] = incarnation
        return news

    def has_begun(self, peer: PeerId) -> bool:
        """Whether the rounds of its present life have begun. Before that its node knows of no
        layers, and drops whatever activation comes."""
        known = self.members.incarnation_of(peer)
        return peer in self._begun and self._begun[peer] >= known

    def is_returning(self, peer: PeerId) -> bool:
        """Whether it was started again, and has not begun since."""
        return peer in self._begun and not self.has_begun(peer)

    def round_of(self, peer: PeerId) -> int:
        """The round that a peer of another stage has said it is in; 0: it has not."""
        return self._told[peer][1].round_id if peer in self._told else 0

    def furthest(self) -> int | None:
        """The round that the other stages are in, by the word of more than f of their peers; None
        as long as somebody within reach has not said."""
        here = self.others()
        told = [self._told[p][1].round_id for p in here if p in self._told and self._speaks(p)]
        if len(told) < len(here) or len(told) <= self.settings.f:
            return None
        return sorted(told, reverse=True)[self.settings.f]

    @property
    def report_count(self) -> int:
        """How many have said how far their stage is."""
        return len(self._told)

    def record_report(self, sender: PeerId, incarnation: int, done: StageDone) -> bool:
        """Whether it is news, of the sender's own stage, and can be."""
        if self.pipeline.stage_of(sender) != done.stage or not done.roster:
            return False
        members = set(self.pipeline.stages[done.stage])
        for named in (done.roster, done.locked):
            if list(named) != sorted(set(named)) or not set(named) <= members:
                return False
        if done.pass_us and (len(done.pass_us) != len(done.roster) or min(done.pass_us) < 1):
            return False
        life, before = self._told.get(sender, (-1, done))
        news = (incarnation, done.committed, done.round_id)
        if sender in self._told and news <= (life, before.committed, before.round_id):
            return False
        self._told[sender] = incarnation, done
        return True

    def is_open(self, round_id: int) -> bool:
        """Whether the round, which the own stage has committed, may be applied here."""
        needed = self.settings.f + 1
        beyond = [told for _, told in self._told.values() if told.round_id > round_id]
        if len(beyond) >= needed:
            return True
        return all(
            self._has_committed(stage, round_id)
            for stage in range(len(self.pipeline.stages))
            if stage != self.stage
        )

    def _has_committed(self, stage: int, round_id: int) -> bool:
        """Whether everybody within reach in that stage holds its commit of the round."""
        roster = self.working(stage)
        holding = [peer for peer in roster if self._holds(peer, round_id)]
        enough = len(holding) >= min(self.settings.f + 1, len(roster))
        return enough and all(peer in holding or self.members.skip_reason(peer) for peer in roster)

    def _holds(self, peer: PeerId, round_id: int) -> bool:
        life, told = self._told.get(peer, (-1, None))
        if told is None or life < self.members.incarnation_of(peer):
            return False  # another life of it has to say anew what it holds
        return told.committed > round_id

    def on_round_committed(
        self, round_id: int, roster: tuple[PeerId, ...], pass_us: tuple[int, ...], now: float
    ) -> list[Effect]:
        """Tells all others of a commit of the own stage, and asks them until it may be applied.
        ``roster``: of the next round; ``pass_us``: of each of it."""
        effects = self.broadcast(
            self.report(round_id, round_id + 1, roster, pass_us, self.locked_here)
        )
        if not self.is_open(round_id):
            effects.append(self.timers.set(now + ASK_EVERY_S, BarrierTimer(round_id)))
        return effects

    def report(
        self,
        round_id: int,
        committed: int,
        roster: tuple[PeerId, ...],
        pass_us: tuple[int, ...] = (),
        locked: tuple[PeerId, ...] = (),
    ) -> StageDone:
        """Return this peer's report of how far its stage is."""
        lineage = self.settings.lineage
        return StageDone(lineage, self.stage, round_id, committed, roster, False, locked, pass_us)

    def begin(self, here: StageDone) -> list[Effect]:
        """A round begins here. All others hear of it where those in quarantine are others than
        before."""
        if here.locked == self.locked_here:
            return []
        self.locked_here = here.locked
        return self.broadcast(here)

    def broadcast(self, here: StageDone) -> list[Effect]:
        """Report to all others how far this peer is, and who is in its stage."""
        return [Send(peer, here) for peer in self._everybody]

    def others(self) -> list[PeerId]:
        """Return the peers of the other stages that are there."""
        elsewhere = [p for p in self._everybody if self.pipeline.stage_of(p) != self.stage]
        return [peer for peer in elsewhere if not self.members.skip_reason(peer)]

    def ask_others(self) -> list[Effect]:
        """For a peer that has no state yet: how far is the run?"""
        asks = replace(self.report(0, 0, self.pipeline.stages[self.stage]), asks=True)
        return [Send(peer, asks) for peer in self.others()]

    def ask(self, here: StageDone, now: float) -> list[Effect]:
        """Asks whoever has not said that it holds the round that we wait with, and again later."""
        round_id = here.round_id
        lacking = [p for p in self._everybody if not self._holds(p, round_id)]
        asked: list[Effect] = [Send(p, replace(here, asks=True)) for p in lacking]
        return [*asked, self.timers.set(now + ASK_EVERY_S, BarrierTimer(round_id))]
