"""The last peer that holds the state, and newcomers that are on their way:
nobody gives up while they come."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checked_swarm import assert_sound
from effort import effort

from gossip.faults.kinds import Crash
from gossip.faults.world import Partition
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules.schedule import Schedule

LAST = Schedule(
    1,
    peers=4,
    faults=(Crash(1, at_s=5.0), Crash(2, at_s=5.0), Crash(3, at_s=5.0)),
    joins_s=(7.0, 7.5, 8.0),
    active_s=20.0,
    duration_s=30.0,
    told=True,
)
"""Three of four end for good at once, and three newcomers are being started."""


@pytest.mark.parametrize("seed", range(effort(2, 4)))
def test_newcomers_stand_in_for_those_who_have_ended(seed: int) -> None:
    outcome = assert_sound(replace(LAST, seed=seed))
    assert outcome.reports["joined"] >= 3
    assert outcome.rounds > 30
    assert outcome.judged["L4"] > 0


def test_who_comes_in_vain_is_too_few() -> None:
    """One newcomer does not make a majority of four with the one that is left:
    both end, and say why."""
    outcome = assert_sound(replace(LAST, joins_s=(6.0,)))
    assert outcome.judged["L10"] > 0
    assert outcome.reports["error"] == 2


def test_s10_newcomers_do_not_stand_in_for_one_who_may_be_alive() -> None:
    """Who is cut off and has not ended may be the other side of a partition."""
    is_partitioned = replace(
        LAST, faults=(Crash(1, at_s=5.0), Partition(((0,), (2, 3)), 5.0, 15.0))
    )
    assert run(is_partitioned).violation is None
