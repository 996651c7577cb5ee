"""Detection of stages that have lost all their peers. The rounds cannot end without these stages,
so this peer halts after a timeout."""

from __future__ import annotations

from gossip.core import QUORUM_LOST, STATE_LOST, CoreSettings, Halt, MemberTable, PeerId, Report

from .barrier import StageBarrier


class StageWatch:
    """The other stages that have lost all their peers, and the times of the losses. The peer calls
    ``check_lost_stages`` periodically."""

    def __init__(self, settings: CoreSettings, barrier: StageBarrier, members: MemberTable) -> None:
        self.pipeline = barrier.pipeline
        self.barrier = barrier
        self.members = members
        rounds = settings.rounds
        self._quorum_timeout_s = rounds.quorum_timeout_s
        self._start_timeout_s = rounds.start_timeout_s
        self._seen: set[int] = set()  # Stages that have had a reachable peer.
        self._lost_at: dict[int, float] = {}
        self._completed: set[PeerId] = set()

    def note(self, peer: PeerId, completed: bool) -> None:
        """Record whether a peer of another stage has completed its rounds."""
        (self._completed.add if completed else self._completed.discard)(peer)

    def check_lost_stages(self, round_id: int, now: float) -> tuple[list[Report], Halt | None]:
        """Return reports of stages that were lost or have recovered. The second result is the halt
        of this peer, if it must halt."""
        changed = self._note_lost(now)
        lost = sorted(self._lost_at, key=self._order)
        after = {stage for stage in lost[1:] if self._left_after(lost[0], stage)}
        reports = [
            Report(
                "stage_lost" if stage in self._lost_at else "stage_back",
                {"stage": stage, "peers": [*self.pipeline.stages[stage]], "round": round_id},
            )
            for stage in changed
            if stage in self._seen and stage not in after
        ]
        for stage in lost:
            if (halt := self._verdict(stage, stage in after, round_id, now)) is not None:
                return reports, halt
        return reports, None

    def _note_lost(self, now: float) -> list[int]:
        """Update the set of lost stages. Return the stages that were lost or have recovered."""
        changed = []
        for stage, peers in enumerate(self.pipeline.stages):
            lost = stage != self.barrier.stage and self._is_lost(peers)
            if not lost:
                self._seen.add(stage)
            if lost != (stage in self._lost_at):
                changed.append(stage)
            if lost:
                self._lost_at.setdefault(stage, now)
            else:
                self._lost_at.pop(stage, None)
        return changed

    def _order(self, stage: int) -> tuple[float, float]:
        """Return the sort key that orders lost stages by their time of loss.

        After the loss of one stage, other stages often leave before the next check. Then all these
        stages have the same time of loss, so the time of the last message determines the order.
        """
        return self._lost_at[stage], self._last_message_at(stage)

    def _last_message_at(self, stage: int) -> float:
        return max(self.members.last_message_at(peer) for peer in self.pipeline.stages[stage])

    def _left_after(self, first: int, stage: int) -> bool:
        """Whether a peer of ``stage`` has left after the last message of stage ``first``."""
        members, since = self.members, self._last_message_at(first)
        peers = self.pipeline.stages[stage]
        return any(
            members.has_left(peer) and members.last_message_at(peer) > since for peer in peers
        )

    def _is_lost(self, peers: tuple[PeerId, ...]) -> bool:
        away = all(self.members.skip_reason(peer) for peer in peers)
        return away and self._completed.isdisjoint(peers)

    def _verdict(self, stage: int, after: bool, round_id: int, now: float) -> Halt | None:
        """Return the halt that a lost stage causes; None if one of its peers may still restart.
        ``after``: whether the stage has left because of the loss of another stage."""
        peers, members = self.pipeline.stages[stage], self.members
        waited_s = now - self._lost_at[stage]
        named = ", ".join(map(str, peers))
        if stage not in self._seen:
            if waited_s < self._start_timeout_s:
                return None
            return Halt(
                f"no peer of stage {stage} (peers {named}) has started in {waited_s:.0f} s",
                QUORUM_LOST,
            )
        lost = f"stage {stage} has lost all its peers ({named}) in round {round_id}"
        left = any(members.has_left(peer) for peer in peers)
        # A peer leaves without a request only if no other peer of its stage has the state.
        gone = left and not after and all(members.is_gone(peer) for peer in peers)
        if gone and not self.pipeline.rebuilds:
            why = f"{lost}, and it is not rebuilt (lost_stage = stop)"
            return Halt(f"state lost: {why}", STATE_LOST)
        none_comes = not left and all(members.has_ended(peer) for peer in peers)
        if waited_s < self._quorum_timeout_s and not none_comes:
            return None
        why = f"{lost}, and none is back after {waited_s:.0f} s"
        return Halt(f"quorum lost: {why}", QUORUM_LOST)
