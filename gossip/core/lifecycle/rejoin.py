"""Coming back into the roster: follow the commits, and say that we are ready,
until a commit names us."""

from __future__ import annotations

from typing import Any

from gossip.core.events import Effect
from gossip.core.frozen import record
from gossip.core.rounds import RollingRounds
from gossip.core.timers import Timers

from .hello import HelloExchange
from .progress import PeerProgress
from .shutdown import Shutdown

RETURN_INTERVAL_S = 0.02  # how often one that returns asks for the commits made meanwhile
# such turns: everybody is told that it is ready, in case the first word was lost
RETURN_HELLO_EVERY = 5


@record
class RejoinRetry:
    """It is time to ask again."""


class Rejoin:
    """Under way as long as the rounds are followed and not taken part in."""

    def __init__(
        self,
        rounds: RollingRounds,
        timers: Timers[Any],
        hello_exchange: HelloExchange,
        peer_progress: PeerProgress,
        shutdown: Shutdown,
    ) -> None:
        self.rounds, self.timers, self.hello_exchange, self.peer_progress, self.shutdown = (
            rounds,
            timers,
            hello_exchange,
            peer_progress,
            shutdown,
        )
        self._under_way = False
        self._turns = 0

    @property
    def is_due(self) -> bool:
        """Whether the peer has begun to follow."""
        return self.rounds.mode == "following" and not self._under_way

    def go_on(self, running: bool, now: float) -> list[Effect]:
        """When it is due, and whenever ``RejoinRetry`` fires. ``running``: the trainer holds the
        state of the rounds."""
        self._turns = self._turns + 1 if self._under_way else 0
        self._under_way = running and self.rounds.mode == "following"
        if not self._under_way:
            return []
        effects: list[Effect] = [self.timers.set(now + RETURN_INTERVAL_S, RejoinRetry())]
        if self._turns % RETURN_HELLO_EVERY == 0:
            effects += self.hello_exchange.to_all()
        lag_detector = self.rounds.lag_detector
        waits = lag_detector.lost_track is not None or lag_detector.are_coming(now)
        if not waits and (donor := self.peer_progress.next_donor()) is not None:
            effects.append(lag_detector.request(donor, now))
        if self.shutdown.had_last_round():
            # No commit will name us any more. Our trainer may see for itself that it has
            # had all its rounds.
            effects += self.rounds.let_go()
        return effects
