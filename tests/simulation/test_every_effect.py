"""A peer that dies between any two effects of rounds in which it also serves, and comes back, costs
nobody a promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from effort import effort

from gossip.core.events import Aggregate, Effect
from gossip.core.messages import PeerId
from gossip.faults.world import CrashMidway
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.observer import Observer

BEGIN_S = 1.0
BACK_S = 0.2
# effects around the moment at which the peer begins to aggregate: more than its whole round
BEFORE, AFTER = 12, 24


class AggregationTimes(Observer):
    """When a peer aggregates, in effects that it asked for since ``BEGIN_S``."""

    def __init__(self, peer: PeerId) -> None:
        self.peer, self.effects, self.aggregates_at = peer, 0, -1

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if peer == self.peer and swarm.now >= BEGIN_S:
            if isinstance(effect, Aggregate) and self.aggregates_at < 0:
                self.aggregates_at = self.effects
            self.effects += 1


@pytest.mark.parametrize("peers", effort((4,), (3, 4, 5, 6, 7)))
def test_a_server_that_dies_at_any_effect_of_its_round_breaks_no_promise(peers: int) -> None:
    quiet = Schedule(7, peers=peers, active_s=2.5, duration_s=2.5, compute_s=(0.1, 0.12))
    serving = AggregationTimes(0)
    run(quiet, [serving])
    moment = serving.aggregates_at
    assert moment > 0, "it never serves: the sweep would prove nothing"
    first = max(0, moment - BEFORE)
    for effect in range(first, moment + AFTER, effort(3, 1)):
        outcome = run(replace(quiet, faults=(CrashMidway(0, BEGIN_S, effect, BACK_S),)))
        assert outcome.violation is None, f"effect {effect}: {outcome.violation}"
        assert outcome.struck == {"crash_midway": 1}
        assert outcome.rounds >= 10
