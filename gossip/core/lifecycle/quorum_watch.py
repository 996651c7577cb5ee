"""Watch of the quorum: report that too few peers are reachable for a round, and halt this peer if
the missing peers do not return in time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from gossip.core.events import Halt, Report
from gossip.core.messages import PeerId
from gossip.core.rounds import quorum_of
from gossip.core.settings import CoreSettings

from .exit_codes import QUORUM_LOST
from .shutdown import Shutdown


@dataclass(eq=False)
class QuorumWatch:
    """Check of the quorum, called every ``WATCH_INTERVAL_S``.

    Args:
        reachable: Function that returns those of the given peers that are not skipped, and the
            local peer.
        receivers: Function that returns the peers that are receiving the state of the local peer.
    """

    local: PeerId
    settings: CoreSettings
    reachable: Callable[[Collection[PeerId]], Collection[PeerId]]
    shutdown: Shutdown
    receivers: Callable[[float], set[PeerId]]
    _missing_since: float | None = None

    def check_quorum(
        self,
        roster: Collection[PeerId],
        need: int,
        round_id: int,
        now: float,
        *,
        stateless: Collection[PeerId] | None = None,
    ) -> tuple[list[Report], Halt | None]:
        """Return reports about the quorum. Also return a halt of this peer, or None.

        Args:
            need: Number of peers of ``roster`` that a round needs.
            stateless: None if this peer can continue with its own state. Otherwise ``roster``
                contains the possible donors of a state, and ``stateless`` contains the donors that
                have no state or did not reply in time.
        """
        has_state = stateless is None
        if (halt := self.shutdown.verdict(now, has_state=has_state)) is not None or (
            has_state and self.shutdown.had_last_round() and self.shutdown.wanted < round_id
        ):
            return [], halt  # the local trainer no longer needs any other peer
        here = self.reachable(roster)
        reached = len(here)
        if stateless is not None:
            need = max(need, 2)  # this peer and a donor
            if not set(here).difference(stateless, (self.local,)):
                # otherwise this peer would wait forever for donors without a state
                here = [self.local]
        if len(here) >= need:
            was_missing, self._missing_since = self._missing_since is not None, None
            return [Report("resumed", {"alive": list(here)})] if was_missing else [], None
        quorum = quorum_of(self.settings, len(roster))
        why = f" for the rule to tolerate f={self.settings.f}" if need > quorum else ""
        if self._missing_since is None:
            self._missing_since = now
            return [
                Report(
                    "paused",
                    {"alive": list(here), "need": need, "round": round_id, "why": why.strip()},
                )
            ], None
        if has_state and self.receivers(now).intersection(roster).difference(here):
            self._missing_since = now  # a peer that receives the local state will return soon
        waited_s = now - self._missing_since
        # Only peers of the roster count towards the majority. Any peer of the run counts towards
        # the number of updates that the rule needs.
        ended = self.shutdown.members.has_ended
        come_back = [peer for peer in roster if peer not in here and not ended(peer)]
        others = [peer for peer in self.settings.everybody if peer not in here and not ended(peer)]
        # If all other members have ended, newcomers count in their place.
        enough = len(here) + len(come_back) + len(self.shutdown.members.newcomers(roster)) >= quorum
        possible = enough and len(here) + len(others) >= need
        if waited_s < self.settings.rounds.quorum_timeout_s and possible:
            return [], None
        left = f"{reached} {'peer is' if reached == 1 else 'peers are'} left"
        left += (
            f", a round needs {need}{why}, and this peer is in round {round_id}"
            if has_state
            else ", and this peer waits for the state of another peer"
            if reached == len(here)
            else ", and none of them sends a state"
        )
        return [], Halt(f"quorum lost: {left}; waited {waited_s:.0f} s", QUORUM_LOST)
