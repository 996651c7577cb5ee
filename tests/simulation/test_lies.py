"""What a lying peer, of any kind, does to honest ones:
nothing but what the excuses of its kind name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from impatient import as_it_was

from gossip.core.inspection import RollingInspection
from gossip.core.messages import PeerId
from gossip.core.peer import Peer
from gossip.core.rounds.rolling import RollingRounds
from gossip.faults.kinds import ByzantineFault, Crash, Restart
from gossip.faults.world import (
    NODE_ATTACKS,
    PIECE_ATTACKS,
    SHARD_ATTACKS,
    CrashMidway,
    Delay,
    Drift,
    HangServer,
    HangTrainer,
    LateTimers,
    Loss,
    Narrow,
    NodeAttack,
    Partition,
    Reset,
    Ring,
    SlowNode,
)
from gossip_lab.simulation.campaign.play import circumstances, make_swarm, run
from gossip_lab.simulation.checkers import RunConditions
from gossip_lab.simulation.checkers.base import (
    FALSE_STATES,
    FATAL_ATTACKS,
    FORKING_ATTACKS,
    INVENTING_ATTACKS,
)
from gossip_lab.simulation.checkers.safety.membership import NoFalseDeath
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


# those: test_together
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
    outcome = run(replace(short, faults=(NodeAttack(lie, (0,)), *RESTARTS)))
    assert outcome.violation is None, outcome.violation
    assert outcome.struck[f"lie_{lie}"] == 1


@pytest.mark.parametrize(
    "lie", ["garbage", "huge", "replays", "flood", "false_suspicions", "wrong_size"]
)
def test_one_liar_breaks_nothing_in_gossip_rounds(lie: str) -> None:
    outcome = run(
        replace(SHORT, topology="random-k", shards=(8,), faults=(NodeAttack(lie, (0,)), *RESTARTS))
    )
    assert outcome.violation is None, outcome.violation


def test_most_lies_excuse_nothing_but_what_their_teller_holds_itself() -> None:
    excused = FORKING_ATTACKS | INVENTING_ATTACKS | FATAL_ATTACKS | FALSE_STATES
    assert excused < set(LIES)
    for lie in sorted(set(LIES) - excused):
        found = circumstances(replace(SHORT, faults=(NodeAttack(lie, (0,)),)))
        assert found == RunConditions.of((0,), equivocating=(0,), lies=(lie,))
        assert not any(
            (found.forks, found.false_states, found.invented_lives, found.unfounded_deaths)
        )


# --- what was found in the core -------------------------------------------------------------------


def test_seed_0_hellos_do_not_beget_hellos_without_end() -> None:
    outcome = run(
        world(0, peers=4, active_s=1.0, duration_s=1.0, faults=(NodeAttack("flood", (0,)),))
    )
    assert outcome.violation is None, outcome.violation


def test_seed_1_who_left_a_round_with_a_commit_holds_it_when_it_comes_back() -> None:
    outcome = run(world(1, peers=5, shards=(5, 3), faults=(NodeAttack("wrong_size", (1,)),)))
    assert outcome.violation is None, outcome.violation


def test_seed_259_a_minority_on_a_dead_branch_does_not_ask_for_ever_for_commits_that_nobody_keeps():
    """Without a lie: those ahead have taken over a state since,
    and what they keep begins with that."""
    faults = (
        Crash(5, at_s=5.362),
        CrashMidway(0, 10.773, 24, 0.034),
        Narrow(105.355, 256.0, 9.004, 5.39, ()),
        Ring((4, 2, 3, 5, 0, 1), 8.167, 4.98),
    )
    schedule = Schedule(
        259,
        peers=6,
        faults=faults,
        shards=(5, 3),
        probe_interval_s=0.2,
        compute_s=(0.35, 0.5),
        stable_addresses=True,
    )
    outcome = run(schedule)
    assert outcome.violation is None, outcome.violation


def test_seed_706_a_false_address_told_before_a_life_began_gives_way_to_its_owners_word() -> None:
    faults = (
        Restart(7, None, 2.257, 16.899),
        Restart(3, None, 0.126, 8.023),
        Restart(0, None, 0.14, 3.115),
        NodeAttack("forged_incarnations", (3,)),
        Partition(((0, 1, 6, 7), (2, 3, 5)), 7.812, 0.446),
        Partition(((0, 6, 7), (1, 2, 3, 4, 5)), 3.299, 1.596),
        Reset(0.0293, 8.173, 1.855, (3,)),
        Drift(5, 0.9354, 4.376, 1.685),
        HangTrainer(5, 3.599, 1.24),
    )
    schedule = Schedule(706, peers=8, topology="ring", faults=faults, compute_s=(0.35, 0.5))
    outcome = run(schedule)
    assert outcome.violation is None, outcome.violation


def test_seed_487_two_told_false_addresses_of_each_other_find_each_other_by_the_rest():
    faults = (
        CrashMidway(7, 10.415, 13, 1.141),
        CrashMidway(4, 11.349, 23, 0.614),
        NodeAttack("forged_incarnations", (8,)),
        Delay(0.316, 10.919, 3.17),
        Ring((2, 8, 0, 1, 4, 5, 3, 7, 6), 14.43, 1.668),
    )
    schedule = Schedule(
        487,
        peers=9,
        topology="full",
        aggregator="median",
        faults=faults,
        compute_s=(0.46, 0.58),
        shards=(8,),
    )
    assert run(replace(schedule, probe_interval_s=0.5)).violation is None


OUTBID = Schedule(
    923271,
    peers=4,
    active_s=2.646,
    duration_s=2.646,
    compute_s=(0.46, 0.58),
    rule_s=0.01,
    probe_interval_s=0.5,
    round_timeout_s=3.0,
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
    round_timeout_s=3.0,
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
def test_what_comes_of_a_life_and_a_farewell_that_were_invented_before_the_start(
    schedule: Schedule,
) -> None:
    """The faults were the checkers'. Who is told of a later life of a peer before the two have met
    answers that peer nothing, and is accused by it. Without whom a run has begun, as it was said to
    have left, comes in like a newcomer."""
    outcome = run(schedule)
    assert outcome.violation is None, outcome.violation


def test_s6_one_that_does_not_answer_is_caught_where_nobody_invents_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule = replace(OUTBID, seed=9, probe_interval_s=0.4)
    assert run(schedule).violation is None
    monkeypatch.setattr(NoFalseDeath, "_is_outbid", lambda self, swarm, peer, subject: False)
    violation = run(schedule).violation
    assert violation is not None
    assert violation.invariant == "S6"


def test_s14_one_that_was_there_at_the_start_is_left_out_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RollingInspection, "absent_at_start", frozenset())
    violation = run(BELIEVED_GONE).violation
    assert violation is not None
    assert violation.invariant == "S14"


def test_seed_469_what_one_says_counts_whom_a_liar_has_given_a_later_life() -> None:
    """The fault was the checker's."""
    faults = (NodeAttack("forged_incarnations", (0,)), Partition(((2,), (0, 1), (3,)), 2.1, 1.6))
    schedule = Schedule(
        469,
        peers=4,
        faults=faults,
        active_s=3.8,
        duration_s=3.8,
        compute_s=(0.46, 0.58),
        commit_log=8,
    )
    outcome = run(replace(schedule, probe_interval_s=1.0))
    assert outcome.violation is None, outcome.violation


def test_seed_1204_a_liar_that_nobody_follows_makes_up_no_quorum_with_the_honest() -> None:
    """The fault was the checker's. Of four one is dead and one is in a round that its own
    false result opened."""
    faults = (
        Crash("server", at_s=7.875),
        NodeAttack("strange_roster", (0,)),
        Loss(0.117, 2.591, 2.456),
        LateTimers(1, 0.176, 6.479, 4.194),
    )
    schedule = Schedule(
        1204,
        peers=4,
        faults=faults,
        compute_s=(0.46, 0.58),
        shards=(8,),
        commit_log=8,
        rounds_min=0,
    )
    assert run(schedule).violation is None


def test_seed_1235_a_result_that_all_refused_may_be_shown_to_one_who_returns_into_its_round():
    """Of a liar that stops lying; whoever took it is on a branch of its own until it
    hears of the others."""
    faults = (
        Restart(5, None, 0.01, 5.3),
        Restart(1, None, 0.11, 5.172),
        ByzantineFault("zero", (4,), 1.0),
        NodeAttack("broken_results", (3,)),
    )
    schedule = Schedule(
        1235, peers=6, aggregator="multi_krum", faults=faults, active_s=5.41, duration_s=17.41
    )
    schedule = replace(
        schedule, compute_s=(0.46, 0.58), rule_s=0.1, shards=(4, 4, 4), stable_addresses=True
    )
    assert circumstances(schedule).forking_lies
    assert run(schedule).violation is None


def test_seed_1814_a_late_server_does_not_hold_a_commit_that_others_have_gone_on_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was never silent for long, so it did not notice; the lies have no part in it."""
    as_it_was(monkeypatch)
    faults = (
        Crash("server", at_s=5.249),
        CrashMidway(0, 1.398, 28, 0.651),
        NodeAttack("usurper", (1,)),
        SlowNode(0, 0.028, 13.914, 3.473),
        HangServer(at_s=7.668, for_s=0.274),
    )
    schedule = Schedule(
        1814, peers=5, faults=faults, compute_s=(0.46, 0.58), rule_s=0.0001, shards=(4, 4, 4)
    )
    outcome = run(replace(schedule, probe_interval_s=0.2))
    assert outcome.violation is None, outcome.violation
    assert outcome.struck["slow_node"] == 1


@pytest.mark.parametrize("seed", [784, 787])
def test_who_was_told_two_results_may_be_found_out_late(seed: int) -> None:
    found = circumstances(replace(SHORT, faults=(NodeAttack("two_results", (3,)),)))
    assert found.forks
    assert found.forking_lies
    faults = (
        Restart(2, None, 0.076, 7.327),
        NodeAttack("two_results", (3,)),
        Loss(0.337, 5.392, 6.095),
        LateTimers(3, 0.154, 12.26, 3.058),
    )
    assert (
        run(
            Schedule(seed, peers=6, shards=(4, 4, 4), faults=faults, compute_s=(0.35, 0.5))
        ).violation
        is None
    )


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
    outcome = run(schedule)
    assert outcome.violation is None, outcome.violation
    assert outcome.counts["sent"] < 10_000


def test_seed_1232_peers_that_swap_their_branches_all_at_once_keep_their_own_states():
    """Everybody asked somebody who was asking, and nobody had a state to give: the whole swarm
    waited for ever. (Seed 1232, after a liar's broken results and two restarts; what comes to that
    changes with the order of messages.)"""
    swarm = make_swarm(Schedule(1232, peers=4), Nemesis(Schedule(1232, peers=4)))
    swarm.run_for(3.0)
    for peer, host in swarm.hosts.items():
        assert isinstance(host.core, Peer)
        assert isinstance(host.core.rounds, RollingRounds)
        host.core.rounds.lag_detector.lost_track = (
            (peer + 1) % 4,
            "everybody else is on another branch",
        )
    reached = round_of(swarm, 0)
    swarm.run_for(8.0)
    assert sum(len(swarm.reports(peer, "kept_own_state")) for peer in swarm.hosts) >= 1
    assert min(round_of(swarm, peer) for peer in swarm.hosts) > reached + 3


def round_of(swarm: Swarm[Peer], peer: PeerId) -> int:
    core = swarm.hosts[peer].core
    assert core is not None
    return core.rounds.round_id


def test_seed_527_a_liar_that_offers_a_state_of_a_far_round_is_not_followed_there() -> None:
    """Peer 1 took it over, and the others followed it there."""
    schedule = Schedule(
        527,
        peers=3,
        aggregator="median",
        faults=(
            ByzantineFault("nan", (0,), 1.0),
            NodeAttack("far_states", (2,)),
            Restart(1, None, 0.01, 14.5),
        ),
        active_s=15.0,
        duration_s=17.0,
        compute_s=(0.46, 0.58),
        shards=(12,),
    )
    outcome = run(schedule)
    assert outcome.violation is None, outcome.violation
    # Of three the rule needs all to tolerate one: nobody is locked up.
    assert (outcome.reports.get("quarantined", 0), outcome.reports["restored"]) == (0, 1)
    assert outcome.rounds < 100
