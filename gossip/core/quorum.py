"""Are enough peers here for a round? Says when not, and gives up when none come back in time."""

from __future__ import annotations

from collections.abc import Iterable

from .ending import QUORUM_LOST, Ending
from .events import Halt, Report
from .messages import PeerId
from .settings import CoreSettings
from .view import View

WATCH_INTERVAL_S = 1.0


def quorum_of(settings: CoreSettings, n: int) -> int:
    """Answers without which a round of ``n`` peers is not closed."""
    return 1 if n < 3 or settings.rounds.quorum == "available" else n // 2 + 1


class QuorumWatch:
    """To be asked every ``WATCH_INTERVAL_S``."""

    def __init__(self, local: PeerId, settings: CoreSettings, view: View, ending: Ending) -> None:
        self.local, self.settings, self.view, self.ending = local, settings, view, ending
        self._missing_since: float | None = None

    def look(self, roster: Iterable[PeerId], need: int, round_id: int, now: float) -> tuple[list[Report], Halt | None]:
        """Returns what there is to say, and how this peer ends, if it does.

        Args:
            need: Peers of ``roster`` without which no round is closed.
        """
        if (halt := self.ending.verdict(now)) is not None or (self.ending.last_round_had() and self.ending.wanted < round_id):
            return [], halt  # our trainer needs nobody for what it still does
        here = [peer for peer in roster if peer == self.local or not self.view.skip_reason(peer)]
        if len(here) >= need:
            was_missing, self._missing_since = self._missing_since is not None, None
            return [Report("resumed", {"alive": here})] if was_missing else [], None
        if self._missing_since is None:
            self._missing_since = now
            return [Report("paused", {"alive": here, "need": need, "round": round_id})], None
        waited_s = now - self._missing_since
        come_back = [peer for peer in roster if peer not in here and peer not in self.ending.ended]
        if waited_s < self.settings.rounds.quorum_timeout_s and len(here) + len(come_back) >= need:
            return [], None
        left = f"{len(here)} peers are left, a round needs {need}, and this peer is in round {round_id}"
        return [], Halt(f"quorum lost: {left}; waited {waited_s:.0f} s", QUORUM_LOST)
