"""Some serve more often than others: in whole swarms, also when those fail who serve most."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from checked_swarm import assert_sound, checked_swarm
from effort import effort
from test_byzantine_server import Verdicts

from gossip.core.events import Committed, Effect
from gossip.core.messages import PeerId
from gossip.core.peer import Peer
from gossip.faults.kinds import ByzantineFault, Crash, Restart
from gossip.faults.plan import Fault
from gossip.faults.world import HangServer, Leave, NodeAttack
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.observer import Observer


class Turns(Observer):
    """How many rounds each peer has served."""

    def __init__(self) -> None:
        self.servers: Counter[int] = Counter()

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Committed) and effect.made:
            self.servers[effect.commit.server] += 1


def served(swarm: Swarm[Peer], by: int = 4) -> Counter[int]:
    """How many rounds each peer has served so far, as one of them knows it."""
    return Counter(done.commit.server for done in swarm.commits(by))


def test_who_weighs_more_serves_more_and_when_it_dies_the_others_do_in_proportion() -> None:
    swarm = checked_swarm(n=5, topology="rolling:weights=0:4,1:4", compute_s=0.02)
    time_s = effort(6.0, 20.0)
    swarm.run_for(time_s)
    before = served(swarm)
    assert set(before) == {0, 1, 2, 3, 4}
    assert 2.5 < (before[0] + before[1]) / 2 / ((before[2] + before[3] + before[4]) / 3) < 6.0
    swarm.crash(0)
    swarm.run_for(time_s)
    after = served(swarm) - before
    assert set(after) == {1, 2, 3, 4}  # but for a round that it had served by then
    # Of three others with a lot each it may draw three, and not four:
    # nobody serves more than half of the rounds.
    assert 0.4 < after[1] / after.total() < 0.6


def test_all_peers_draw_one_order_from_the_same_weights() -> None:
    swarm = checked_swarm(n=4, topology="rolling:weights=0:4,2:2", compute_s=0.05)
    swarm.run_for(10.0)
    histories = [
        [(done.commit.round_id, done.commit.server) for done in swarm.commits(peer)]
        for peer in range(4)
    ]
    rounds = min(map(len, histories))
    assert rounds > 100
    assert all(history[:rounds] == histories[0][:rounds] for history in histories)
    plain = checked_swarm(n=4, compute_s=0.05)
    plain.run_for(10.0)
    assert (
        histories[0][:rounds]
        != [(done.commit.round_id, done.commit.server) for done in plain.commits(0)][:rounds]
    )


LIES = (ByzantineFault("sign_flip", (0,), 1.0), HangServer(4.0, 0.5))
COMES_BACK = (Restart(0, None, 0.5, 3.0), Restart(0, None, 0.5, 8.0), Leave(1, 12.0))


@pytest.mark.parametrize(
    "faults",
    [
        (Crash(0, at_s=3.0), HangServer(6.0, 3.0), HangServer(12.0, 1.0)),
        *effort([], [COMES_BACK, LIES]),
    ],
)
def test_every_promise_is_kept_though_those_fail_who_serve_most(faults: tuple[Fault, ...]) -> None:
    world = Schedule(
        3,
        peers=6,
        aggregator="median",
        server_weights="0:10,1:4,2:4",
        compute_s=(0.1, 0.12),
        joins_s=(5.0,),
        active_s=14.0,
        duration_s=15.0,
    )
    seen = Turns()
    outcome = assert_sound(replace(world, faults=faults).checked(), [seen])
    assert outcome.rounds > 70
    assert min(seen.servers[peer] for peer in range(7)) > 0
    assert max(seen.servers[1], seen.servers[2]) > 1.5 * max(
        seen.servers[peer] for peer in (3, 4, 5, 6)
    )


@pytest.mark.parametrize("lie", effort(["two_results"], ["wrong_results", "two_results"]))
def test_a_liar_that_serves_half_of_the_rounds_is_locked_up_and_nobody_else_is(lie: str) -> None:
    seen = Verdicts()
    world = Schedule(
        7, peers=6, active_s=8.0, duration_s=8.0, compute_s=(0.02, 0.04), aggregator="suspicion"
    )
    assert_sound(replace(world, server_weights="0:10", faults=(NodeAttack(lie, (0,)),)), [seen])
    assert seen.locked == {0}
