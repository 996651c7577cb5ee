"""Whether another stage has nobody left. Its round is never over then, so nobody waits for ever."""

from __future__ import annotations

from gossip.core.events import Halt, Report
from gossip.core.lifecycle import QUORUM_LOST, STATE_LOST
from gossip.core.messages import PeerId
from gossip.core.settings import CoreSettings

from .barrier import Presence, StageBarrier


class StageWatch:
    """Which of the other stages have lost all their peers, and for how long. To be asked every now
    and then."""

    def __init__(self, settings: CoreSettings, barrier: StageBarrier, members: Presence) -> None:
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

    def look(self, round_id: int, now: float) -> tuple[list[Report], Halt | None]:
        """Returns what there is to say, and how this peer ends, if it does."""
        reports: list[Report] = []
        for stage, peers in enumerate(self.pipeline.stages):
            lost = stage != self.barrier.stage and self._is_lost(peers)
            if not lost:
                self._came.add(stage)
            if lost == (stage in self._lost_at):
                continue
            if lost:
                self._lost_at[stage] = now
            else:
                del self._lost_at[stage]
            fields = {"stage": stage, "peers": [*peers], "round": round_id}
            if stage in self._came:
                told = Report("stage_lost", fields) if lost else Report("stage_back", fields)
                reports.append(told)
        for stage in sorted(self._lost_at, key=self._lost_at.__getitem__):
            if (halt := self._verdict(stage, round_id, now)) is not None:
                return reports, halt
        return reports, None

    def _is_lost(self, peers: tuple[PeerId, ...]) -> bool:
        away = all(self.members.skip_reason(peer) for peer in peers)
        return away and self._completed.isdisjoint(peers)

    def _verdict(self, stage: int, round_id: int, now: float) -> Halt | None:
        """None: somebody may come."""
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
        if left and not self.pipeline.rebuilds and all(members.is_gone(peer) for peer in peers):
            why = f"{lost}, and is not to be made anew (lost_stage = stop)"
            return Halt(f"state lost: {why}", STATE_LOST)
        none_comes = not left and all(members.has_ended(peer) for peer in peers)
        if waited_s < self._quorum_timeout_s and not none_comes:
            return None
        why = f"{lost}, and none came back; waited {waited_s:.0f} s"
        return Halt(f"quorum lost: {why}", QUORUM_LOST)
