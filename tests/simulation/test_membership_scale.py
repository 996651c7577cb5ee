"""Larger swarms and worse weather than usual."""

from __future__ import annotations

from math import log10

import pytest
from effort import effort

from gossip.core.membership import table
from gossip.core.membership.suspicion import shortest_s
from gossip.core.settings import SCANNED_MEMBERS, MembershipSettings
from gossip_lab.simulation.campaign.false_deaths import FalseDeaths, LossySwarm, Pause, pause, rain
from gossip_lab.simulation.campaign.mass_crash import MassCrash, mass_crash
from gossip_lab.simulation.world.membership_only import MemberCore, StallBlindCore, member_swarm

# --- rain -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "world",
    [
        LossySwarm(3, 7, 150.0),
        LossySwarm(8, 21, 200.0),
        LossySwarm(5, 22, 180.0, in_order=False, sleepers=2),
    ],
    ids=["few", "eight", "beside sleepers"],
)
def test_nobody_dies_of_loss_duplication_and_jitter_together(world: LossySwarm) -> None:
    seen = rain(world)
    assert not seen.false_deaths, seen.false_deaths
    sent = seen.counts["sent"] - seen.counts["no_link"]
    assert 0.18 < seen.counts["lost"] / sent < 0.22
    assert 0.14 < seen.counts["duplicated"] / sent < 0.18  # of the four fifths that are not lost
    # each of which might have ended in a death
    assert seen.counts["suspect"] > 0.5 * seen.node_seconds
    if world.sleepers:
        assert seen.counts["excused"] > 0
        assert seen.counts["true deaths"] > 0


# --- pauses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pause_s", [0.1, 0.25, 0.8, 5.0, 60.0])
@pytest.mark.parametrize("core", [MemberCore, StallBlindCore])
def test_observers_that_stood_still_for_any_time_kill_nobody(
    pause_s: float, core: type[MemberCore]
) -> None:
    for seed, (n, observers, loss, deaf) in enumerate(
        [(5, 1, 0.0, False), (5, 2, 0.2, True), (4, 3, 0.2, False)]
    ):
        world = Pause(n, seed, pause_s, observers, loss, deaf, core)
        seen = pause(world)
        assert not seen.false_deaths, (world, seen.false_deaths)


# --- the count itself -----------------------------------------------------------------------------


def test_a_false_death_is_counted_though_it_is_put_right_at_once_and_a_true_one_is_not() -> None:
    swarm = member_swarm(4, 1)
    deaths = FalseDeaths(excused=[3])
    swarm.hooks.append(deaths)
    swarm.run_for(2.0)
    membership = swarm.cores[0].membership
    for victim in (1, 3):
        member = membership.members[victim]
        membership.transitions.mark_dead(member, 2, swarm.now, "murder")
        membership.view.place(member, "alive", met=True)
    swarm.run_for(0.3)
    assert [(death.by, death.peer, death.origin) for death in deaths.found] == [(0, 1, 2)]
    assert deaths.counts["excused"] == 1
    swarm.crash(2)
    swarm.run_for(3.0)
    assert len(deaths.found) == 1
    assert deaths.counts["true deaths"] == 3


# --- a mass crash ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "large", "connections_close"),
    [
        (30, SCANNED_MEMBERS, True),
        effort((30, 24, False), (SCANNED_MEMBERS + 6, SCANNED_MEMBERS, False)),
    ],
)
def test_a_swarm_agrees_after_a_tenth_of_it_crashed_at_once(
    n: int, large: int, connections_close: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a swarm of more than ``SCANNED_MEMBERS``, helpers and audiences are drawn."""
    monkeypatch.setattr(table, "SCANNED_MEMBERS", large)
    after = mass_crash(MassCrash(n, 3, connections_close))
    assert after.victims == n // 10
    assert after.false_deaths == after.false_suspicions == 0
    assert after.suspected_median_s < (0.01 if connections_close else 0.6)
    least_s = shortest_s(n, MembershipSettings())
    assert least_s == pytest.approx(0.8 * log10(n))
    # not before the suspicion's time, which shrinks as others die
    assert least_s - 0.1 < after.dead_first_median_s
    assert after.known_all_s <= after.converged_s < 3.5
    # A ping and an ack every 0.2 s with nothing to tell, and tables besides.
    assert 9.0 < after.calm_messages_per_peer_s < 11.0
    assert after.calm_bytes_per_peer_s - after.calm_table_bytes_per_peer_s < 500.0
    # each victim's accusations and death, more than once
    assert after.crash_bytes_per_peer > n // 10 * 4 * 20
