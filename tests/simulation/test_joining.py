"""Peers that join a swarm which trains: whenever they come, whatever happens beside, all end on one
history, data exact."""

from __future__ import annotations

from typing import Any

import pytest
from effort import effort

from gossip.core.events import Halt
from gossip.core.messages import PeerId
from gossip.core.peer import Peer
from gossip.core.settings import CoreSettings, RoundSettings
from gossip.faults.kinds import ByzantineFault, Crash, Restart
from gossip.faults.world import CrashBroadcast, Leave, Loss, NodeAttack, Partition
from gossip.topologies import load
from gossip_lab.simulation.campaign.play import SimulationResult, run
from gossip_lab.simulation.schedules import generate
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm, address
from gossip_lab.simulation.world.toy_trainer import ToyTrainer

SEEDS = effort((1,), (1, 2, 3, 4))


def played(**schedule: Any) -> SimulationResult:
    """Under every checker: S8 one commit a round, S11 samples, L1 all see all, L4 all contribute,
    L5 one history in the end."""
    outcome = run(Schedule(**schedule).checked())
    assert outcome.violation is None, outcome.violation
    return outcome


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
    settings = CoreSettings(
        b"run-id!!", b"lineage!", seed=seed, peers=tuple(range(n)), room=room, f=f, rounds=wanted
    )
    plan, folder = load("rolling"), {peer: address(peer, 0) for peer in range(n)}

    def make_core(peer: PeerId, incarnation: int) -> Peer:
        control, bulk = folder[peer] = address(peer, incarnation)
        return Peer(
            peer, incarnation, settings, plan, control=control, bulk=bulk, seeds=dict(folder)
        )

    def make_trainer(peer: PeerId, incarnation: int) -> ToyTrainer:
        return ToyTrainer(
            peer,
            seed,
            incarnation=incarnation,
            compute_s=(0.1, 0.12),
            samples_total=997,
            rounds=120,
        )

    return Swarm(make_core, n, seed, make_trainer=make_trainer)


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


def test_who_has_answered_from_another_state_of_its_round_stays_for_its_end() -> None:
    """Seed 1565: a server told two results; an answer was given on one branch,
    and the state of the other taken."""
    lie, leave = NodeAttack("two_results", (2,)), Leave(3, 3.137)
    times = {"active_s": 5.0, "duration_s": 9.0, "compute_s": (0.46, 0.58), "rule_s": 0.1}
    assert (
        run(Schedule(1565, peers=6, faults=(lie, leave), probe_interval_s=1.0, **times)).violation
        is None
    )


def test_five_of_eight_leave_while_two_fifths_of_all_messages_are_lost() -> None:
    """Rounds once stopped behind them (L2)."""
    outcome = run(generate(923656))
    assert outcome.violation is None, outcome.violation
    assert outcome.struck["leave"] == 5
