"""Are enough peers here for a round? Says when not, and gives up when none come back in time."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gossip.core.events import Halt, Report
from gossip.core.messages import PeerId
from gossip.core.rounds import quorum_of
from gossip.core.settings import CoreSettings

from .exit_codes import QUORUM_LOST
from .shutdown import Shutdown

WATCH_INTERVAL_S = 1.0
STALL_ROUNDS = 2.0  # round timeouts without progress after which a trainer counts as stalled


class QuorumWatch:
    """To be asked every ``WATCH_INTERVAL_S``. ``skip_reason`` is "" for a peer of whom something
    can be expected."""

    def __init__(
        self,
        local: PeerId,
        settings: CoreSettings,
        skip_reason: Callable[[PeerId], str],
        shutdown: Shutdown,
        receivers: Callable[[float], set[PeerId]],
    ) -> None:
        """``receivers``: who is being given our state now."""
        self.local, self.settings, self.skip_reason = local, settings, skip_reason
        self.shutdown, self.receivers = shutdown, receivers
        self._missing_since: float | None = None

    def check_quorum(
        self,
        roster: Collection[PeerId],
        need: int,
        round_id: int,
        now: float,
        *,
        stateless: Collection[PeerId] | None = None,
    ) -> tuple[list[Report], Halt | None]:
        """Returns what there is to say, and how this peer ends, if it does.

        Args:
            need: Peers of ``roster`` without which no round is closed.
            stateless: None: this peer could go on with the state that it has. Else ``roster`` is
                whoever may give it one, and these of them have said that they have none either, or
                have had their time to.
        """
        has_state = stateless is None
        if (halt := self.shutdown.verdict(now, has_state=has_state)) is not None or (
            has_state and self.shutdown.had_last_round() and self.shutdown.wanted < round_id
        ):
            return [], halt  # our trainer needs nobody for what it still does
        here = [peer for peer in roster if peer == self.local or not self.skip_reason(peer)]
        reached = len(here)
        if stateless is not None:
            need = max(need, 2)  # somebody has to give it one
            if not set(here).difference(stateless, (self.local,)):
                here = [self.local]  # who all wait for one that is gone would wait for ever
        if len(here) >= need:
            was_missing, self._missing_since = self._missing_since is not None, None
            return [Report("resumed", {"alive": here})] if was_missing else [], None
        quorum = quorum_of(self.settings, len(roster))
        why = f" for the rule to tolerate f={self.settings.f}" if need > quorum else ""
        if self._missing_since is None:
            self._missing_since = now
            return [
                Report(
                    "paused", {"alive": here, "need": need, "round": round_id, "why": why.strip()}
                )
            ], None
        if has_state and self.receivers(now).intersection(roster).difference(here):
            self._missing_since = now  # with our state it is about to come back
        waited_s = now - self._missing_since
        # Who is back at a rule's service need not be of the roster yet; to agree on anything, it
        # takes those who are.
        ended = self.shutdown.members.has_ended
        come_back = [peer for peer in roster if peer not in here and not ended(peer)]
        others = [peer for peer in self.settings.everybody if peer not in here and not ended(peer)]
        # Where all the others have ended, newcomers stand in for them.
        enough = len(here) + len(come_back) + len(self.shutdown.members.newcomers(roster)) >= quorum
        possible = enough and len(here) + len(others) >= need
        if waited_s < self.settings.rounds.quorum_timeout_s and possible:
            return [], None
        left = f"{reached} {'peer is' if reached == 1 else 'peers are'} left"
        left += (
            f", a round needs {need}{why}, and this peer is in round {round_id}"
            if has_state
            else ", and this peer waits for the state of another"
            if reached == len(here)
            else ", and none of them gives a state"
        )
        return [], Halt(f"quorum lost: {left}; waited {waited_s:.0f} s", QUORUM_LOST)
