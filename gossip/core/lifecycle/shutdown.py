"""The end of the training: who has completed it, for whom those who have still stay, and when who
comes late is too late.

A peer whose script has had all its rounds says so in its ``Hello``, with the round that it ended
at, and stays a while: for ``drain_timeout_s`` with those who are here and behind, and with those
who are lost (asleep, cut off, killed and started again) until ``linger_s`` after it lost them. Who
comes back meanwhile finds the final state. Whoever starts the peers may know that one will not come
back; nobody is waited for then.

Where the checkpoint that a peer began with was the end already, the others learn that from it: it
stays until they have come and say so too.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from gossip.core.events import Effect, Halt, Report
from gossip.core.frozen import record
from gossip.core.membership import Change, MemberTable, StageView
from gossip.core.messages import Hello, Message, PeerId, StateRequest
from gossip.core.settings import CoreSettings
from gossip.core.timers import Timers

from .exit_codes import QUORUM_LOST
from .progress import PeerProgress


@record
class LingerExpired:
    """Those who were behind have had their time."""


class Shutdown:
    """``completed``: who said that its training is, and at which round."""

    def __init__(
        self,
        settings: CoreSettings,
        members: MemberTable | StageView,
        peer_progress: PeerProgress,
        timers: Timers[Any],
        differs: Callable[[PeerId], bool],
    ) -> None:
        """``differs``: whether a peer says that it holds another state of our round."""
        self.settings, self.members, self.timers = settings, members, timers
        self.progress, self.seen = peer_progress.local_progress, peer_progress.future_buffer.seen
        self.differs = differs
        self.completed: dict[PeerId, int] = {}
        self._lost_at: dict[PeerId, float] = {}
        self._back_at: dict[PeerId, float] = {}
        self._asked_in: dict[PeerId, int] = {}  # our round when it asked for our state last
        self._loaded = -1  # the round of the checkpoint that this life began with
        self.wanted = -1  # the round that our trainer has offered an update for last
        self._stopped_at = inf
        self._completing = False

    def _others(self) -> list[PeerId]:
        """Whoever is known of: nobody waits for one who was never heard of."""
        return [peer for peer in self.members.members if peer != self.members.local]

    # --- what happens -----------------------------------------------------------------------------

    def record_hello(self, peer: PeerId, hello: Hello) -> None:
        """It says whether it has had all its rounds. One that was started again has not."""
        if hello.stage == "completed":
            self.completed[peer] = hello.round_id
        else:
            self.completed.pop(peer, None)

    def note(self, change: Change, now: float) -> None:
        """In the view: a peer is lost from the first moment on that it cannot be relied on, and
        back when it can again."""
        if change.what in ("skip", "suspect", "dead"):
            self._lost_at.setdefault(change.peer, now)
        elif (
            not self.members.skip_reason(change.peer)
            and self._lost_at.pop(change.peer, None) is not None
        ):
            self._back_at[change.peer] = now

    def begin_at(self, round_id: int) -> None:
        """Our trainer has loaded a checkpoint of that round."""
        self._loaded = round_id

    def offered(self, round_id: int) -> None:
        """Our trainer has offered an update for that round."""
        self.wanted = round_id

    def asked(self, peer: PeerId, message: Message, now: float) -> None:
        """Restart the time of a peer that requests the state of this one: a large state takes
        long."""
        if isinstance(message, StateRequest):
            self._back_at[peer], self._asked_in[peer] = now, self.progress.round_id

    # --- for whom we stay -------------------------------------------------------------------------

    def stop(self, completing: bool, since: float, now: float) -> list[Effect]:
        """This peer wants to leave, because it has completed the training or for another reason;
        was asked to at ``since``."""
        self._stopped_at, self._completing = since, completing
        return self.stay(now)

    def stay(self, now: float) -> list[Effect]:
        """Says for whom, and looks again when their time is over:
        one may have come back meanwhile, and have more."""
        until = self.linger_until()
        if until <= now:
            return []
        lost = sorted(
            peer
            for peer in {*self._others(), *self._unmet()}
            if self.members.skip_reason(peer) and self._needed_until(peer) > now
        )
        told = (
            [Report("lingering", {"for": lost, "at_most_s": round(until - now, 1)})] if lost else []
        )
        return [*told, self.timers.set(until, LingerExpired())]

    def linger_until(self) -> float:
        """How long those who are behind may need us at most; ``-inf``: there is nobody."""
        rounds = self.settings.rounds
        others = (*self._others(), *self._unmet())
        until = max([self._needed_until(peer) for peer in others], default=-inf)
        # Whoever comes and goes does not keep us for ever;
        # and who is told to stop has no time for that.
        return min(
            until,
            self._stopped_at
            + rounds.drain_timeout_s
            + (rounds.linger_s if self._completing else 0.0),
        )

    def _had_nothing_to_do(self) -> bool:
        """Whether the checkpoint that this life began with was the end of the training."""
        return self._completing and self.progress.round_id == self._loaded

    def _unmet(self) -> list[PeerId]:
        """Return the peers that have not come to a training that is over. They would wait there for
        a quorum."""
        if not self._had_nothing_to_do():
            return []
        met = {*self.members.met(), self.members.local}
        first = self.settings.peers
        return [peer for peer in first if peer not in met and not self.members.has_ended(peer)]

    def _needed_until(self, peer: PeerId) -> float:
        drain_s = self.settings.rounds.drain_timeout_s
        here = self.seen.get(peer, 0) >= self.progress.round_id and not self.differs(peer)
        if self._had_nothing_to_do():
            if peer not in self.members.met():
                ended = self.members.has_ended(peer)
                return -inf if ended else self._stopped_at + self.settings.rounds.linger_s
            here = False  # it may not know yet that nothing is left to do
        # One that is in our round may have another result of it,
        # and not have said so but by asking.
        here = here and self._asked_in.get(peer) != self.progress.round_id
        behind = peer not in self.completed and not here
        if not self.members.skip_reason(peer):
            return (
                max(self._stopped_at, self._back_at.get(peer, -inf)) + drain_s if behind else -inf
            )
        if not self._completing:
            return -inf
        # One that has completed, and is out of touch, may wait for us to come back: until the link
        # stands, and we can tell it.
        expected_until = self._expected_until(peer)
        return expected_until if behind else min(expected_until, self._stopped_at + drain_s)

    def _expected_until(self, peer: PeerId) -> float:
        """Until when it is worth to wait for a peer to come back; ``inf``: it is here."""
        member = self.members.members.get(peer)
        if (
            member is None
            or not member.met
            or member.status == "left"
            or self.members.has_ended(peer)
        ):
            return -inf
        return (
            self._lost_at.get(peer, member.known_since) + self.settings.rounds.linger_s
            if member.skip
            else inf
        )

    # --- when we come late ------------------------------------------------------------------------

    def completed_at(self, sayers: int) -> int | None:
        """The round that so many others have completed the training at, or a later one."""
        rounds = sorted(self.completed.values(), reverse=True)
        return rounds[sayers - 1] if len(rounds) >= sayers else None

    def had_last_round(self) -> bool:
        """Whether whoever can be reached has completed the training,
        and nobody at a later round than ours."""
        if not self._nobody_trains():
            return False
        completed_at = self.completed_at(min(self.settings.f + 1, len(self.completed)))
        return completed_at is not None and completed_at <= self.progress.round_id

    def left_behind(self, most: int) -> bool:
        """Whether whoever can be reached has completed the training,
        more than ``most`` rounds ahead of us."""
        completed_at = self.completed_at(self.settings.f + 1)
        return (
            completed_at is not None
            and self._nobody_trains()
            and completed_at > self.progress.round_id + most
        )

    def _nobody_trains(self) -> bool:
        training = [
            peer
            for peer in self._others()
            if peer not in self.completed and not self.members.skip_reason(peer)
        ]
        return bool(self.completed) and not training

    def over_at(self, now: float) -> int | None:
        """The round that the training was over at, when that is certain: more than f say so, and
        nobody else will go on."""
        if any(
            peer not in self.completed and self._expected_until(peer) > now
            for peer in self._others()
        ):
            return None
        return self.completed_at(self.settings.f + 1)

    def verdict(self, now: float, *, has_state: bool) -> Halt | None:
        """How this peer ends, when the training is over and its trainer does not find
        that out by itself. ``has_state``: whether it could go on with the state that it has."""
        over_at, here = self.over_at(now), self.progress.round_id
        if over_at is None:
            return None
        if here >= over_at:
            enough = self.wanted >= over_at
            return (
                Halt(f"the others have completed the training at round {over_at}", 0)
                if enough
                else None
            )
        goes_on_alone = has_state and self.progress.quorum() == 1
        if goes_on_alone or any(self._expected_until(peer) > now for peer in self._others()):
            return None
        return Halt(
            f"the others have completed the training at round {over_at} and are gone: "
            f"this peer is in round {here}, and nobody can give it the final state",
            QUORUM_LOST,
        )
