"""A barrier between the stages: a stage applies its commit of a round only after all stages have
committed the round.

Until then, any stage may have to recompute a micro-batch of the round with the old parameters.
Afterwards, no peer needs the activations of the round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gossip.core import (
    CHECK_INTERVAL_S,
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


@record
class BarrierTimer:
    """Time of the next request for missing reports about a round."""

    round_id: int


class StageBarrier:
    """The progress of all stages, from the reports of their members.

    Args:
        settings: Settings of the whole run.
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
        self.locked_here: tuple[PeerId, ...] = ()  # Peers of this stage in quarantine.
        # Latest report of each peer, after the incarnation that sent it.
        self._reports: dict[PeerId, tuple[int, StageDone]] = {}
        self._begun: dict[PeerId, int] = {}  # Latest incarnation of each peer that was in a round.

    def roster_of(self, stage: int) -> tuple[PeerId, ...]:
        """Return the roster of another stage, from the reports of its members. If there is no
        report, return all peers of the stage."""
        latest = self._latest_of(stage)
        return self.pipeline.stages[stage] if latest is None else latest.roster

    def _latest_of(self, stage: int) -> StageDone | None:
        """Return the report with the most commits from the members of a stage; None if there is no
        report.

        Reports of reachable members have priority, because the roster of a rebuilt stage differs
        from the reports of its dead members.
        """
        known = [p for p in self.pipeline.stages[stage] if p in self._reports]
        reachable = [p for p in known if not self.members.skip_reason(p) and self._is_current(p)]
        reports = [self._reports[p][1] for p in reachable or known]
        return max(reports, key=lambda each: each.committed, default=None)

    def locked_of(self, stage: int) -> frozenset[PeerId]:
        """Return the peers of another stage that are in quarantine. At least ``audit_votes``
        members must report a peer, so that Byzantine members alone cannot exclude it."""
        peers = self.pipeline.stages[stage]
        reports = [self._reports[p][1] for p in peers if p in self._reports]
        named = Counter([peer for each in reports for peer in each.locked])
        return frozenset([p for p, count in named.items() if count >= self.settings.audit_votes])

    def working(self, stage: int) -> tuple[PeerId, ...]:
        """Return the roster of another stage without the peers in quarantine."""
        roster, locked = self.roster_of(stage), self.locked_of(stage)
        return tuple([peer for peer in roster if peer not in locked]) or roster

    def weights_of(self, stage: int) -> dict[PeerId, float]:
        """Return the weight of each working peer of another stage for the division of
        micro-batches."""
        latest, roster = self._latest_of(stage), self.roster_of(stage)
        pass_us = () if latest is None else latest.pass_us
        return self.weights(roster, pass_us, self.working(stage))

    def weights(
        self, roster: Sequence[PeerId], pass_us: Sequence[int], working: Sequence[PeerId]
    ) -> dict[PeerId, float]:
        """Return the weight of each peer in ``working``. ``pass_us``: time of a pass of each peer
        in the roster; if it is empty, the times of the plan are used."""
        if not pass_us:
            predicted = StageSpeeds(self.settings.f, dict(self.pipeline.pass_us))
            pass_us = predicted.pass_us(roster)
        found = weights_of(dict(zip(roster, pass_us, strict=True)))
        return {peer: found[peer] for peer in working}

    def ranking(
        self, round_id: int, micro_batch: int, stage: int, weights: Weights | None = None
    ) -> list[PeerId]:
        """Return the peers of a stage in order of priority for a micro-batch. The default of
        ``weights`` is ``weights_of``."""
        weights = self.weights_of(stage) if weights is None else weights
        return self._router.ranking(round_id, micro_batch, stage, weights)

    def _is_current(self, peer: PeerId) -> bool:
        """Whether the latest report of a peer was sent by its current incarnation."""
        return self._reports[peer][0] >= self.members.incarnation_of(peer)

    def note_begun(self, peer: PeerId, incarnation: int) -> bool:
        """Record that a peer has begun its rounds. Return whether this is new for its
        incarnation."""
        news = self._begun.get(peer, -1) < incarnation
        if news:
            self._begun[peer] = incarnation
        return news

    def has_begun(self, peer: PeerId) -> bool:
        """Whether the current incarnation of a peer has begun its rounds. Before that, its node
        drops all activations, because it has no layers."""
        known = self.members.incarnation_of(peer)
        return peer in self._begun and self._begun[peer] >= known

    def is_returning(self, peer: PeerId) -> bool:
        """Whether a peer was restarted and has not begun its rounds again."""
        return peer in self._begun and not self.has_begun(peer)

    def round_of(self, peer: PeerId) -> int:
        """Return the last reported round of a peer in another stage; 0 without a report."""
        return self._reports[peer][1].round_id if peer in self._reports else 0

    def furthest(self) -> int | None:
        """Return the latest round that more than f peers of other stages have reached. Return None
        if the report of a reachable peer is missing, or if there are at most f reports."""
        others = self.others()
        reporters = [p for p in others if p in self._reports and self._is_current(p)]
        rounds = [self._reports[p][1].round_id for p in reporters]
        if len(rounds) < len(others) or len(rounds) <= self.settings.f:
            return None
        return sorted(rounds, reverse=True)[self.settings.f]

    @property
    def report_count(self) -> int:
        """Number of peers that have sent a report."""
        return len(self._reports)

    def record_report(self, sender: PeerId, incarnation: int, done: StageDone) -> bool:
        """Store a report. Return whether it was valid and newer than the sender's previous report.
        A member may report only about its own stage."""
        if self.pipeline.stage_of(sender) != done.stage or not done.roster:
            return False
        members = set(self.pipeline.stages[done.stage])
        for named in (done.roster, done.locked):
            if list(named) != sorted(set(named)) or not set(named) <= members:
                return False
        if done.pass_us and (len(done.pass_us) != len(done.roster) or min(done.pass_us) < 1):
            return False
        life, before = self._reports.get(sender, (-1, done))
        news = (incarnation, done.committed, done.round_id)
        if sender in self._reports and news <= (life, before.committed, before.round_id):
            return False
        self._reports[sender] = incarnation, done
        return True

    def is_open(self, round_id: int) -> bool:
        """Whether this peer may apply a round that its own stage has committed."""
        needed = self.settings.f + 1
        beyond = [each for _, each in self._reports.values() if each.round_id > round_id]
        if len(beyond) >= needed:
            return True
        return all(
            self._has_committed(stage, round_id)
            for stage in range(len(self.pipeline.stages))
            if stage != self.stage
        )

    def _has_committed(self, stage: int, round_id: int) -> bool:
        """Whether all reachable working members of a stage have committed a round. At least f + 1
        members must report this, or all members if there are fewer."""
        roster = self.working(stage)
        holding = [peer for peer in roster if self._holds(peer, round_id)]
        enough = len(holding) >= min(self.settings.f + 1, len(roster))
        return enough and all(peer in holding or self.members.skip_reason(peer) for peer in roster)

    def _holds(self, peer: PeerId, round_id: int) -> bool:
        if peer not in self._reports or not self._is_current(peer):
            return False  # A new incarnation must report again.
        return self._reports[peer][1].committed > round_id

    def on_round_committed(
        self, round_id: int, roster: tuple[PeerId, ...], pass_us: tuple[int, ...], now: float
    ) -> list[Effect]:
        """Report a commit of this stage to all peers, and request their reports until the commit
        may be applied. ``roster``: roster of the next round. ``pass_us``: time of a pass of each of
        its peers."""
        effects = self.broadcast(
            self.report(round_id, round_id + 1, roster, pass_us, self.locked_here)
        )
        if not self.is_open(round_id):
            effects.append(self.timers.set(now + CHECK_INTERVAL_S, BarrierTimer(round_id)))
        return effects

    def report(
        self,
        round_id: int,
        committed: int,
        roster: tuple[PeerId, ...],
        pass_us: tuple[int, ...] = (),
        locked: tuple[PeerId, ...] = (),
    ) -> StageDone:
        """Return a report about the progress of this stage."""
        lineage = self.settings.lineage
        return StageDone(lineage, self.stage, round_id, committed, roster, False, locked, pass_us)

    def begin(self, here: StageDone) -> list[Effect]:
        """Begin a round. Send a report if the set of peers in quarantine has changed."""
        if here.locked == self.locked_here:
            return []
        self.locked_here = here.locked
        return self.broadcast(here)

    def broadcast(self, here: StageDone) -> list[Effect]:
        """Send a report to all other peers of the run, in all stages."""
        return [Send(peer, here) for peer in self._everybody]

    def others(self) -> list[PeerId]:
        """Return the reachable peers of all other stages."""
        elsewhere = [p for p in self._everybody if self.pipeline.stage_of(p) != self.stage]
        return [peer for peer in elsewhere if not self.members.skip_reason(peer)]

    def ask_others(self) -> list[Effect]:
        """Request the progress of the other stages, because this peer has no state."""
        asks = replace(self.report(0, 0, self.pipeline.stages[self.stage]), asks=True)
        return [Send(peer, asks) for peer in self.others()]

    def ask(self, here: StageDone, now: float) -> list[Effect]:
        """Request reports from all peers that have not reported a commit of this round, and set the
        timer for the next request."""
        round_id = here.round_id
        lacking = [p for p in self._everybody if not self._holds(p, round_id)]
        asked: list[Effect] = [Send(p, replace(here, asks=True)) for p in lacking]
        return [*asked, self.timers.set(now + CHECK_INTERVAL_S, BarrierTimer(round_id))]
