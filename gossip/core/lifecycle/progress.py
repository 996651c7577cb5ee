"""Progress of the other peers, and the choice of a donor for commits or a state."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from gossip.core.messages import Hello, PeerId
from gossip.core.rounds import ForkChoice, FutureBuffer, LocalProgress
from gossip.core.view import MembersView

from .bootstrap import Bootstrap


@dataclass(eq=False)
class PeerProgress:
    """Rounds and branches that the other peers have announced.

    Args:
        local_progress: Progress of the local peer.
        fork_choice: Choice of a branch. None in gossip rounds, which have no history and therefore
            no branches.
    """

    members: MembersView
    bootstrap: Bootstrap
    local_progress: LocalProgress
    future_buffer: FutureBuffer
    fork_choice: ForkChoice | None

    def __post_init__(self) -> None:
        self.local = self.members.local
        self._turn = 0
        self._incarnations: dict[PeerId, int] = {}  # Incarnation of each peer's latest hello.
        # Linked peers that have sent no hello in their present incarnation.
        self._unannounced: set[PeerId] = set()

    def on_hello(self, peer: PeerId, incarnation: int, hello: Hello, now: float) -> bool:
        """Record the round that ``peer`` announces. A new incarnation of ``peer`` clears earlier
        announcements.

        Returns: Whether this is the first hello of ``peer``.
        """
        if incarnation > self._incarnations.get(peer, -1):
            self._incarnations[peer] = incarnation
            self.bootstrap.begins_anew(peer)
            self.future_buffer.begins_anew(peer, incarnation)
        roster, here = self.local_progress.roster, self.local_progress.round_id
        if hello.round_id < here and peer not in roster:
            # The peer will adopt the state of another peer.
            self.note_state(peer, now + self.bootstrap.settings.rounds.round_timeout_s)
        elif peer in self._unannounced:
            self.note_state(peer, now)
        self._unannounced.discard(peer)
        return self.bootstrap.record_hello(peer, hello, now)

    def expect_hello(self, peer: PeerId) -> None:
        """Record that a connected peer has not announced its round yet. Its link may be busy with
        payloads for other peers on the same host, which the local peer cannot observe."""
        member = self.members.members.get(peer)
        if member is not None and self._incarnations.get(peer, -1) < member.incarnation:
            self._unannounced.add(peer)
            self.note_state(peer, inf)

    def donors(self) -> tuple[PeerId, ...]:
        """Return the peers that may have the state: peers that are alive and not skipped. They are
        sorted: first the donors on the preferred branch, and within a branch the donors in later
        rounds."""
        usable = [
            p for p in self.members.alive() if p != self.local and not self.members.skip_reason(p)
        ]
        return tuple(
            sorted(usable, key=lambda peer: (not self._wanted(peer), -self.round_of(peer), peer))
        )

    def note_state(self, peer: PeerId, until: float) -> None:
        """Record that ``peer`` may be receiving a state until the time ``until``. ``peer`` may be
        the local peer."""
        self.members.note_state(peer, until)

    def next_donor(self) -> PeerId | None:
        """Return a different donor in each call, so that the load is distributed; None if there is
        no donor. Members of the roster are preferred, because newcomers lack the commits from
        before they joined."""
        donors = self.donors()
        donors = tuple([peer for peer in donors if peer in self.local_progress.roster]) or donors
        if not donors:
            return None
        self._turn += 1
        return donors[self._turn % len(donors)]

    def is_on_other_branch(self, peer: PeerId) -> bool:
        """Whether messages of ``peer`` have shown that it is on another branch of the history."""
        return self.fork_choice is not None and self.fork_choice.is_on_other_branch(peer)

    def may_be_on_other_branch(self, peer: PeerId, hello: Hello) -> bool:
        """Whether ``peer`` is on another branch, or is ahead and may be on another branch. If
        ``peer`` is ahead, only a notice of ``peer`` shows its branch. If ``peer`` sent this notice
        before its link to the local peer was open, the notice is lost."""
        is_partitioned = self.fork_choice is not None and self.fork_choice.is_partitioned(peer)
        return self.is_on_other_branch(peer) or (
            is_partitioned and hello.round_id > self.local_progress.round_id
        )

    def _wanted(self, peer: PeerId) -> bool:
        """Whether ``peer`` is on the preferred side of a fork, or no side is preferred."""
        return self.fork_choice is None or self.fork_choice.prefers(peer)

    def round_of(self, peer: PeerId) -> int:
        """Return the latest round that ``peer`` has reported."""
        hello, member = self.bootstrap.hellos.get(peer), self.members.members.get(peer)
        applied = member.progress.step if member is not None and member.progress is not None else 0
        return max(
            self.future_buffer.seen.get(peer, 0),
            hello.round_id if hello is not None else 0,
            applied,
        )

    def mark_unreported_members(self) -> None:
        """Mark the members of the roster that have announced no round as unreported. Called when
        the local peer begins to follow the rounds. The local peer does not wait for such members,
        because they may have just started."""
        others = [peer for peer in self.local_progress.roster if peer != self.local]
        self.future_buffer.mark_unreported(
            [peer for peer in others if not self._has_reported_round(peer)]
        )

    def _has_reported_round(self, peer: PeerId) -> bool:
        """Whether the present incarnation of ``peer`` has reported a round."""
        member = self.members.members.get(peer)
        is_former = member is not None and self._incarnations.get(peer, -1) < member.incarnation
        return not is_former and self.round_of(peer) > 0

    def record_round(self, peer: PeerId, round_id: int) -> None:
        """Record the round that ``peer`` has reported."""
        self.future_buffer.record_round(peer, round_id)

    def is_gone(self, peer: PeerId) -> bool:
        """Whether ``peer`` is dead or has left."""
        return self.members.is_gone(peer)

    def met(self) -> tuple[PeerId, ...]:
        """Return the peers that are or were members."""
        return self.members.met()
