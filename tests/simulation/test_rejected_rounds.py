"""A round whose results are refused does not stand for ever, though too few updates are left to
make another one of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checked_swarm import assert_sound
from effort import in_turn, rotated

from gossip.faults.kinds import ByzantineFault, Crash
from gossip.faults.world import HangTrainer, NodeAttack
from gossip_lab.simulation.schedules.schedule import Schedule

FAST = Schedule(
    1, peers=4, active_s=8.0, duration_s=8.0, compute_s=(0.02, 0.04), round_timeout_s=1.0
)
DEAD = Crash(1, at_s=1.0)
BYZANTINE_SERVER = replace(
    FAST, aggregator="median", faults=(NodeAttack("wrong_results", (2,)), DEAD)
)
"""Peer 2 keeps to what it has made, and the other two are no majority of four."""
POISONED = replace(FAST, f=1, faults=(ByzantineFault("sign_flip", (2,), 10.0), DEAD))
"""A mean bears no liar: every peer doubts what every server makes of three updates, and the first
server keeps to it."""
OF_SIX = replace(
    FAST,
    peers=6,
    aggregator="trimmed_mean",
    faults=(NodeAttack("scaled_results", (5,)), DEAD, Crash(0, at_s=1.2)),
)
HANGING = replace(FAST, aggregator="median", active_s=14.0, duration_s=14.0)
HANGING = replace(
    HANGING, faults=(NodeAttack("wrong_results", (2,)), HangTrainer(1, at_s=1.0, for_s=12.9))
)
"""Peer 1 is passed over, and never dead."""


@pytest.mark.parametrize(
    ("schedule", "rounds"),
    rotated(
        [
            pytest.param(BYZANTINE_SERVER, 100, id="lying server"),
            pytest.param(replace(POISONED, seed=4), 120, id="poisoned mean"),
            pytest.param(replace(OF_SIX, seed=16), 100, id="of six"),
            pytest.param(HANGING, 80, id="hanging trainer"),
        ]
    ),
)
def test_a_round_whose_results_are_refused_does_not_stand(schedule: Schedule, rounds: int) -> None:
    outcome = assert_sound(schedule)
    assert outcome.rounds > rounds


@in_turn(1, 2)
def test_who_changes_over_asks_more_than_those_who_do_so_themselves() -> None:
    """Of six, three are on each branch: the two who were asked first with the third one had
    no state to give."""
    faults = (ByzantineFault("sign_flip", (7,), 10.0), Crash(3, at_s=0.76), Crash(0, at_s=1.2))
    outcome = assert_sound(replace(FAST, seed=19, peers=8, f=1, faults=faults))
    assert outcome.rounds > 60
