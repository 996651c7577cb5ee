"""S11, of rules: given the finite updates that it needs, a rule makes a finite aggregate. Otherwise
no round trains anything."""

from __future__ import annotations

from gossip.core import Aggregate, Aggregated
from gossip_lab.simulation.checkers.base import Checker, PerLife
from gossip_lab.simulation.checkers.watching import on_effect, on_event


class RuleAnswers(Checker):
    """S11: a rule makes a finite aggregate if it gets as many finite updates as it needs for f
    Byzantine peers.

    Differences of parameters are excepted: those of Byzantine peers may be too far apart for
    float32.
    """

    invariant = "S11"
    _asked = PerLife(dict[int, Aggregate])

    @on_effect
    def record_question(self, ask: Aggregate) -> None:
        by_word = ask.step in ("decide", "combine") and self.circumstances.equivocating
        if ask.mix or by_word:
            return
        count = len(ask.peers if ask.step == "decide" else ask.rows)
        if count >= self.core.settings.updates_min and any(row.samples for row in ask.rows):
            self._asked[ask.ticket] = ask

    @on_event
    def judge(self, event: Aggregated) -> None:
        ask = self._asked.pop(event.ticket, None)
        if ask is not None and all(row.payload.finite for row in ask.rows):
            self.demand(
                event.payload is not None or not event.reason,
                f"round {ask.round_id}: of {len(ask.rows)} finite updates, where it needs "
                f"{self.core.settings.updates_min}, the rule makes nothing: {event.reason}",
            )
