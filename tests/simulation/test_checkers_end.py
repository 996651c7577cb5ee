"""What is judged when all has settled and at the end; what lies and weather excuse; and how much is
said: each with a plant."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from checked_swarm import assert_sound, checked_swarm, each, tamper
from test_checkers import ANOTHER_FORWARDED

from gossip.core.events import Apply, Received, Send, StartRound
from gossip.core.messages import Gossip, Rumor
from gossip.faults.kinds import Hang, Slow
from gossip.faults.world import (
    CLAIM_ATTACKS,
    NODE_ATTACKS,
    SHARD_ATTACKS,
    CrashBroadcast,
    Drift,
    HangServer,
    NodeAttack,
    Partition,
    Reset,
    Spike,
)
from gossip.topologies import Plan
from gossip_lab.simulation.campaign.play import _reached, judge_pace, run
from gossip_lab.simulation.campaign.runner import LARGE, OF_ONE_STAGE, CampaignTally
from gossip_lab.simulation.checkers import CheckerSuite, RunConditions, Violation
from gossip_lab.simulation.checkers.disturbances import Disturbances
from gossip_lab.simulation.checkers.liveness.liveness import STARVED_AFTER, NoServerStarvation
from gossip_lab.simulation.checkers.liveness.promptness import BoundedRoundDuration
from gossip_lab.simulation.checkers.safety.rounds import FORKS_AFTER_S, SingleCommitPerRound
from gossip_lab.simulation.checkers.traffic.rates import BoundedRumorTransmissions
from gossip_lab.simulation.schedules.generator import FAST_COMPUTE_S, generate
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.network import LinkModel


def test_a_swarm_that_makes_no_progress_after_it_had_settled_is_caught() -> None:
    suite = CheckerSuite([BoundedRoundDuration()])
    swarm = checked_swarm(suite)
    swarm.run_for(1.0)
    suite.settle(swarm)
    swarm.run_for(2.0)
    for peer in range(4):
        tamper(swarm, peer, each(Apply, lambda apply: []))
    with pytest.raises(Violation, match=r"L2 .* has been in round \d+ for .* s unhindered"):
        swarm.run_for(5.0)


def test_rounds_that_come_on_slower_than_peers_compute_are_caught() -> None:
    swarm = checked_swarm()
    swarm.run_for(1.0)
    schedule = Schedule(0, peers=4, compute_s=(0.1, 0.12))
    begun = _reached(schedule, swarm)
    swarm.run_for(5.0)
    judge_pace(schedule, swarm, 1.0, begun)
    for peer in range(4):
        tamper(swarm, peer, each(StartRound, lambda go: []))
    begun = _reached(schedule, swarm)
    swarm.run_for(5.0)
    with pytest.raises(Violation, match=r"L2 .* rounds since"):
        judge_pace(schedule, swarm, 6.0, begun)


def test_news_that_are_told_for_ever_are_caught() -> None:
    checker = BoundedRumorTransmissions()
    swarm = checked_swarm(CheckerSuite([checker]))
    swarm.run_for(2.0)
    assert checker.judged > 0
    old = Gossip((Rumor(2, "alive", 0, "", "", 2),))
    tamper(
        swarm,
        0,
        lambda event, effects: [*effects, Send(1, old)] if isinstance(event, Received) else effects,
    )
    with pytest.raises(Violation, match="sends for the 37th time that peer 2 is alive"):
        swarm.run_for(10.0)


def test_l6_is_judged_only_where_somebody_could_have_starved() -> None:
    checker = NoServerStarvation()
    swarm = checked_swarm(CheckerSuite([checker]), compute_s=0.02)
    swarm.run_for(1.0)
    assert checker.judged == 0
    swarm.run_for(3.0)
    assert checker.judged > 0


HEAVY = "rolling:weights=0:10,1:10,2:10"


def test_l6_waits_longer_for_whoever_weighs_less_and_for_nobody_for_ever() -> None:
    """Peer 3 serves one round of 31: by chance it waits for 64, which would be starving among
    equals, now and then: at 9.9 s, when all have been undisturbed for long enough to be judged."""
    checker = NoServerStarvation()
    swarm = checked_swarm(CheckerSuite([checker]), topology=HEAVY, compute_s=0.02)
    swarm.run_for(10.5)
    turns = [done.commit.round_id for done in swarm.commits(0) if done.commit.server == 3]
    assert max(b - a for a, b in pairwise(turns)) > STARVED_AFTER * 4
    assert checker.judged > 0
    for peer in range(4):
        rounds: Any = swarm.hosts[peer].core.rounds
        plan = rounds.topology

        def last(*args: Any, plan: Any = plan, **options: Any) -> Plan:
            return Plan(
                tuple(
                    (*(p for p in order if p != 3), 3) for order in plan(*args, **options).servers
                )
            )

        rounds.topology = last
    with pytest.raises(Violation, match=r"L6 .* peer 3: it has not served for \d+ rounds"):
        swarm.run_for(30.0)


def test_some_schedules_have_rounds_enough_for_that() -> None:
    fast = [seed for seed in range(200) if generate(seed).compute_s == FAST_COMPUTE_S]
    assert 2 <= len(fast) <= 20
    assert all(generate(seed).topology == "rolling" for seed in fast)


def test_a_campaign_says_which_checker_never_had_anything_to_judge() -> None:
    tally = CampaignTally()
    outcome = run(Schedule(1, peers=4, active_s=1.0, duration_s=2.0))
    assert outcome.judged_by["PushesFollowPlan"] == 0
    assert outcome.judged_by["CommitsMatchRuleResults"] > 0
    tally.add(outcome)
    tally.rounds *= 1000
    tally.drawn["crash"] = 1
    # no gossip rounds were played
    assert not [text for text in tally.vacuous if "PushesFollowPlan" in text]
    tally.topologies["random-k"] = 1
    assert "PushesFollowPlan has never judged" in tally.vacuous


def large_tally(*judged: str) -> CampaignTally:
    """A large campaign that has never judged these invariants."""
    tally = CampaignTally(topologies=Counter(rolling=LARGE))
    tally.rounds, tally.drawn["crash"] = [50] * LARGE, 1
    tally.judged.update(dict.fromkeys(judged, 0))
    return tally


def test_a_campaign_without_gossip_rounds_need_not_judge_their_end() -> None:
    tally = large_tally("L1", "L12")
    assert "L1 was never judged" in tally.vacuous
    assert "L12 was never judged" not in tally.vacuous
    tally.topologies["full"] = 1
    assert "L12 was never judged" in tally.vacuous


def test_a_campaign_of_pipelines_need_not_judge_what_nothing_drawn_for_them_tests() -> None:
    tally = large_tally("L1", *OF_ONE_STAGE)
    tally.schedules = tally.pipelines = LARGE
    found = [text for text in tally.vacuous if "judged" in text]
    assert found == ["L1 was never judged"]
    tally.schedules += 1
    assert len([text for text in tally.vacuous if "judged" in text]) == 1 + len(OF_ONE_STAGE)


# --- excuses --------------------------------------------------------------------------------------


def test_lies_excuse_by_kind_what_they_can_cause() -> None:
    allows_false_accusations = [
        lie for lie in NODE_ATTACKS if RunConditions.of(attacks=[lie]).allows_false_accusations
    ]
    allows_delays = [lie for lie in NODE_ATTACKS if RunConditions.of(attacks=[lie]).allows_delays]
    others = [
        "false_deaths",
        "false_suspicions",
        "forged_departures",
        "forged_incarnations",
        "deaf",
    ]
    noise = ["replays", "garbage", "flood"]
    how = ("wrong", "scaled", "slightly_wrong", "broken", "nan", "kept", "two")
    wrong = [f"{each}_results" for each in how]
    results = [*wrong, "strange_roster", *CLAIM_ATTACKS, "usurper"]
    assert allows_false_accusations == ["wrong_size", *others, *noise]
    assert allows_delays == ["wrong_size", *results, *others, "far_states", *noise, *SHARD_ATTACKS]


@pytest.mark.parametrize(
    ("model", "uneven"),
    [
        (LinkModel(duplicate=0.5), False),
        (LinkModel(reorder=0.5, reorder_s=0.01), False),
        (LinkModel(delay_s=(0.0, 0.02)), False),
        (LinkModel(delay_s=(0.0, 0.2)), True),
        (LinkModel(spike=0.01, spike_s=1.0), True),
        (LinkModel(loss=0.01), True),
        (LinkModel(reset=0.01), True),
        (LinkModel(bytes_per_s=1000.0), True),
    ],
)
def test_weather_excuses_a_second_result_only_where_a_commit_may_be_lost_or_late(
    model: LinkModel, uneven: bool
) -> None:
    disturbances = Disturbances()
    swarm = checked_swarm(CheckerSuite([disturbances]))
    swarm.run_for(1.0)
    swarm.network.default = model
    swarm.run_for(1.0)
    assert (disturbances.uneven_until > 1.0) is uneven
    assert disturbances.network_fault_until > 1.0


def test_a_second_result_is_excused_by_a_lie_for_some_seconds_of_the_calm_only() -> None:
    conditions = RunConditions.of((3,), equivocating=(3,), attacks=["two_results"])
    suite = CheckerSuite([SingleCommitPerRound(conditions)])
    swarm = checked_swarm(suite)
    tamper(swarm, 1, ANOTHER_FORWARDED)
    swarm.run_for(2.0)
    suite.begin_calm()
    with pytest.raises(Violation, match="at peer"):
        swarm.run_for(FORKS_AFTER_S + 2.0)
    assert swarm.now > 2.0 + FORKS_AFTER_S


BEHIND = Schedule(
    5,
    faults=(
        Hang(4, None, 5.024, 8.936),
        Partition(((0, 2), (1, 3, 4)), 15.633, 0.226),
        Partition(((2, 3), (1, 4), (0,)), 10.815, 1.03),
        Spike(0.0123, 0.054, 14.921, 2.854),
        CrashBroadcast(8.327, 1, 0.087),
    ),
    rounds_min=50,
    compute_s=(0.46, 0.58),
    rule_s=0.01,
    shards=(4, 4, 4),
    probe_interval_s=1.0,
)
FAR_AWAY = Schedule(
    100,
    peers=4,
    faults=(
        Slow(1, 3.0),
        NodeAttack("far_states", (0,)),
        Reset(0.007, 9.409, 0.893, (2, 3)),
        Drift(2, 0.98, 6.934, 2.862),
        CrashBroadcast(9.496, 2, 0.25),
        HangServer(3.085, 6.714),
    ),
    rounds_min=50,
    compute_s=(0.46, 0.58),
    rule_s=0.01,
    probe_interval_s=0.5,
    commit_log=8,
)


def test_seed_5_who_is_behind_over_a_slow_link_does_not_ask_for_everything_again_and_again():
    """It asked 48 times in a second, each time for all that it lacked,
    and was sent 963 commits for it."""
    assert_sound(BEHIND)


def test_seed_100_rounds_to_which_a_liar_has_sent_everybody_are_not_counted_as_played() -> None:
    outcome = assert_sound(FAR_AWAY)
    assert 20 < outcome.rounds < 100
