"""S19: what somebody has learnt is not thrown away without a word."""

from __future__ import annotations

from gossip.core import Effect, PeerId, Report
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.world import AnySwarm


class KeepsWhatWasHeld(Checker):
    """S19: a state that somebody held is never replaced by a fresh one: who is started when the run
    has had a round does not begin it with weights of its own, unless it may (``begin_anew``), and
    says what is lost."""

    invariant = "S19"
    effects = (Report,)

    def make_records(self) -> None:
        self._held: tuple[int, PeerId] = (0, -1)
        # what had been held when its life began
        self._before: dict[PeerId, tuple[int, PeerId]] = {}
        self._told: dict[PeerId, int] = self.per_life()  # the round that it says is lost

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        super().on_start(swarm, peer)
        self._before[peer] = self._held

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if not isinstance(effect, Report):
            return
        if effect.event == "round":
            self._held = max(self._held, (effect.fields["round"], peer))
        elif effect.event == "begun_anew":
            self._told[peer] = effect.fields["lost"]
        elif effect.event == "ready":
            round_id, holder = self._before.get(peer, (0, -1))
            text = (
                f"it begins with fresh weights: the run had had round {round_id}, by peer "
                f"{holder}, when its life began"
            )
            self.demand(round_id == 0 or self._told.get(peer, 0) > 0, swarm, peer, text)


__all__ = ["KeepsWhatWasHeld"]
