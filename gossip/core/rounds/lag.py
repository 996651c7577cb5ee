"""Detection of lag: this peer is some rounds behind, too many rounds behind, or on another branch.

Up to f peers may report a false round. So a peer leaves its rounds for a state transfer only if
more than f peers report a reason to do so. If the rounds of the peer make no progress, the report
of a single peer is enough. In this case a false report costs only time: with f > 0, no peer adopts
a state that a single peer attests (``transfer/receiver.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

from gossip.core.events import Effect, Send
from gossip.core.frozen import record
from gossip.core.latest import Latest
from gossip.core.ledger import Stance
from gossip.core.messages import (
    Commit,
    CommitRequest,
    Hello,
    NotServing,
    PeerId,
    Update,
    UpdateRequest,
)
from gossip.core.requests import LostTrack, Requests
from gossip.core.settings import CHECK_INTERVAL_S, FORKS_KEPT, RESEND_S, UNASKED_SHARE
from gossip.core.timers import Timers
from gossip.core.view import MembersView

from .arrivals import TransferTracker
from .fork_choice import ForkChoice
from .quorum import quorum_of
from .shard import PresentRound
from .timeouts import Deadline


@record
class CatchUpOverdue:
    """End of the wait for missing commits, after which they are requested. ``peer`` has reported a
    later round."""

    round_id: int
    peer: PeerId


@dataclass(eq=False)
class LagDetector:
    """Detector of two conditions: the local peer is behind the other peers, or on another branch.
    If the local peer cannot catch up, the detector requests a state (``LostTrack``)."""

    fork_choice: ForkChoice
    timers: Timers[Any]
    view: MembersView
    deadline: Deadline
    present: PresentRound

    def __post_init__(self) -> None:
        branches = self.fork_choice
        self.settings, self.local, self.lineage = (
            branches.settings,
            branches.local,
            branches.lineage,
        )
        self.transfer_tracker = TransferTracker(self.settings.f)
        self.requests = Requests()
        # latest reported round of each peer that is ahead of the local peer
        self._ahead: dict[PeerId, int] = {}
        self._branches: dict[PeerId, bytes] = {}
        # rounds after which another peer had another history than the local peer
        self.forked: Latest[int, None] = Latest(FORKS_KEPT)
        self._left = b""  # H of the branch that this peer last left for a larger branch.
        self._asked = -1  # Round of the pending ``CatchUpOverdue`` timer.
        # Receiver of the last request for commits, and the first round that it requests.
        self._open: tuple[PeerId, int] | None = None
        # round after the last round in the expected reply to that request, and time of the request
        self._answer_ends, self._asked_at = -1, -inf
        self._came = -1  # Latest round of a received commit.
        # Present pause between two requests, and earliest time of the next request.
        self._pause_s, self._not_before = 0.0, -inf

    def lose_track(self, donor: PeerId, why: str) -> None:
        """Request the state of ``donor``, for the reason ``why``."""
        self.requests.add(LostTrack(donor, why))

    @property
    def lost_track(self) -> LostTrack | None:
        """The open request for a state; None if this peer needs none."""
        return self.requests.find(LostTrack)

    def begin(self) -> None:
        """Begin the next round. The branches of the other peers in this round are unknown at
        first."""
        self._branches.clear()
        here = self.lineage.next_round
        self._ahead = (
            {peer: ahead for peer, ahead in self._ahead.items() if ahead > here}
            if self._ahead
            else self._ahead
        )

    def restart(self, same_round: bool, roster: Iterable[PeerId]) -> None:
        """Continue from the adopted state of another peer. If the round stays the same, the
        recorded branches stay valid. Without them, the next message from the smaller branch would
        lead this peer back to that branch."""
        if not same_round:
            self._branches.clear()
        self.fork_choice.restart(roster)
        self._asked = -1
        self._open = None

    def behind(self, peer: PeerId, round_id: int, now: float) -> list[Effect]:
        """Handle a report that ``peer`` is in a later round. The missing commits may be in transit.
        If they do not arrive in time, this peer requests them."""
        if not self.settings.may_be(peer) or self.fork_choice.is_on_other_branch(peer):
            return []
        here = self.lineage.next_round
        self._ahead[peer] = max(round_id, self._ahead.get(peer, 0))
        if self.fork_choice.is_partitioned(peer):
            # The peer that is ahead may be on the lighter side of a partition. Its reply will show
            # this, so request at once: the rounds may be too short to wait for the timer.
            if now < self._not_before:
                return []
            self._not_before = now + RESEND_S
            return [self.request(peer, now)]
        # If both sides may continue, a reported round may belong to a branch that the reporting
        # peer has left since.
        far = here + self.settings.rounds.commit_log
        if (
            round_id > far
            and (self.present.mode == "following" or not self.fork_choice.may_differ)
            and self.is_credible(self._beyond(far), now)
        ):
            self.lose_track(peer, f"round {round_id} is under way, this peer is in round {here}")
            return []
        if self._asked == here:
            return []
        self._asked = here
        return [
            self.timers.set(
                max(now + self._behind_after_s(), self._not_before), CatchUpOverdue(here, peer)
            )
        ]

    def _behind_after_s(self) -> float:
        """Return the time for which this peer waits for missing commits before it requests them, in
        seconds. If commits are large, this time is a fraction of a typical round."""
        share_s = (
            min(UNASKED_SHARE * self.deadline.typical_round_s(), CHECK_INTERVAL_S)
            if self.transfer_tracker.takes_time
            else 0.0
        )
        return max(self.settings.rounds.behind_after_s, share_s)

    def are_coming(self, now: float) -> bool:
        """Whether the missing commits will arrive without a further request: they are in transit,
        queued behind other payloads, or part of the reply to a request."""
        here = self.lineage.next_round
        moved_at = max(self._asked_at, self.present.began_at)
        if here < self._answer_ends and now - moved_at < RESEND_S:
            return True
        lacking = [shard for shard in self.present.entered if shard.commit is None]
        limit = now + self.deadline.cap_s
        if lacking and all(
            shard.commit_transfer is not None
            and shard.commit_transfer.moves(now)
            and shard.commit_transfer.ends_at(now) <= limit
            for shard in lacking
        ):
            return True
        if self._came > here >= self._answer_ends:
            # a later commit has arrived, but not the missing commits, and no request covers them
            return False
        most_s = self.transfer_tracker.most_s(now)
        if now - self.present.began_at <= most_s:
            return self.transfer_tracker.is_busy(self.local, now)
        # The reply to a further request would only be queued behind the reply to the last request.
        if self._open is None or now - self._asked_at > most_s:
            return False
        return self.transfer_tracker.is_sending(self._open[0], now + most_s, now)

    def on_later_commit(self, round_id: int) -> None:
        """Record a complete commit of a later round."""
        self._came = max(self._came, round_id)

    def on_refusal(self) -> None:
        """Handle the rejection of a result. The later commits in the same reply depend on that
        result, so do not wait for them."""
        self._answer_ends = -1

    def on_disconnect(self, peer: PeerId) -> None:
        """Handle the loss of the link to ``peer``. The rest of a reply from ``peer`` is lost
        too."""
        self.transfer_tracker.on_disconnect(peer)
        if self._open is not None and self._open[0] == peer:
            self._answer_ends = -1

    def still_behind(self, timer: CatchUpOverdue, now: float) -> list[Effect]:
        """Request the missing commits, unless they will arrive without a request. A reply contains
        all missing commits and takes long on a slow link, so the pauses between requests grow."""
        if self.are_coming(now):
            return [self.timers.set(now + CHECK_INTERVAL_S, timer)]
        soon_again = now < self._not_before + RESEND_S
        self._pause_s = (
            min(2.0 * self._pause_s, RESEND_S)
            if soon_again
            else self.settings.rounds.behind_after_s
        )
        self._asked, self._not_before = -1, now + self._pause_s
        return [self.request(self._in_turn(timer.peer), now)]

    def _in_turn(self, peer: PeerId) -> PeerId:
        """Return the receiver of the next request: a peer that is ahead and did not receive the
        last request. This peer may reject a result until more than f peers have sent that result,
        so it has to request from several peers."""
        last, here = self._open, self.lineage.next_round
        if last is None or last != (peer, here):
            return peer
        ahead = sorted([other for other, round_id in self._ahead.items() if round_id > here])
        return next((other for other in ahead if other > peer), ahead[0]) if ahead else peer

    def request(self, peer: PeerId, now: float) -> Send:
        """Return a request to ``peer`` for the commits of the present round and of all later
        rounds. ``peer`` may reply that it no longer stores these commits."""
        self._open = (peer, self.lineage.next_round)
        self._answer_ends = max(self._ahead.get(peer, -1), self.lineage.next_round + 1)
        self._asked_at = now
        # If this peer returns to a round that it has left, it is still bound by its attempts in
        # that round.
        shards = self.present.entered
        attempt = max([shard.attempt for shard in shards], default=0)
        lacking = tuple([shard.index for shard in shards if shard.commit is None])
        lacking = lacking if len(lacking) < len(shards) else ()
        return Send(
            peer, CommitRequest(self.settings.lineage, self.lineage.next_round, attempt, lacking)
        )

    def not_serving(self, asked: Update | UpdateRequest) -> NotServing:
        """Return the reply to an update for an attempt that this peer does not serve, or to an
        update request from another branch."""
        where = (asked.lineage, asked.round_id, asked.shard, asked.attempt)
        return NotServing(*where, round_id=self.lineage.next_round, chain=self.lineage.head)

    def in_no_round(self, asked: UpdateRequest) -> NotServing:
        """Return the reply of a peer that is in a state transfer. The reply does not name the
        branch that the peer leaves. Otherwise the peer would count towards that branch, and other
        peers might change to a branch that all its peers have left."""
        where = (asked.lineage, asked.round_id, asked.shard, asked.attempt)
        return NotServing(*where, round_id=0, chain=self.lineage.unbegun)

    def not_kept(self, peer: PeerId, notice: NotServing, now: float) -> list[Effect]:
        """Handle a notice in which ``peer`` reports a later round.

        If the notice is the reply to a request for commits, ``peer`` does not store these commits,
        because it has adopted a state itself. This peer then needs the state of ``peer``. The reply
        to a late update looks alike, but contains the attempt of the update.
        """
        here, round_id = self.lineage.next_round, notice.round_id
        if self._shows(peer, notice):
            self._weigh()
            return []
        if (
            self._open != (peer, here)
            or notice.asked_round != here
            or notice.attempt
            or notice.shard
        ):
            return self.behind(peer, round_id, now)
        self._open, self._answer_ends = None, -1
        self._ahead[peer] = max(round_id, self._ahead.get(peer, 0))
        if not self.is_credible(self._beyond(here), now):
            return self.behind(peer, round_id, now)
        self.lose_track(
            peer,
            f"round {round_id} is under way, and the commits from round {here} on are not kept",
        )
        return []

    def _beyond(self, round_id: int) -> int:
        """Return the number of peers that have reported a round after ``round_id``."""
        return sum([ahead > round_id for ahead in self._ahead.values()])

    def is_ahead(self, peer: PeerId) -> bool:
        """Whether ``peer`` has reported a later round."""
        return self._ahead.get(peer, 0) > self.lineage.next_round

    def is_passed(self, round_id: int) -> bool:
        """Whether other peers certainly have a commit of ``round_id``: more than f peers have
        reported a later round."""
        return self._beyond(round_id) > self.settings.f

    def awaits_commit(self, now: float) -> bool:
        """Whether other peers have a commit of the present round that may still arrive. While it is
        True, a server that was paused must not make another commit. It is False after one round
        timeout, because the peers that are ahead may be on another branch."""
        return (
            self.is_passed(self.lineage.next_round)
            and now - self.present.began_at <= self.deadline.round_timeout_s()
        )

    def is_credible(self, count: int, now: float) -> bool:
        """Whether the reports of ``count`` peers are enough for this peer to leave its rounds."""
        return (
            count > self.settings.f
            or now - self.present.began_at > self.settings.rounds.round_timeout_s
        )

    def record_commit_branch(self, peer: PeerId, commit: Commit, now: float) -> bool:
        """Record the branch of a commit of the present round that ``peer`` has sent.

        If this peer requested the commit, the commit shows that the other branch has a majority.
        The branch of this peer can then never have a majority, so this peer requests a state.

        Returns: Whether the commit belongs to another branch.
        """
        if not self.record_branch(peer, commit.parent, now):
            return False
        if self.fork_choice.may_differ:
            return True
        if (
            self._open == (peer, commit.round_id)
            and quorum_of(self.settings, len(self.settings.peers)) > 1
        ):
            self._ahead.setdefault(peer, commit.round_id + 1)
            if not self.is_credible(self._beyond(commit.round_id), now):
                return True
            self.lose_track(peer, f"round {commit.round_id} was committed on another branch")
        return True

    def on_hello(self, peer: PeerId, hello: Hello, stance: Stance, now: float) -> list[Effect]:
        """Handle the round that ``peer`` has announced. If ``peer`` is on another branch and behind
        this peer, send a notice to ``peer``, because the commits of its own branch do not show the
        fork."""
        if (
            not self.fork_choice.may_differ
            and hello.chain
            and hello.round_id == self.lineage.next_round
        ):
            self.record_branch(peer, hello.chain, now)
        self._weigh()
        if stance != "fork":
            return []
        where = (self.settings.lineage, hello.round_id, 0, 0)
        return [
            Send(
                peer,
                NotServing(*where, self.lineage.next_round, self.lineage.before(hello.round_id)),
            )
        ]

    def _shows(self, peer: PeerId, notice: NotServing) -> bool:
        """Whether a notice shows that its sender, which is ahead, is on another branch. A notice
        without a hash shows another branch, unless its sender has recently contributed to the local
        branch."""
        if self.present.mode == "following":
            return False  # this peer has adopted a state and is on neither side
        tells = self.fork_choice.may_differ and (
            notice.chain or self.fork_choice.is_partitioned(peer)
        )
        return bool(tells) and not self.fork_choice.check_branch(
            peer, notice.asked_round, notice.chain
        )

    def _weigh(self) -> None:
        if self.fork_choice.may_differ and (heavier := self.fork_choice.heavier()) is not None:
            self.lose_track(*heavier)

    def is_back(self, now: float) -> bool:
        """Whether this peer has recently tried to change its branch, but has returned without a new
        state, because the peers of both branches had changed sides. In this case only peers for
        which the other branch is certainly larger leave again. The other peers stay, and send a
        state to the peers that leave."""
        return (
            self._left == self.lineage.head
            and now - self.present.began_at <= self.settings.rounds.round_timeout_s
        )

    def record_branch(self, peer: PeerId, parent: bytes, now: float) -> bool:
        """Record that the last round of ``peer`` has the hash ``parent``. If more peers are on that
        branch than on the local branch, request a state. If both branches have the same number of
        peers, the branch with the lower hash wins.

        Returns: Whether ``peer`` is on another branch.
        """
        ours = self.lineage.head
        if peer == self.local:
            return False
        if self.lineage.unbegun in (ours, parent):
            # A peer that has not begun the run is no reason to change the branch.
            return parent != ours
        if self.fork_choice.may_differ:
            apart = not self.fork_choice.check_branch(peer, self.lineage.next_round, parent)
            self._weigh()
            return apart
        self._branches[peer] = parent
        if parent == ours:
            return False
        self.forked[self.lineage.next_round - 1] = None
        with_us = 1 + sum(1 for branch in self._branches.values() if branch == ours)
        with_them = sum(1 for branch in self._branches.values() if branch == parent)
        silent = 0
        if self.is_back(now):
            unheard = {*self.view.met()} - {*self._branches, self.local}
            silent = sum([not self.view.skip_reason(other) for other in unheard])
        more = with_them > with_us + silent or (with_them == with_us + silent and parent < ours)
        if more and self.is_credible(with_them, now):
            self._left = ours
            where = f"round {self.lineage.next_round}"
            self.lose_track(
                peer,
                f"{with_them} peers are on another branch at {where}, {with_us} on ours",
            )
        return True
