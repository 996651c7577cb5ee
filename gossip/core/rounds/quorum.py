"""Quorum of a round: the number of replies after which an attempt may close, and the number of
updates that the rule needs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gossip.core.messages import PeerId
from gossip.core.settings import CoreSettings

from .roster import Attendance
from .shard import PresentRound, ShardRound


def quorum_of(settings: CoreSettings, n: int) -> int:
    """Return the number of replies after which an attempt may close in a round of ``n`` peers."""
    return 1 if n < 3 or settings.rounds.quorum == "available" else n // 2 + 1


def needed_by_rule(settings: CoreSettings, proven: int) -> int:
    """Return the number of peers that the rule needs in a round.

    The updates of the ``proven`` Byzantine peers are not used, so the rule has to tolerate only f -
    ``proven`` Byzantine peers. With ``quorum = "available"`` it need not tolerate any, so that the
    run does not stop.
    """
    return (
        settings.updates_needed(0 if settings.rounds.quorum == "available" else settings.f - proven)
        + proven
    )


@dataclass(eq=False)
class Quorum:
    """Condition on the replies in the present round, under which an attempt may close.

    Args:
        present: The present round. The caller updates it.
        joining: Peers that are ready to be in the next roster. The caller updates this collection.
    """

    settings: CoreSettings
    present: PresentRound
    attendance: Attendance
    joining: Collection[PeerId]

    def __post_init__(self) -> None:
        self.local, self.skip_reason = self.attendance.local, self.attendance.skip_reason
        self.view, self.departures = self.attendance.view, self.attendance.departures

    def members(self) -> int:
        """Return the size of the roster without the peers that have departed. A peer announces its
        departure only if no server has its update of this round. So, if at least three members
        remain, each quorum is a majority of the peers that may reply, whether or not its server has
        received the announcement."""
        present = self.present
        departed = self.departures.count_left(present.roster.peers, present.round_id)
        return len(present.roster) - departed

    def required(self) -> int:
        """Return the number of replies that a round needs: a majority of the roster, without the
        peers that have left. With fewer than three peers or with ``quorum = "available"``, the
        number is 1 (``_majority``).

        A round that does not change the membership also needs as many replies as the rule needs
        updates. Without this condition, a run with too few peers would complete empty rounds
        immediately, and the training would be over before a peer returns.
        """
        members, roster = self.members(), self.present.roster
        quorum = self._majority(members)
        if members < len(roster) or any(
            peer not in roster and not self.skip_reason(peer) for peer in self.joining
        ):
            return quorum
        proven = len(self.present.proven.intersection(roster))
        return max(quorum, needed_by_rule(self.settings, proven))

    def _majority(self, members: int) -> int:
        """Return the majority of the roster without the peers that have left. The number is smaller
        with ``on_minority = "continue"``, or if newcomers replace peers that have ended."""
        quorum = quorum_of(self.settings, members)
        if self.settings.rounds.on_minority == "continue":
            roster, is_gone = self.present.roster, self.view.is_gone
            remaining = sum([peer == self.local or not is_gone(peer) for peer in roster])
            quorum = min(quorum, quorum_of(self.settings, remaining))
        return min(quorum, self._without_ended(quorum))

    def _without_ended(self, quorum: int) -> int:
        """Return the quorum after some members have ended permanently. If all remaining members are
        reachable, and are at least ``quorum`` peers together with the newcomers, the result is the
        number of remaining members. Otherwise it is ``quorum``.

        With the smaller quorum every remaining member must reply. So the two sides of a partition
        cannot both close an attempt, and this peer receives every result that a remaining member
        has recorded. Ended members are assumed never to return.
        """
        if not self.view.ended:
            return quorum
        roster = self.present.roster
        remaining = [peer for peer in roster if not self.view.has_ended(peer)]
        if len(remaining) >= quorum or any(
            peer != self.local and self.skip_reason(peer) for peer in remaining
        ):
            return quorum
        newcomers = sum(
            [peer not in roster and not self.skip_reason(peer) for peer in self.joining]
        )
        return max(1, len(remaining)) if len(remaining) + newcomers >= quorum else quorum

    def peers_with_rejected_result(self, shard: ShardRound) -> list[PeerId]:
        """Return the reachable members of the roster that have recorded a result which this peer
        has rejected. These members send the result instead of an update."""
        return [
            p
            for p in sorted(shard.rejected_from)
            if p in self.present.roster
            and p not in shard.served.answers
            and not self.skip_reason(p)
        ]

    def suffices(self, shard: ShardRound) -> bool:
        """Whether the replies are enough to close the attempt.

        This is the case if a quorum has replied. It is also the case if the peers with a reply and
        ``peers_with_rejected_result`` together are a majority, and no other peer can reply any
        more. Without this second case the round would never end. The branches then differ: the
        other members have recorded the rejected result. If the few updates are not enough for the
        rule, the round has no result.
        """
        served = shard.served
        if len(served.answers) >= self.required():
            return True
        holders = self.peers_with_rejected_result(shard)
        if not holders or len(served.answers) + len(holders) < self._majority(self.members()):
            return False
        # A skipped peer may still reply, unless it is gone. After each server of the order has had
        # an attempt, do not wait for skipped peers.
        away = [
            peer
            for peer in self.present.roster
            if peer not in served.answers and peer not in holders and not self.view.is_gone(peer)
        ]
        return not away or shard.attempt >= len(shard.order)

    def expected(self) -> Collection[PeerId]:
        """Return the peers that can still send an update for this round."""
        roster, locked = self.present.roster.peers, self.present.locked
        if locked:
            roster = tuple([peer for peer in roster if peer not in locked])
        return self.attendance.reachable(roster)
