"""S19: all who had the state crash and come back: nobody begins anew without a word."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from checked_swarm import assert_sound
from effort import effort

from gossip.faults.kinds import Crash, Restart
from gossip.faults.world import Partition
from gossip_lab.simulation.campaign.play import conditions, run
from gossip_lab.simulation.checkers import every_checker
from gossip_lab.simulation.checkers.safety.trained_state import NoLossOfTrainedState
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
        isinstance(checker, NoLossOfTrainedState)
        for checker in every_checker(conditions(all_lost(2, "rolling")))
    )


# --- s19 under ``--quorum available`` -------------------------------------------------------------


SEEDS = effort(4, 200)
WAVES_S = (4.0, 10.0)


def killed_around_a_joiner(seed: int) -> Schedule:
    """One is killed and comes back. Until its trainer has a model, each of the others is killed or
    not, and comes back in its turn."""
    lot = Random(f"fresh weights/{seed}")
    peers, prepare_s = lot.choice([2, 3]), lot.uniform(0.5, 2.0)
    faults = []
    for wave_s in WAVES_S[: lot.choice([1, 2])]:
        joiner, back_s = lot.randrange(peers), lot.uniform(0.1, 1.0)
        faults.append(Restart(joiner, None, back_s, wave_s))
        spared = lot.random() < 0.5
        for peer in range(peers):
            if peer != joiner and not (spared and lot.random() < 0.7):
                at_s = wave_s + back_s + lot.uniform(0.0, prepare_s)
                faults.append(Restart(peer, None, lot.uniform(0.1, 3.0), at_s))
    return Schedule(
        seed,
        peers=peers,
        faults=tuple(faults),
        quorum="available",
        apart=True,
        prepare_s=prepare_s,
        start_timeout_s=5.0,
        local_steps=lot.choice([1, 5]),
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_fresh_weights_never_become_the_model_of_the_swarm(seed: int) -> None:
    outcome = assert_sound(killed_around_a_joiner(seed))
    assert outcome.judged["S19"]


# --- the last peer that holds the state, and newcomers that are on their way ----------------------


LAST = Schedule(
    1,
    peers=4,
    faults=(Crash(1, at_s=5.0), Crash(2, at_s=5.0), Crash(3, at_s=5.0)),
    joins_s=(7.0, 7.5, 8.0),
    active_s=20.0,
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
