"""Peers that join a swarm which trains: whenever they come, whatever happens beside, all end on one
history, data exact."""

from __future__ import annotations

from typing import Any

import pytest
from checked_swarm import assert_sound, core_settings, peer_swarm, toy_trainers
from effort import effort

from gossip.core.events import Halt
from gossip.core.peer import Peer
from gossip.core.settings import RoundSettings
from gossip.faults.kinds import ByzantineFault, Crash, Restart
from gossip.faults.world import CrashBroadcast, Leave, Loss, Partition
from gossip_lab.simulation.campaign.play import SimulationResult
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm

SEEDS = effort((1,), (1, 2, 3, 4))


def played(**schedule: Any) -> SimulationResult:
    """Under every checker: S8 one commit a round, S11 samples, L1 all see all, L4 all contribute,
    L5 one history in the end."""
    return assert_sound(Schedule(**schedule).checked())


@pytest.mark.parametrize("seed", SEEDS)
def test_two_grow_to_sixteen_and_shrink_to_three(seed: int) -> None:
    joins_s = tuple(2.0 + 0.1 * number for number in range(14))
    leaves = tuple(Leave(peer, 9.0 + 0.3 * peer) for peer in range(13))
    outcome = played(
        seed=seed, peers=2, joins_s=joins_s, faults=leaves, active_s=16.0, duration_s=20.0
    )
    assert (outcome.struck["leave"], outcome.reports["restored"]) == (13, 14)
    assert not {"dead", "suspected", "paused", "lost_round", "fork"} & outcome.reports.keys()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "faults",
    [
        (Crash(1, at_s=3.05), Crash(4, at_s=3.1)),
        (Restart(5, None, 1.0, at_s=3.2), CrashBroadcast(3.0, 1, 2.0)),
        (Partition(((0, 1, 2, 4), (3, 5, 6)), 2.9, 3.0),),
        (Partition(((0, 1, 2, 3), (4, 5, 6)), 2.9, 3.0),),
        (Loss(0.2, 2.5, 3.0),),
    ],
    ids=["crashes", "restarts", "a partition", "cut off from all", "loss"],
)
def test_newcomers_are_taken_in_beside_other_faults(faults: Any, seed: int) -> None:
    outcome = played(
        seed=seed, peers=4, joins_s=(3.0, 3.0, 3.1), faults=faults, active_s=7.0, duration_s=12.0
    )
    assert outcome.reports["restored"] >= 3 - sum(
        isinstance(fault, Crash) and fault.peer > 3 for fault in faults
    )


def test_newcomers_that_come_before_the_first_round_wait_for_it() -> None:
    outcome = played(
        seed=1, peers=3, joins_s=(0.001, 0.002, 0.003, 0.004), active_s=2.0, duration_s=6.0
    )
    assert outcome.reports["restored"] == 4


def test_a_newcomer_that_lies_is_found_out_like_any_other() -> None:
    lie = ByzantineFault("sign_flip", (5,), 10.0)
    outcome = played(
        seed=2,
        peers=5,
        joins_s=(2.0,),
        faults=(lie,),
        aggregator="median",
        active_s=8.0,
        duration_s=14.0,
    )
    assert outcome.struck["sign_flip"]
    assert outcome.reports["suspected"]


@pytest.mark.parametrize("topology", ["random-k:k=2", "ring"])
def test_newcomers_take_part_in_gossip_rounds(topology: str) -> None:
    outcome = played(
        seed=1, peers=4, joins_s=(3.0, 3.1), topology=topology, active_s=6.0, duration_s=10.0
    )
    assert outcome.reports["restored"] == 2


# --- who is left of a swarm -----------------------------------------------------------------------


def elastic_swarm(seed: int, n: int, room: int, *, f: int = 0, **rounds: Any) -> Swarm[Peer]:
    """With a folder of addresses."""
    wanted = RoundSettings(**{"round_timeout_s": 2.0, **rounds})
    settings = core_settings(n, seed, room=room, f=f, rounds=wanted)
    return peer_swarm(settings, toy_trainers(seed, compute_s=(0.1, 0.12), rounds=120))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_last_of_eight_goes_on_and_a_fresh_swarm_grows_from_it(seed: int) -> None:
    swarm = elastic_swarm(seed, 8, 16, f=2, quorum="available")
    swarm.run_until(
        lambda: all(core.rounds.round_id >= 5 for core in swarm.cores.values()), limit_s=10
    )
    for peer in range(7):
        swarm.crash(peer)
        swarm.run_for(0.7)
    alone_at = swarm.hosts[7].core.rounds.round_id
    swarm.run_for(2.0)
    assert swarm.hosts[7].core.rounds.round_id > alone_at + 2
    assert swarm.hosts[7].core.rounds.roster.peers == (7,)
    for peer in range(8, 12):
        swarm.join(peer)
    fresh = tuple(range(7, 12))
    swarm.run_until(
        lambda: all(swarm.hosts[peer].core.rounds.roster.peers == fresh for peer in fresh),
        limit_s=4,
    )
    assert all(swarm.reports(peer, "unattested_state") for peer in fresh[1:]), (
        "one alone cannot vouch for f + 1, and that is told"
    )
    swarm.run_until(lambda: all(swarm.hosts[peer].halt for peer in fresh), limit_s=60)
    assert {swarm.hosts[peer].halt.reason for peer in fresh} == {"finished"}  # type: ignore[union-attr]
    assert len({swarm.trainer(peer).digest for peer in fresh}) == 1  # type: ignore[attr-defined]


def test_an_end_does_not_wait_for_ids_that_nobody_has_had() -> None:
    swarm = elastic_swarm(1, 3, 64)
    swarm.run_until(lambda: all(host.halt for host in swarm.hosts.values()), limit_s=40)
    last_at = max(at for at, report in swarm.hosts[0].reports if report.event == "round")
    assert swarm.now < last_at + 1.0


def test_most_of_a_swarm_leaves_in_one_moment_and_the_others_go_on() -> None:
    swarm = elastic_swarm(3, 7, 7)
    swarm.run_until(
        lambda: all(core.rounds.round_id >= 5 for core in swarm.cores.values()), limit_s=10
    )
    for peer in range(5):
        swarm.stop(peer, "asked to leave")
    swarm.run_for(1.0)
    assert {swarm.hosts[peer].core.rounds.roster.peers for peer in (5, 6)} == {(5, 6)}
    assert not [report for peer in (5, 6) for report in swarm.reports(peer, "paused")]
    assert min(swarm.hosts[peer].core.rounds.round_id for peer in (5, 6)) > 10
    swarm.run_for(RoundSettings().drain_timeout_s)
    assert all(swarm.hosts[peer].halt == Halt("asked to leave", 0) for peer in range(5))
