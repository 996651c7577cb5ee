"""S19: trained state is not discarded silently."""

from __future__ import annotations

from gossip.core import PeerId, Report
from gossip_lab.simulation.checkers.base import Checker, PerIncarnation, on_report


class NoLossOfTrainedState(Checker):
    """S19: a trained state is never replaced by freshly initialised weights. A peer that starts
    after the first round of the run does not begin with its own initial weights."""

    invariant = "S19"

    # Latest round of the run when this incarnation began, and the peer that had reported it.
    _before = PerIncarnation[tuple[int, PeerId]](lambda: (0, -1))

    def make_records(self) -> None:
        self._held: tuple[int, PeerId] = (0, -1)

    def begin_incarnation(self) -> None:
        super().begin_incarnation()
        self._before = self._held

    @on_report("round")
    def record_round(self, report: Report) -> None:
        self._held = max(self._held, (report.fields["round"], self.peer))

    @on_report("ready")
    def judge_beginning(self, report: Report) -> None:
        round_id, holder = self._before
        self.demand(
            round_id == 0,
            f"begins with new weights, although peer {holder} had reached round {round_id} "
            "before it started",
        )
