"""How far the other peers are, and which of them can give commits or a state."""

from __future__ import annotations

from math import inf

from gossip.core.messages import Hello, PeerId
from gossip.core.rounds import ForkChoice, FutureBuffer, LocalProgress
from gossip.core.view import MembersView

from .bootstrap import Bootstrap


class PeerProgress:
    """Rounds and branches of the other peers, as they announce them.

    ``local_progress`` is that of this peer. ``fork_choice`` is None in gossip rounds: without a
    history nobody can be on another branch of it."""

    def __init__(
        self,
        members: MembersView,
        bootstrap: Bootstrap,
        local_progress: LocalProgress,
        future_buffer: FutureBuffer,
        fork_choice: ForkChoice | None,
    ) -> None:
        self.local, self.members, self.bootstrap = members.local, members, bootstrap
        self.local_progress, self.future_buffer, self.fork_choice = (
            local_progress,
            future_buffer,
            fork_choice,
        )
        self._turn = 0
        self._lives: dict[PeerId, int] = {}  # the latest that each has spoken in
        self._wordless: set[PeerId] = set()  # who is there, and has not spoken in its present life

    def on_hello(self, peer: PeerId, incarnation: int, hello: Hello, now: float) -> bool:
        """``peer`` announces its round. What it announced in a former life is void. Returns whether
        this is its first hello."""
        if incarnation > self._lives.get(peer, -1):
            self._lives[peer] = incarnation
            self.bootstrap.begins_anew(peer)
            self.future_buffer.begins_anew(peer, incarnation)
        roster, here = self.local_progress.roster, self.local_progress.round_id
        if hello.round_id < here and peer not in roster:
            # It will take over a state, of whomever.
            self.note_state(peer, now + self.bootstrap.settings.rounds.round_timeout_s)
        elif peer in self._wordless:
            self.note_state(peer, now)
        self._wordless.discard(peer)
        return self.bootstrap.record_hello(peer, hello, now)

    def expect_words(self, peer: PeerId) -> None:
        """``peer`` is here and has not announced its round yet. Its link may be full of payloads
        for others on its host, of which this peer need not know."""
        member = self.members.members.get(peer)
        if member is not None and self._lives.get(peer, -1) < member.incarnation:
            self._wordless.add(peer)
            self.note_state(peer, inf)

    def donors(self) -> tuple[PeerId, ...]:
        """Peers that may have the state: alive and not skipped. First come those on the branch that
        this peer prefers, then those in the latest rounds."""
        usable = [
            p for p in self.members.alive() if p != self.local and not self.members.skip_reason(p)
        ]
        return tuple(
            sorted(usable, key=lambda peer: (not self._wanted(peer), -self.round_of(peer), peer))
        )

    def note_state(self, peer: PeerId, until: float) -> None:
        """A state is on its way to ``peer`` until that time at the latest. It comes from this peer;
        where ``peer`` is this peer, from another."""
        self.members.note_state(peer, until)

    def next_donor(self) -> PeerId | None:
        """A different donor each time, so that no donor is asked for everything. None: there is
        none. Members of the roster are preferred: newcomers have no commits from before they
        came."""
        donors = self.donors()
        donors = tuple([peer for peer in donors if peer in self.local_progress.roster]) or donors
        if not donors:
            return None
        self._turn += 1
        return donors[self._turn % len(donors)]

    def is_on_other_branch(self, peer: PeerId) -> bool:
        """Whether ``peer`` has shown that it is on another branch of the history."""
        return self.fork_choice is not None and self.fork_choice.is_on_other_branch(peer)

    def may_be_on_other_branch(self, peer: PeerId, hello: Hello) -> bool:
        """Whether it is on another branch, or ahead of us and perhaps on one: only it can tell, and
        what it said when it heard our hello is lost if that came before there was a way back."""
        is_partitioned = self.fork_choice is not None and self.fork_choice.is_partitioned(peer)
        return self.is_on_other_branch(peer) or (
            is_partitioned and hello.round_id > self.local_progress.round_id
        )

    def _wanted(self, peer: PeerId) -> bool:
        """Not of the side that we are about to leave, if there is another."""
        return self.fork_choice is None or self.fork_choice.prefers(peer)

    def round_of(self, peer: PeerId) -> int:
        """The latest round that ``peer`` says it is in."""
        hello, member = self.bootstrap.hellos.get(peer), self.members.members.get(peer)
        applied = member.progress.step if member is not None and member.progress is not None else 0
        return max(
            self.future_buffer.seen.get(peer, 0),
            hello.round_id if hello is not None else 0,
            applied,
        )

    def mark_unreported_members(self) -> None:
        """This peer begins to follow the rounds. Nobody waits for a member that has announced no
        round: it may be newly started."""
        others = [peer for peer in self.local_progress.roster if peer != self.local]
        self.future_buffer.mark_unreported(
            [peer for peer in others if not self._has_reported_round(peer)]
        )

    def _has_reported_round(self, peer: PeerId) -> bool:
        """Whether this life of it has told of a round."""
        member = self.members.members.get(peer)
        is_former = member is not None and self._lives.get(peer, -1) < member.incarnation
        return not is_former and self.round_of(peer) > 0

    def record_round(self, peer: PeerId, round_id: int) -> None:
        """``peer`` says that it is in that round."""
        self.future_buffer.record_round(peer, round_id)

    def is_gone(self, peer: PeerId) -> bool:
        """Whether it is dead or has left."""
        return self.members.is_gone(peer)

    def met(self) -> tuple[PeerId, ...]:
        """Whoever is known to be there, or to have been."""
        return self.members.met()
