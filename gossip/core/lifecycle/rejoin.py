"""Return to the roster: this peer applies the commits of other peers and announces that it is
ready, until the roster of a commit contains this peer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gossip.core.events import Effect
from gossip.core.frozen import record
from gossip.core.rounds import LagDetector
from gossip.core.settings import RETURN_HELLO_EVERY, RETURN_INTERVAL_S
from gossip.core.timers import Timers

from .hello import HelloExchange
from .progress import PeerProgress


@record
class RejoinRetry:
    """Timer of the next request for commits."""


@dataclass(eq=False)
class Rejoin:
    """Requests for commits while this peer follows the rounds outside the roster."""

    lag_detector: LagDetector
    timers: Timers[Any]
    hello_exchange: HelloExchange
    peer_progress: PeerProgress
    under_way: bool = False
    _turns: int = 0

    def go_on(self, follows: bool, now: float) -> list[Effect]:
        """Begin to follow the rounds, or continue when ``RejoinRetry`` fires.

        Args:
            follows: Whether this peer is still outside the roster and applies the commits of the
                rounds.
        """
        self._turns = self._turns + 1 if self.under_way else 0
        self.under_way = follows
        if not follows:
            return []
        effects: list[Effect] = [self.timers.set(now + RETURN_INTERVAL_S, RejoinRetry())]
        if self._turns % RETURN_HELLO_EVERY == 0:
            effects += self.hello_exchange.to_all()
        lag_detector = self.lag_detector
        waits = lag_detector.lost_track is not None or lag_detector.are_coming(now)
        if not waits and (donor := self.peer_progress.next_donor()) is not None:
            effects.append(lag_detector.request(donor, now))
        return effects
