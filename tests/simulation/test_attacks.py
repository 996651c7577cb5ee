"""What a lying peer, of any kind, does to honest ones:
nothing but what the excuses of its kind name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from checked_swarm import assert_sound, typed
from impatient import as_it_was

from gossip.core.messages import PeerId
from gossip.core.peer import Peer
from gossip.faults.kinds import Restart
from gossip.faults.world import NODE_ATTACKS, PIECE_ATTACKS, SHARD_ATTACKS, NodeAttack, Partition
from gossip_lab.simulation.campaign.play import conditions, make_swarm
from gossip_lab.simulation.checkers import RunConditions
from gossip_lab.simulation.checkers.base import (
    FALSE_STATES,
    FATAL_ATTACKS,
    FORKING_ATTACKS,
    INVENTING_ATTACKS,
)
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.liars import LIES
from gossip_lab.simulation.world.nemesis import Nemesis


def world(seed: int, **changes: Any) -> Schedule:
    """The trainers are as fast as they were when these seeds were found."""
    return replace(Schedule(seed, compute_s=(0.2, 0.35)), **changes)


SHORT = world(5, active_s=5.0, duration_s=5.0, shards=(5, 3))
# peer 0, the liar, is the first whom they ask for a state
RESTARTS = (Restart(1, None, 0.2, 2.0), Restart(2, None, 0.5, 3.5))


# those: test_cross_shard
@pytest.mark.parametrize("lie", [lie for lie in NODE_ATTACKS if lie not in SHARD_ATTACKS])
def test_one_liar_of_any_kind_tells_its_lie_and_breaks_nothing(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_was(monkeypatch)
    short = (
        replace(SHORT, piece_bytes=8, peers=5, aggregator="median")
        if lie in PIECE_ATTACKS
        else SHORT
    )
    if lie == "ghost_roster":
        short = replace(short, joins_s=(4.5,))  # there are ids that nobody has as yet
    if lie == "usurper":
        short = replace(short, seed=2)  # in which its turn to serve comes
    outcome = assert_sound(replace(short, faults=(NodeAttack(lie, (0,)), *RESTARTS)))
    assert outcome.struck[f"lie_{lie}"] == 1


@pytest.mark.parametrize(
    "lie", ["garbage", "huge", "replays", "flood", "false_suspicions", "wrong_size"]
)
def test_one_liar_breaks_nothing_in_gossip_rounds(lie: str) -> None:
    assert_sound(
        replace(SHORT, topology="random-k", shards=(8,), faults=(NodeAttack(lie, (0,)), *RESTARTS))
    )


def test_most_lies_excuse_nothing_but_what_their_teller_holds_itself() -> None:
    excused = FORKING_ATTACKS | INVENTING_ATTACKS | FATAL_ATTACKS | FALSE_STATES
    assert excused < set(LIES)
    for lie in sorted(set(LIES) - excused):
        found = conditions(replace(SHORT, faults=(NodeAttack(lie, (0,)),)))
        assert found == RunConditions.of((0,), equivocating=(0,), attacks=(lie,))
        may_fork = found.forks or found.may_fork_by_attack
        assert not any(
            (may_fork, found.false_states, found.invented_incarnations, found.unfounded_deaths)
        )


# --- what was found in the core -------------------------------------------------------------------


def test_seed_0_hellos_do_not_beget_hellos_without_end() -> None:
    assert_sound(
        world(0, peers=4, active_s=1.0, duration_s=1.0, faults=(NodeAttack("flood", (0,)),))
    )


def test_seed_1_who_left_a_round_with_a_commit_holds_it_when_it_comes_back() -> None:
    assert_sound(world(1, peers=5, shards=(5, 3), faults=(NodeAttack("wrong_size", (1,)),)))


OUTBID = Schedule(
    923271,
    peers=4,
    active_s=2.646,
    duration_s=2.646,
    compute_s=(0.46, 0.58),
    rule_s=0.01,
    probe_interval_s=0.5,
    batch_policy="fixed_global",
    faults=(NodeAttack("forged_incarnations", (3,)),),
)
BELIEVED_GONE = Schedule(
    1332,
    peers=5,
    aggregator="trimmed_mean",
    active_s=0.933,
    duration_s=0.933,
    compute_s=(0.46, 0.58),
    probe_interval_s=1.0,
    faults=(NodeAttack("forged_departures", (2,)),),
)


HANDED_OVER = replace(BELIEVED_GONE, seed=1219)
"""Whom a commit leaves out hands it over, and has said nothing to the receiver before."""


@pytest.mark.parametrize(
    "schedule",
    [OUTBID, BELIEVED_GONE, HANDED_OVER, replace(BELIEVED_GONE, seed=1324)],
    ids=["outbid", "believed gone", "handed over", "handed over later"],
)
def test_what_comes_of_a_life_and_a_farewell_invented_before_the_start(schedule: Schedule) -> None:
    """The faults were the checkers'. Who is told of a later life of a peer before the two have met
    answers that peer nothing, and is accused by it. Without whom a run has begun, as it was said to
    have left, comes in like a newcomer."""
    assert_sound(schedule)


def test_seed_63_one_who_suspects_everybody_does_not_keep_a_cut_swarm_busy_through_its_bridge():
    """Each false word led to a question by way of the liar, whose answer brought the next: 15,000
    questions a second."""
    faults = (NodeAttack("false_suspicions", (0,)), Partition(((2, 4, 5, 6), (1, 3, 7)), 1.5, 1.5))
    schedule = Schedule(
        63,
        peers=8,
        topology="random-k",
        faults=faults,
        probe_interval_s=1.0,
        active_s=3.5,
        duration_s=3.5,
    )
    outcome = assert_sound(schedule)
    assert outcome.counts["sent"] < 10_000


def test_seed_1232_peers_that_swap_their_branches_all_at_once_keep_their_own_states():
    """Everybody asked somebody who was asking, and nobody had a state to give: the whole swarm
    waited for ever. (Seed 1232, after a liar's broken results and two restarts; what comes to that
    changes with the order of messages.)"""
    swarm = make_swarm(Schedule(1232, peers=4), Nemesis(Schedule(1232, peers=4)))
    swarm.run_for(3.0)
    for peer, host in swarm.hosts.items():
        host.core.rounds.lag_detector.lose_track(
            (peer + 1) % 4, "everybody else is on another branch"
        )
    reached = round_of(swarm, 0)
    swarm.run_for(8.0)
    assert sum(len(swarm.reports(peer, "kept_own_state")) for peer in swarm.hosts) >= 1
    assert min(round_of(swarm, peer) for peer in swarm.hosts) > reached + 3


def round_of(swarm: Swarm[Peer], peer: PeerId) -> int:
    core = swarm.hosts[peer].core
    return core.rounds.round_id


def test_seed_527_a_liar_that_offers_a_state_of_a_far_round_is_not_followed_there() -> None:
    """Peer 1 took it over, and the others followed it there."""
    schedule = Schedule(
        527,
        peers=3,
        aggregator="median",
        faults=typed("nan:0 far_states:2 restart:1@14.5s+10ms"),
        active_s=15.0,
        duration_s=17.0,
        compute_s=(0.46, 0.58),
        shards=(12,),
    )
    outcome = assert_sound(schedule)
    # Of three the rule needs all to tolerate one: nobody is locked up.
    assert (outcome.reports.get("quarantined", 0), outcome.reports["restored"]) == (0, 1)
    assert outcome.rounds < 100
