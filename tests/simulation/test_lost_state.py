"""S19: all who had the state crash and come back: nobody begins anew without a word."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checked_swarm import assert_sound

from gossip.faults.kinds import Restart
from gossip_lab.simulation.campaign.play import circumstances
from gossip_lab.simulation.checkers import every_checker
from gossip_lab.simulation.checkers.safety.keeping import KeepsWhatWasHeld
from gossip_lab.simulation.schedules.schedule import Schedule

SEED = 7
SWARMS = [(1, "rolling"), (2, "rolling"), (4, "rolling"), (2, "random_k:k=2"), (4, "random_k:k=2")]


def all_lost(peers: int, topology: str) -> Schedule:
    faults = tuple(
        [Restart(peer, None, 0.3 + 0.1 * peer, 5.0 + 0.02 * peer) for peer in range(peers)]
    )
    return Schedule(SEED, peers=peers, topology=topology, faults=faults, start_timeout_s=5.0)


@pytest.mark.parametrize(("peers", "topology"), SWARMS)
def test_when_all_who_had_the_state_are_lost_nobody_begins_anew(peers: int, topology: str) -> None:
    outcome = assert_sound(all_lost(peers, topology))
    assert outcome.reports["ready"] == peers, "at the start, and then no more"
    assert outcome.reports["error"] == peers
    assert outcome.judged["S19"] == peers


@pytest.mark.parametrize("peers", [2, 4])
def test_one_that_is_left_gives_its_state_to_all(peers: int) -> None:
    schedule = all_lost(peers, "rolling")
    outcome = assert_sound(replace(schedule, faults=schedule.faults[1:]))
    assert outcome.reports["ready"] == peers
    assert outcome.reports["restored"] >= peers - 1


def test_every_run_is_judged_by_it() -> None:
    assert any(
        isinstance(checker, KeepsWhatWasHeld)
        for checker in every_checker(circumstances(all_lost(2, "rolling")))
    )
