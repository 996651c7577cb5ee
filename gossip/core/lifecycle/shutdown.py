"""End of the training: the peers that have completed the training, the time for which such a peer
stays, and the halt of late peers.

A peer that has completed the training announces this in its ``Hello``, with its last round. It then
stays for other peers that may need the final state. It stays for ``drain_timeout_s`` if a reachable
peer is behind, and until ``linger_s`` after the loss of a peer that was suspended, cut off or
killed. If the launcher reports that a lost peer will not return, no peer stays for that peer.

If the checkpoint that a peer has loaded was already the end of the training, the peer stays until
the other peers have arrived and announced the end of the training too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

from gossip.core.events import Effect, Halt, Report
from gossip.core.frozen import record
from gossip.core.membership import Change
from gossip.core.messages import Hello, Message, PeerId, StateRequest
from gossip.core.settings import CoreSettings
from gossip.core.timers import Timers
from gossip.core.view import MembersView

from .exit_codes import QUORUM_LOST
from .progress import PeerProgress


@record
class LingerExpired:
    """Timer for the end of the time for which this peer stays."""


class Shutdown:
    """Decisions at the end of the training: how long this peer stays, and whether it has arrived
    too late.

    Args:
        differs: Function that returns whether a peer is in the present round with another head of
            the hash chain.

    Attributes:
        completed: Round at which each peer has completed the training, as the peer has announced.
    """

    def __init__(
        self,
        settings: CoreSettings,
        members: MembersView,
        peer_progress: PeerProgress,
        timers: Timers[Any],
        differs: Callable[[PeerId], bool],
    ) -> None:
        self.settings, self.members, self.timers = settings, members, timers
        self.progress, self.seen = peer_progress.local_progress, peer_progress.future_buffer.seen
        self.differs = differs
        self.completed: dict[PeerId, int] = {}
        self._lost_at: dict[PeerId, float] = {}
        self._back_at: dict[PeerId, float] = {}
        # local round at the last state request of each peer
        self._asked_in: dict[PeerId, int] = {}
        self._loaded = -1  # Round of the checkpoint that this incarnation has loaded.
        self.wanted = -1  # Last round for which the local trainer has offered an update.
        self._stopped_at = inf
        self._completing = False

    def _others(self) -> Iterator[PeerId]:
        """Return the known members except the local peer."""
        return (peer for peer in self.members.members if peer != self.members.local)

    # --- what happens -----------------------------------------------------------------------------

    def record_hello(self, peer: PeerId, hello: Hello) -> None:
        """Record whether ``peer`` has completed the training. A later hello with another stage, for
        example after a restart of ``peer``, clears the record."""
        if hello.stage == "completed":
            self.completed[peer] = hello.round_id
        else:
            self.completed.pop(peer, None)

    def note(self, change: Change, now: float) -> None:
        """Record when a peer is lost and when it returns. A peer counts as lost when it is first
        skipped or suspected."""
        if change.what in ("skip", "suspect", "dead"):
            self._lost_at.setdefault(change.peer, now)
        elif (
            not self.members.skip_reason(change.peer)
            and self._lost_at.pop(change.peer, None) is not None
        ):
            self._back_at[change.peer] = now

    def begin_at(self, round_id: int) -> None:
        """Record that the local trainer has loaded a checkpoint of ``round_id``."""
        self._loaded = round_id

    def offered(self, round_id: int) -> None:
        """Record that the local trainer has offered an update for ``round_id``."""
        self.wanted = round_id

    def asked(self, peer: PeerId, message: Message, now: float) -> None:
        """If ``peer`` requests the local state, restart the wait for ``peer``, because the transfer
        of a large state takes long."""
        if isinstance(message, StateRequest):
            self._back_at[peer], self._asked_in[peer] = now, self.progress.round_id

    # --- time for which this peer stays -----------------------------------------------------------

    def stop(self, completing: bool, since: float, now: float) -> list[Effect]:
        """Begin to leave. ``since``: time of the request to leave. ``completing``: whether this
        peer leaves because the training is complete."""
        self._stopped_at, self._completing = since, completing
        return self.stay(now)

    def stay(self, now: float) -> list[Effect]:
        """Report the lost peers for which this peer stays, and set a timer for the end of the wait.
        If a lost peer returns before that, the wait is extended."""
        until = self.linger_until()
        if until <= now:
            return []
        lost = sorted(
            peer
            for peer in {*self._others(), *self._unmet()}
            if self.members.skip_reason(peer) and self._needed_until(peer) > now
        )
        reports = (
            [Report("lingering", {"for": lost, "at_most_s": round(until - now, 1)})] if lost else []
        )
        return [*reports, self.timers.set(until, LingerExpired())]

    def linger_until(self) -> float:
        """Return the time until which other peers may need the local peer; ``-inf`` if no peer
        needs it."""
        rounds = self.settings.rounds
        others = (*self._others(), *self._unmet())
        until = max([self._needed_until(peer) for peer in others], default=-inf)
        # A peer with an unstable link must not keep the local peer forever. If the local peer
        # leaves before the end of the training, it does not linger for lost peers.
        return min(
            until,
            self._stopped_at
            + rounds.drain_timeout_s
            + (rounds.linger_s if self._completing else 0.0),
        )

    def _had_nothing_to_do(self) -> bool:
        """Whether the checkpoint that this incarnation has loaded was the end of the training."""
        return self._completing and self.progress.round_id == self._loaded

    def _unmet(self) -> list[PeerId]:
        """If the loaded checkpoint was the end of the training, return the initial peers of the run
        that have never arrived. On arrival, such a peer would wait for a quorum."""
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
            # the peer may not have received the announcement that the training is over
            here = False
        # A peer in the same round may have another result of the last round. Its request for the
        # local state may be the only sign of this.
        here = here and self._asked_in.get(peer) != self.progress.round_id
        behind = peer not in self.completed and not here
        if not self.members.skip_reason(peer):
            return (
                max(self._stopped_at, self._back_at.get(peer, -inf)) + drain_s if behind else -inf
            )
        if not self._completing:
            return -inf
        # An unreachable peer that has completed the training may wait for this peer, until it
        # receives the announcement that this peer has completed the training too.
        expected_until = self._expected_until(peer)
        return expected_until if behind else min(expected_until, self._stopped_at + drain_s)

    def _expected_until(self, peer: PeerId) -> float:
        """Return the time until which a lost peer may return; ``inf`` if the peer is not lost,
        ``-inf`` if it cannot return."""
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

    # --- late peers -------------------------------------------------------------------------------

    def completed_at(self, count: int) -> int | None:
        """Return the latest round R such that ``count`` peers have completed the training at R or
        later; None if fewer peers have completed it."""
        rounds = sorted(self.completed.values(), reverse=True)
        return rounds[count - 1] if len(rounds) >= count else None

    def had_last_round(self) -> bool:
        """Whether all reachable peers have completed the training, and at most f of them at a later
        round than the local round."""
        if not self._nobody_trains():
            return False
        completed_at = self.completed_at(min(self.settings.f + 1, len(self.completed)))
        return completed_at is not None and completed_at <= self.progress.round_id

    def left_behind(self, most: int) -> bool:
        """Whether all reachable peers have completed the training more than ``most`` rounds ahead
        of the local round."""
        completed_at = self.completed_at(self.settings.f + 1)
        return (
            completed_at is not None
            and self._nobody_trains()
            and completed_at > self.progress.round_id + most
        )

    def _nobody_trains(self) -> bool:
        return bool(self.completed) and all(
            peer in self.completed or self.members.skip_reason(peer) for peer in self._others()
        )

    def over_at(self, now: float) -> int | None:
        """Return the round at which the training was over; None if this is uncertain. It is certain
        if more than f peers have announced that they have completed the training at this round or
        later, and no other peer may continue."""
        if any(
            peer not in self.completed and self._expected_until(peer) > now
            for peer in self._others()
        ):
            return None
        return self.completed_at(self.settings.f + 1)

    def verdict(self, now: float, *, has_state: bool) -> Halt | None:
        """Return a halt of this peer if the training is over and the local trainer cannot detect
        this itself; otherwise None. ``has_state``: whether this peer could continue with its own
        state."""
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
            f"this peer is in round {here}, and no peer can send it the final state",
            QUORUM_LOST,
        )
