"""A peer that says it is being sent payloads, which nobody can check,
and owes the round its update."""

from __future__ import annotations

from typing import Any

import pytest

from gossip.core.events import Effect, Event, Send
from gossip.core.messages import ReceivingPayload, Update
from gossip.core.peer import Peer
from gossip_lab.simulation.campaign import play
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.nemesis import Nemesis

ATTACKER = 3
WORLD = Schedule(1, peers=4, shards=(8, 8), compute_s=(0.05, 0.1))
BEGINS_S = 3.0
SECONDS = 90.0  # five times the longest that is waited for anything that moves


class Withholder(play._SeedingPeer):
    """Keeps its updates of every other round, and says every 0.3 s that it has received more."""

    def __init__(self, *arguments: Any, **addresses: Any) -> None:
        super().__init__(*arguments, **addresses)
        self._said = 0

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = [
            effect
            for effect in super().handle(event, now)
            if now < BEGINS_S or not _is_withheld(effect)
        ]
        if self.phase == "running" and now > BEGINS_S and int(now / 0.3) != self._said:
            self._said = int(now / 0.3)
            word = ReceivingPayload(self.settings.lineage, int(now * 1e6), 0.9)
            # it hands nothing on
            tracker = self.rounds.patience.transfer_tracker  # type: ignore[union-attr]
            tracker.record_progress(self.local, word.received, word.pause_s, now)
            effects += [Send(peer, word) for peer in range(WORLD.peers) if peer != self.local]
        return effects


def _is_withheld(effect: Effect) -> bool:
    return (
        isinstance(effect, Send)
        and isinstance(effect.message, Update)
        and effect.message.round_id % 2 == 1
    )


def played(monkeypatch: pytest.MonkeyPatch, seconds: float) -> int:
    """How many rounds the honest had."""

    honest = play._SeedingPeer

    def make(folder: Any, local: int, *arguments: Any, **addresses: Any) -> Peer:
        return (Withholder if local == ATTACKER else honest)(folder, local, *arguments, **addresses)

    monkeypatch.setattr(play, "_SeedingPeer", make)
    swarm = play.make_swarm(WORLD, Nemesis(WORLD))
    swarm.run_for(seconds)
    return int(swarm.hosts[0].core.rounds.round_id)


def test_who_says_that_payloads_come_and_sends_nothing_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert played(monkeypatch, SECONDS) > 100
