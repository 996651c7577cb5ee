"""Whether another stage has nobody left. Its round is never over then, so nobody waits for ever."""

from __future__ import annotations

from gossip.core import QUORUM_LOST, STATE_LOST, CoreSettings, Halt, MemberTable, PeerId, Report

from .barrier import StageBarrier


class StageWatch:
    """Other stages that have lost all their peers, and since when. ``check_lost_stages`` is to be
    called periodically."""

    def __init__(self, settings: CoreSettings, barrier: StageBarrier, members: MemberTable) -> None:
        self.pipeline, self.barrier, self.members = barrier.pipeline, barrier, members
        rounds = settings.rounds
        self._quorum_timeout_s, self._start_timeout_s = (
            rounds.quorum_timeout_s,
            rounds.start_timeout_s,
        )
        self._came: set[int] = set()  # stages of which somebody was there
        self._lost_at: dict[int, float] = {}
        self._completed: set[PeerId] = set()

    def note(self, peer: PeerId, completed: bool) -> None:
        """A peer of another stage says whether it has had all its rounds."""
        (self._completed.add if completed else self._completed.discard)(peer)

    def check_lost_stages(self, round_id: int, now: float) -> tuple[list[Report], Halt | None]:
        """Returns what there is to say, and how this peer ends, if it does."""
        changed = self._note_lost(now)
        lost = sorted(self._lost_at, key=self._order)
        after = {stage for stage in lost[1:] if self._left_after(lost[0], stage)}
        reports = [
            Report(
                "stage_lost" if stage in self._lost_at else "stage_back",
                {"stage": stage, "peers": [*self.pipeline.stages[stage]], "round": round_id},
            )
            for stage in changed
            if stage in self._came and stage not in after
        ]
        for stage in lost:
            if (halt := self._verdict(stage, stage in after, round_id, now)) is not None:
                return reports, halt
        return reports, None

    def _note_lost(self, now: float) -> list[int]:
        """Returns the stages that are lost now and were not before, or the other way round."""
        changed = []
        for stage, peers in enumerate(self.pipeline.stages):
            lost = stage != self.barrier.stage and self._is_lost(peers)
            if not lost:
                self._came.add(stage)
            if lost != (stage in self._lost_at):
                changed.append(stage)
            if lost:
                self._lost_at.setdefault(stage, now)
            else:
                self._lost_at.pop(stage, None)
        return changed

    def _order(self, stage: int) -> tuple[float, float]:
        """The stage that was lost first is why others end, and say goodbye: often before the next
        look, so that both are seen to be lost at once. It was heard of last before they were."""
        return self._lost_at[stage], self._last_message_at(stage)

    def _last_message_at(self, stage: int) -> float:
        return max(self.members.last_message_at(peer) for peer in self.pipeline.stages[stage])

    def _left_after(self, first: int, stage: int) -> bool:
        """Whether one of a stage has said goodbye when nobody of the first was heard any more."""
        members, since = self.members, self._last_message_at(first)
        peers = self.pipeline.stages[stage]
        return any(
            members.has_left(peer) and members.last_message_at(peer) > since for peer in peers
        )

    def _is_lost(self, peers: tuple[PeerId, ...]) -> bool:
        away = all(self.members.skip_reason(peer) for peer in peers)
        return away and self._completed.isdisjoint(peers)

    def _verdict(self, stage: int, after: bool, round_id: int, now: float) -> Halt | None:
        """None: somebody may come. ``after``: it has left after another was lost."""
        peers, members = self.pipeline.stages[stage], self.members
        waited_s, who = now - self._lost_at[stage], ", ".join(map(str, peers))
        if stage not in self._came:
            if waited_s < self._start_timeout_s:
                return None
            return Halt(
                f"none of stage {stage} (peers {who}) came in {waited_s:.0f} s", QUORUM_LOST
            )
        lost = f"stage {stage} has lost all its peers ({who}) in round {round_id}"
        left = any(members.has_left(peer) for peer in peers)
        # Who has left on purpose has not done that while another had the state.
        gone = left and not after and all(members.is_gone(peer) for peer in peers)
        if gone and not self.pipeline.rebuilds:
            why = f"{lost}, and is not to be made anew (lost_stage = stop)"
            return Halt(f"state lost: {why}", STATE_LOST)
        none_comes = not left and all(members.has_ended(peer) for peer in peers)
        if waited_s < self._quorum_timeout_s and not none_comes:
            return None
        why = f"{lost}, and none came back; waited {waited_s:.0f} s"
        return Halt(f"quorum lost: {why}", QUORUM_LOST)
