"""End of the training: the peers that have completed it, the time for which a completed peer stays,
and the halt of late peers.

A peer that has completed the training announces this in its ``Hello``, with its last round. It then
stays for peers that may need the final state: ``drain_timeout_s`` for a reachable peer that is
behind, and ``linger_s`` after the loss of a peer that was suspended, cut off or killed. If the
launcher reports that a lost peer will not return, no peer stays for it.

If the checkpoint that a peer has loaded was already the end of the training, the peer stays until
the other peers have arrived and announced the same.
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
    """Timer for the end of the time that this peer stays."""


class Shutdown:
    """Decides how long this peer stays after its last round, and whether it has arrived too late.

    Args:
        differs: Returns whether a peer has announced another state of the present round.

    Attributes:
        completed: Round in which each peer has completed the training, as announced.
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
        # local round at each peer's last request for a state
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
        """Record whether ``peer`` has completed the training. A restart of ``peer`` clears the
        record."""
        if hello.stage == "completed":
            self.completed[peer] = hello.round_id
        else:
            self.completed.pop(peer, None)

    def note(self, change: Change, now: float) -> None:
        """Record when a peer is lost, which is when it is first skipped or suspected, and when it
        has returned."""
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
        """Restart the wait for a peer that requests the local state, because the transfer of a
        large state takes long."""
        if isinstance(message, StateRequest):
            self._back_at[peer], self._asked_in[peer] = now, self.progress.round_id

    # --- time for which this peer stays -----------------------------------------------------------

    def stop(self, completing: bool, since: float, now: float) -> list[Effect]:
        """Begin to leave. The request was made at ``since``. ``completing``: whether the reason is
        that the training is complete."""
        self._stopped_at, self._completing = since, completing
        return self.stay(now)

    def stay(self, now: float) -> list[Effect]:
        """Report the lost peers that this peer stays for, and set a timer for the end of the wait.
        By then a peer may have returned, which extends the wait."""
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
        """Return the time until which other peers may need the local one; ``-inf`` if none does."""
        rounds = self.settings.rounds
        others = (*self._others(), *self._unmet())
        until = max([self._needed_until(peer) for peer in others], default=-inf)
        # A peer with an unstable link must not keep this one forever. After a request to stop, this
        # peer does not linger for lost peers.
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
        """Return the first peers of the run that have never arrived, if the loaded checkpoint was
        the end of the training. On arrival, such a peer would wait for a quorum."""
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
            here = False  # The peer may not have received yet that the training is over.
        # A peer in the same round may hold another result of it. Its request for the local state
        # may be the only sign of that.
        here = here and self._asked_in.get(peer) != self.progress.round_id
        behind = peer not in self.completed and not here
        if not self.members.skip_reason(peer):
            return (
                max(self._stopped_at, self._back_at.get(peer, -inf)) + drain_s if behind else -inf
            )
        if not self._completing:
            return -inf
        # An unreachable completed peer may wait for this peer, until it receives the announcement
        # that this peer has also completed.
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
        round than the local one."""
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
        """Return the round at which the training was over; None if that is uncertain. It is certain
        if more than f peers have announced it and no other peer will continue."""
        if any(
            peer not in self.completed and self._expected_until(peer) > now
            for peer in self._others()
        ):
            return None
        return self.completed_at(self.settings.f + 1)

    def verdict(self, now: float, *, has_state: bool) -> Halt | None:
        """Return the halt of this peer if the training is over and the local trainer cannot detect
        that itself. ``has_state``: whether this peer could continue with its own state."""
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
