"""A server records its commit at ``SendsDone``: schedules that broke when this was introduced."""

from __future__ import annotations

import pytest
from checked_swarm import assert_sound

from gossip_lab.simulation.schedules.generator import generate


@pytest.mark.parametrize(
    "seed",
    [
        72,  # A single peer lost every round: its next round began before its trainer was free.
        270,  # A result waited 254 ms in the queue of its busy server: two results of a round.
    ],
)
def test_a_schedule_that_broke_holds(seed: int) -> None:
    assert_sound(generate(seed))
