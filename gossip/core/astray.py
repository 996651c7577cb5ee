"""Have others gone on without us? Behind them by some rounds, or too many of those, or on another branch of history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .events import Effect, Send
from .lineage import Lineage
from .messages import CommitRequest, NotMe, PeerId
from .settings import CoreSettings
from .timers import Timers


@dataclass(frozen=True, slots=True)
class StillBehind:
    """``peer`` is ahead of us, and the commits between have had the time to come by themselves."""

    round_id: int
    peer: PeerId


class Astray:
    """Notices that this peer is not where the others are.

    ``lost_track`` names a peer to take the state from, and why, when nothing else can help: too far behind, or on a fork.
    """

    def __init__(self, local: PeerId, settings: CoreSettings, lineage: Lineage, timers: Timers[Any]) -> None:
        self.local, self.settings, self.lineage, self.timers = local, settings, lineage, timers
        self.lost_track: tuple[PeerId, str] | None = None
        self._branches: dict[PeerId, bytes] = {}
        self._asked = -1  # the round for which a timer runs already
        self._requested = (-1, -1)  # of whom the commits from which round on

    def begin(self) -> None:
        """Another round begins: who is on which branch is open again."""
        self._branches.clear()

    def restart(self) -> None:
        """The state of another peer was taken over."""
        self._branches.clear()
        self._asked = -1

    def behind(self, peer: PeerId, round_id: int, now: float) -> list[Effect]:
        """``peer`` is in a later round. The commits between may be on their way; if not, it is asked for them."""
        if peer not in self.settings.peers:
            return []
        here = self.lineage.next_round
        if round_id > here + self.settings.rounds.commit_log:
            self.lost_track = (peer, f"round {round_id} is under way, this peer is in round {here}")
            return []
        if self._asked == here:
            return []
        self._asked = here
        return [self.timers.set(now + self.settings.rounds.behind_after_s, StillBehind(here, peer))]

    def still_behind(self, timer: StillBehind) -> list[Effect]:
        self._asked, self._requested = -1, (timer.peer, timer.round_id)
        return [Send(timer.peer, CommitRequest(self.settings.lineage, timer.round_id))]

    def without_commit(self, peer: PeerId, notice: NotMe, now: float) -> list[Effect]:
        """``peer`` is in a later round and has answered with that. Whoever was asked for the commits between does not keep them,
        nor does it help to ask it again."""
        here = self.lineage.next_round
        if self._requested == (peer, here) and (notice.asked_round, notice.shard, notice.attempt) == (here, 0, 0):
            self._requested = (-1, -1)
            self.lost_track = (peer, f"{peer} is in round {notice.round_id} and does not keep the commits from round {here} on")
            return []
        return self.behind(peer, notice.round_id, now)

    def is_elsewhere(self, peer: PeerId, parent: bytes) -> bool:
        """Whether ``peer``, whose last round has the hash ``parent``, is on another branch.

        When more peers are on that branch than on ours, we change over; of equals, to the lower hash.
        """
        ours = self.lineage.head
        if peer == self.local:
            return False
        self._branches[peer] = parent
        if parent == ours:
            return False
        with_us = 1 + sum(1 for branch in self._branches.values() if branch == ours)
        with_them = sum(1 for branch in self._branches.values() if branch == parent)
        if with_them > with_us or (with_them == with_us and parent < ours):
            where = f"round {self.lineage.next_round}"
            self.lost_track = (peer, f"{with_them} peers are on another branch at {where}, {with_us} on ours")
        return True
