"""Replies of donors to restoring peers near the end of a run: a planted fault of each is caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_checkers_gossip import caught
from test_checkers_server_waits import Faulty
from test_ending import LATE, ROUNDS, over, run_to, swarm_that_ends

from gossip.core.events import Received
from gossip.core.messages import StateRequest
from gossip.core.peer import Peer
from gossip_lab.simulation.checkers import Checker, CheckerSuite
from gossip_lab.simulation.checkers.transfer.donors import (
    DonorsStayReachable,
    FinalRoundReplies,
    RepeatedAttestationRequests,
)
from gossip_lab.simulation.world.driver import Swarm

Plant = Callable[[Any], None]


def ends_under(checker: Checker, plant: Plant | None, **options: Any) -> Swarm[Peer]:
    """A swarm of four near its end, every core of which has the fault, if there is one."""
    swarm = swarm_that_ends(3, f=1, **{"n": 4, **options})
    swarm.hooks.append(CheckerSuite([checker]))
    swarm.hooks.extend([] if plant is None else [Faulty(plant)])
    run_to(swarm, ROUNDS - 20)
    return swarm


def asks_once(core: Peer) -> None:
    core.recovery._remind = lambda now: [core.timers.set(now + 1.0, None)]  # type: ignore[method-assign]


@pytest.mark.parametrize("plant", [asks_once, None])
def test_l4_one_that_does_not_ask_the_silent_again_is_caught(plant: Plant | None) -> None:
    checker = RepeatedAttestationRequests()
    swarm = ends_under(checker, plant)
    for donor in range(LATE):
        swarm.hosts[donor].core.recovery.giving.on_request = lambda *asked: []  # type: ignore[method-assign]
    swarm.restart(LATE, after_s=1.0)
    if plant is not None:
        assert "for an attestation, still waits for it, but has not asked again for" in caught(
            swarm, 4.0
        )
        return
    swarm.run_for(4.0)
    assert checker.judged


def goes_on_promising(core: Peer) -> None:
    core.recovery.giving.close = list  # type: ignore[method-assign]


@pytest.mark.parametrize("plant", [goes_on_promising, None])
@pytest.mark.parametrize("waits", [False, True])
def test_l7_one_that_has_finished_or_asks_about_its_last_round_promises_no_round_to_come(
    waits: bool, plant: Plant | None
) -> None:
    """Seed 737002: one that was told a lie in its last round, and heard two different vouchers,
    named a round that never came."""
    checker = FinalRoundReplies()
    swarm = ends_under(checker, plant)
    core = swarm.hosts[0].core
    if waits:
        swarm.stop_trainer(LATE)
        swarm.run_until(lambda: core.final_check.round_id == ROUNDS, limit_s=20)
    else:
        swarm.pause_for(LATE, 5.0)
        swarm.run_until(lambda: core.phase == "draining", limit_s=20)
    asks, after_s = (1, 0.0) if waits else (LATE, 0.1)
    asked = Received(asks, 0, StateRequest(b"lineage!", 7, ROUNDS + 2, "attestation"))
    swarm.at(swarm.now + after_s, lambda: swarm.inject(0, asked))
    if plant is not None:
        assert f"does not reply that no round follows {ROUNDS}" in caught(swarm)
        return
    swarm.run_for(after_s + 0.1)
    assert checker.judged


def forgets_takers(core: Peer) -> None:
    core.shutdown.asked = lambda peer, message, now: None  # type: ignore[method-assign]


@pytest.mark.parametrize("plant", [forgets_takers, None])
def test_l4_one_that_leaves_somebody_who_takes_its_state_is_caught(plant: Plant | None) -> None:
    checker = DonorsStayReachable()
    swarm = ends_under(checker, plant, snapshot_s=2.5, drain_timeout_s=2.0)
    swarm.restart(LATE, after_s=2.0)
    if plant is not None:
        assert f"leaves peer {LATE}, which has requested its state" in caught(swarm, 20.0)
        return
    swarm.run_until(lambda: over(swarm), limit_s=60)
