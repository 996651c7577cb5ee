"""S11, of rules: given the finite updates that it needs, a rule makes a finite aggregate. Else no
round teaches anything."""

from __future__ import annotations

from gossip.core import Aggregate, Aggregated, Effect, Event, PeerId
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.world import AnySwarm


class RuleAnswers(Checker):
    """S11: a rule that is given as many finite updates as it needs for f liars makes a finite
    aggregate of them.

    Not asked of differences of parameters: those of liars may be too far apart for float32.
    """

    invariant = "S11"
    events = (Aggregated,)
    effects = (Aggregate,)

    def make_records(self) -> None:
        self._asked = self.per_life(dict[int, Aggregate])

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        core = swarm.inspections.get(peer)
        if core is None or not isinstance(effect, Aggregate) or effect.mix:
            return
        if effect.step in ("decide", "combine") and self.circumstances.equivocating:
            return  # on the word of others
        count = len(effect.peers if effect.step == "decide" else effect.rows)
        if count >= core.settings.updates_min and any(row.samples for row in effect.rows):
            self._asked[peer][effect.ticket] = effect

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        ask = self._asked[peer].pop(event.ticket, None) if isinstance(event, Aggregated) else None
        if ask is None or not all(row.payload.finite for row in ask.rows):
            return
        assert isinstance(event, Aggregated)
        self.judged += 1
        if event.payload is None and event.reason:
            core = swarm.inspections.get(peer)
            needed = core.settings.updates_min if core is not None else 0
            text = (
                f"round {ask.round_id}: of {len(ask.rows)} finite updates, where it needs "
                f"{needed}, the rule makes nothing"
            )
            raise self.violated(swarm, peer, f"{text}: {event.reason}")


__all__ = ["RuleAnswers"]
