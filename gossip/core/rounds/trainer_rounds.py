"""Rounds of the local trainer: the round that it computes, and the state that it has."""

from __future__ import annotations

from dataclasses import dataclass

from gossip.core.events import Effect, StartRound
from gossip.core.ledger import ReplicatedState

from .departures import Departures
from .lag import LagDetector
from .replica_check import LocalReplicaCheck
from .shard import PresentRound


@dataclass(eq=False)
class TrainerRounds:
    """Start of rounds in the trainer. The trainer computes a round once it has the state before
    this round."""

    present: PresentRound
    replicated: ReplicatedState
    lag_detector: LagDetector
    replica_check: LocalReplicaCheck
    departures: Departures
    # last round that the trainer has applied, or will apply before it receives the next
    # StartRound
    _applied: int = -1
    _started: int = -1  # last round that was started

    def begin(self, contributed: bool) -> list[Effect]:
        """Begin the present round. A trainer that has ``contributed`` to the previous round
        receives the result of that round before the next StartRound."""
        if contributed and self._applied == self.present.round_id - 2:
            self._applied += 1
        return self.start() if self.present.mode == "active" else []

    def validate_state(self) -> None:
        """Check that the trainer is not ahead of the present round."""
        if self.present.mode != "off":
            assert self._started <= self.present.round_id, "no later round is computed"
            assert self._applied < self.present.round_id, "this round is not applied yet"

    def set_state(self, round_id: int) -> None:
        """Record that the trainer has the state before ``round_id``."""
        self._applied = round_id - 1

    def restart(self) -> None:
        """Restart with an adopted state. The present round is computed again if it was computed
        before."""
        self._started = -1

    def on_applied(self, round_id: int) -> list[Effect]:
        self._applied = max(self._applied, round_id)
        return self.start() if self.present.mode == "active" else []

    def start(self) -> list[Effect]:
        """Start the computation of the present round if the trainer has the state before this
        round."""
        has_state = self._applied == self.present.round_id - 1
        return [self._order()] if has_state and self._started < self.present.round_id else []

    def repeat(self) -> list[Effect]:
        """If the trainer computes the present round, send StartRound again, because the samples of
        the round have changed."""
        computes = self._started == self.present.round_id and self.present.own is None
        return [self._order()] if computes else []

    def _order(self) -> StartRound:
        round_id, replicated = self.present.round_id, self.replicated
        self._started = round_id
        return StartRound(
            round_id,
            replicated.slice_of(self.lag_detector.local),
            main=self.present.main_peer,
            collectives=replicated.collectives,
            deadline_us=replicated.deadline_us,
            began_at=self.present.began_at,
            compares=self.replica_check.watch.compares_next,
            roster=replicated.roster.peers,
            left=tuple(self.departures.done),
        )
