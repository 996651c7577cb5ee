"""A server that lies whenever it serves: it is found out by all alike, and nobody honest is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gossip.core.events import Committed, Effect, Report
from gossip.core.messages import PeerId
from gossip.sim.driver import Swarm
from gossip.sim.observer import Observer
from gossip.sim.play import run
from gossip.sim.schedule import Schedule
from gossip.world_faults import NodeLie

LIAR = 0


class Verdicts(Observer):
    """Who was locked up at whose table, and who says that it has refused whose result."""

    def __init__(self) -> None:
        self.locked: set[PeerId] = set()
        self.by: set[PeerId] = set()
        self.charged: dict[PeerId, set[PeerId]] = {}

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Report) and effect.event == "quarantined":
            self.locked.add(effect.fields["subject"])
            self.by.add(peer)
        elif isinstance(effect, Committed):
            for charge in effect.commit.charges:
                self.charged.setdefault(charge.peer, set()).add(effect.commit.server)


@pytest.mark.parametrize("lie", ["wrong_results", "scaled_results"])
def test_a_server_that_lies_in_its_turns_is_locked_up_by_all_and_nobody_else_is(lie: str) -> None:
    seen = Verdicts()
    schedule = Schedule(7, peers=5, active_s=5.0, duration_s=5.0, compute_s=(0.02, 0.04), aggregator="suspicion")
    outcome = run(replace(schedule, faults=(NodeLie(lie, (LIAR,)),)), [seen])
    assert outcome.violation is None, outcome.violation
    assert seen.locked == {LIAR}
    assert seen.by | {LIAR} == set(range(5))  # which may have missed that round, and taken over a state instead
    assert len(seen.charged[LIAR]) > 1
