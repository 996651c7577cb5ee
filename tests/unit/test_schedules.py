"""Schedules: drawn from a seed, written as a plan, made smaller."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from typing import Any, get_args

import pytest

from gossip.errors import ConfigError
from gossip.faults import plan as faults
from gossip.faults.kinds import ByzantineFault, Crash, Hang, Restart
from gossip.faults.start import LateStart, LateTrainer, NeverStarts, StartFault
from gossip.faults.world import (
    STATE_ATTACKS,
    CrashBroadcast,
    CrashMidway,
    Delay,
    Flap,
    HangTrainer,
    KillTrainer,
    Leave,
    Loss,
    Narrow,
    NodeAttack,
    Partition,
    Rewritten,
    Ring,
    Trickle,
    Unreadable,
    WorldFault,
)
from gossip.topologies.weights import read_weights
from gossip_lab.simulation.campaign.runner import SearchQuery
from gossip_lab.simulation.schedules.fault_kinds import KINDS, LIES
from gossip_lab.simulation.schedules.generator import (
    CROSS_SHARD,
    RULES,
    WEIGHTED,
    generate,
    needs_a_server,
)
from gossip_lab.simulation.schedules.late_starts import FIRST_S
from gossip_lab.simulation.schedules.lots import BEGIN_S
from gossip_lab.simulation.schedules.schedule import KINDS_MIN, Schedule, without_peer
from gossip_lab.simulation.schedules.situations import (
    BRIEF_S,
    SHARE,
    SITUATIONS,
    STANDING,
    STAY_LEAST,
)
from gossip_lab.simulation.schedules.strains import SHARE as STRAIN_SHARE
from gossip_lab.simulation.world.nemesis import name_of

DRAWN = [generate(seed) for seed in range(500)]


def is_strained(schedule: Schedule) -> bool:
    """Whether hardly anything goes wrong in it."""
    return schedule.peers < 4 or len({type(fault) for fault in schedule.faults}) < KINDS_MIN


def of_kind(schedule: Schedule, *kinds: type) -> list[Any]:
    return [fault for fault in schedule.faults if isinstance(fault, kinds)]


def victims(schedule: Schedule, *kinds: type) -> set[Any]:
    return {fault.peer for fault in of_kind(schedule, *kinds)}


KILLS = (Crash, Leave, Restart, CrashMidway, KillTrainer)
STRAINED = [schedule for schedule in DRAWN if is_strained(schedule)]
MANY = [schedule for schedule in DRAWN if not is_strained(schedule)]


def test_drawn_schedules_can_be_played_and_cover_every_kind_of_fault_and_topology() -> None:
    kinds: Counter[str] = Counter()
    for schedule in MANY:
        schedule.checked()
        assert 4 <= schedule.peers <= 9
        kinds.update({name_of(fault) for fault in schedule.faults})
    lies = {attack for attack, _ in LIES}
    told = {kind for kind in kinds if kind.startswith("lie_")}
    assert len(told) > 5
    others = {
        *lies,
        "crash",
        "restart",
        "hang",
        "slow",
        "partition_one_way",
        *(
            name
            for name, kind in faults.KINDS.items()
            if kind.made in get_args(WorldFault) and not kind.fixed
        ),
        "queue_full",
    }
    others -= {"lie"}
    others -= {"trickle", "rewritten", "unreadable"}  # in strained ones only
    assert set(kinds) - told == others
    assert {schedule.topology for schedule in MANY} == {"rolling", "random-k", "ring", "full"}


def test_in_some_schedules_some_serve_more_often_than_others() -> None:
    rolling = [schedule for schedule in MANY if schedule.topology == "rolling"]
    weighted = [schedule for schedule in MANY if schedule.server_weights]
    assert all(schedule in rolling for schedule in weighted)
    assert 0.6 * WEIGHTED < len(weighted) / len(rolling) < 1.4 * WEIGHTED
    assert {
        weight for schedule in weighted for weight in read_weights(schedule.server_weights).values()
    } == {2, 4, 10}
    asked_for = [generate(schedule.seed, topology="rolling") for schedule in MANY]
    assert not any(schedule.server_weights for schedule in asked_for)


def test_in_some_schedules_hardly_anything_goes_wrong_and_payloads_or_peers_are_strained() -> None:
    assert 0.4 * STRAIN_SHARE < len(STRAINED) / len(DRAWN) < 1.2 * STRAIN_SHARE
    for schedule in STRAINED:
        schedule.checked()
    assert any(schedule.peers == 1 for schedule in STRAINED)
    assert any(len(victims(schedule, Hang)) == schedule.peers > 1 for schedule in STRAINED)
    assert any(not schedule.faults and schedule.bytes_per_s for schedule in STRAINED)
    assert any(not schedule.faults and schedule.copies_per_s for schedule in STRAINED)
    assert any(schedule.joins_s and isinstance(schedule.faults[0], Narrow) for schedule in STRAINED)
    assert any(schedule.told and schedule.joins_s for schedule in STRAINED)
    found = {type(fault) for schedule in STRAINED for fault in schedule.faults}
    assert found >= {Trickle, Rewritten, Unreadable}


def test_somebody_who_tells_the_truth_about_its_state_stays_up_all_the_time() -> None:
    for schedule in [*MANY, generate(85), generate(92)]:
        lies = [f for f in of_kind(schedule, NodeAttack) if f.lie in STATE_ATTACKS]
        attackers, mortal = {p for lie in lies for p in lie.peers}, victims(schedule, *KILLS)
        assert len((mortal | attackers) - {"server"}) + ("server" in mortal) < schedule.peers


def test_a_trainer_dies_once_or_again_and_again() -> None:
    deaths = [of_kind(schedule, KillTrainer) for schedule in MANY]
    assert {len(killed) for killed in deaths} == {0, 1, 4}
    for killed in deaths:
        assert len({fault.peer for fault in killed}) < 2
        assert all(
            0.1 <= b.at_s - a.at_s <= 1.001 and b.after_s <= 0.2 for a, b in pairwise(killed)
        )


NEEDS = RULES | CROSS_SHARD | {"guarded_mean": 3}


def test_liars_meet_means_and_robust_rules_that_have_an_update_to_spare() -> None:
    lied_to = [schedule for schedule in MANY if of_kind(schedule, ByzantineFault)]
    assert set(RULES) <= {schedule.aggregator for schedule in lied_to} <= set(NEEDS)
    assert all(NEEDS[schedule.aggregator] < schedule.peers for schedule in lied_to)
    others = [schedule for schedule in MANY if schedule not in lied_to]
    assert {schedule.aggregator for schedule in others} == set(NEEDS)
    assert 0.2 < sum(schedule.aggregator != "mean" for schedule in DRAWN) / len(DRAWN) < 0.5
    assert all(NEEDS[schedule.aggregator] < schedule.peers for schedule in MANY)
    assert generate(lied_to[0].seed, aggregator="krum").aggregator == "krum"


def test_rules_have_enough_updates_when_those_are_gone_who_never_come_back() -> None:
    # for which multi_krum, which needs five, would have been drawn
    many = [*MANY, generate(881210)]
    gone = [(schedule, len(of_kind(schedule, Crash, Leave))) for schedule in many]
    assert all(NEEDS[schedule.aggregator] + lost <= schedule.peers for schedule, lost in gone)
    assert max(lost for schedule, lost in gone if lost < schedule.peers / 2) == 2


def test_a_fifth_of_the_schedules_is_of_a_situation_unless_something_was_asked_for() -> None:
    made = [
        [situation.name for situation in SITUATIONS if situation.make(schedule) == schedule]
        for schedule in MANY
    ]
    assert all(len(names) < 2 for names in made)
    assert 0.7 * SHARE < sum(map(bool, made)) / len(MANY) < 1.3 * SHARE
    assert {name for names in made for name in names} == {
        situation.name for situation in SITUATIONS
    }
    asked_for = [generate(schedule.seed, topology=schedule.topology) for schedule in MANY]
    assert not any(
        situation.make(schedule) == schedule for schedule in asked_for for situation in SITUATIONS
    )


def test_in_some_schedules_most_of_the_swarm_leaves_and_enough_stay() -> None:
    left = [(schedule, victims(schedule, Leave)) for schedule in MANY]
    most = [
        schedule.peers - len(peers) for schedule, peers in left if len(peers) > schedule.peers / 2
    ]
    assert most
    assert min(most) == STAY_LEAST


def test_a_tenth_of_the_schedules_begin_without_somebody_and_those_who_are_there_suffice() -> None:
    begun = [(s, of_kind(s, StartFault)) for s in MANY if s.min_peers]
    assert 0.07 < len(begun) / len(MANY) < 0.18
    assert {type(fault) for _, late in begun for fault in late} == {
        LateStart,
        LateTrainer,
        NeverStarts,
    }
    assert {len(late) for _, late in begun} == {1, 2}
    for schedule, late in begun:
        assert (
            schedule.min_peers
            == schedule.peers - len(late)
            >= max(schedule.peers // 2 + 1, NEEDS[schedule.aggregator])
        )
        never, gone = victims(schedule, NeverStarts), victims(schedule, Crash, Leave)
        assert not never & {
            getattr(f, "peer", None) for f in schedule.faults if not isinstance(f, NeverStarts)
        }
        assert len(gone) < (schedule.peers - len(never)) / 2
    assert {schedule.apart for schedule, _ in begun} == {True, False}


def test_in_some_schedules_one_dies_hangs_or_is_cut_off_while_all_are_to_begin_with_its_weights():
    made = [schedule for schedule in MANY if schedule.apart and not schedule.min_peers]
    assert 0.005 < len(made) / len(MANY) < 0.03
    first = [
        [
            fault
            for fault in schedule.faults
            if (getattr(fault, "at_s", None) or BEGIN_S) <= FIRST_S[1]
        ]
        for schedule in made
    ]
    kinds = {type(fault) for (fault,) in first}
    assert kinds <= {Crash, Restart, KillTrainer, Hang, Partition}
    assert len(kinds) >= 3
    lowest = [
        fault.sides[0] == (0,)
        if isinstance(fault, Partition)
        else getattr(fault, "peer", None) == 0
        for (fault,) in first
    ]
    assert 0.4 < sum(lowest) / len(lowest) < 0.95
    assert not any(of_kind(schedule, ByzantineFault) for schedule in made)


def test_in_some_schedules_those_who_are_left_are_no_majority_without_the_server_that_lies():
    made = [schedule for schedule in MANY if schedule.duration_s == BRIEF_S[1]]
    assert 0.5 * STANDING < len(made) / len(MANY) < 1.3 * STANDING
    for schedule in made:
        hung = {f.peer for f in of_kind(schedule, HangTrainer) if f.for_s > 1.0}
        away = victims(schedule, Crash, Restart) | hung
        assert schedule.aggregator != "mean"
        assert schedule.peers - len(away) <= schedule.peers // 2 + 1


def test_much_can_happen_while_a_rule_runs_in_half_of_the_schedules() -> None:
    slow = [schedule for schedule in MANY if schedule.rule_s >= 10 * schedule.delay_s[1]]
    assert 0.4 < len(slow) / len(MANY) < 0.6
    assert all(schedule.rule_s < schedule.compute_s[0] for schedule in MANY)


def test_a_seed_draws_the_same_in_every_process() -> None:
    code = (
        "from gossip_lab.simulation.schedules.generator import generate\n"
        "print(''.join(generate(s).plan.to_toml() for s in range(20)))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert seen == {("".join(generate(seed).plan.to_toml() for seed in range(20)) + "\n").encode()}


def test_fewer_peers_leave_the_kinds_and_times_of_the_faults_as_they_were() -> None:
    for seed in range(50):
        eight, six = (
            generate(seed, peers=8, topology="rolling"),
            generate(seed, peers=6, topology="rolling"),
        )
        timed = (CrashMidway, Hang, Loss, Flap, Delay)
        moments = [
            [(type(f), f.at_s) for f in s.faults if isinstance(f, timed)] for s in (eight, six)
        ]
        assert moments[0] == moments[1] or any(
            isinstance(f, CrashMidway | Hang) for f in (*eight.faults, *six.faults)
        )


def test_a_minority_is_gone_for_good_and_somebody_lives_through_it_all() -> None:
    for schedule in MANY:
        gone, killed = of_kind(schedule, Crash, Leave), victims(schedule, *KILLS)
        if len(victims(schedule, Leave)) > schedule.peers / 2:
            continue  # most leave in one moment, as they may
        servers = sum(
            1
            for f in schedule.faults
            if isinstance(f, CrashBroadcast) or (f in gone and f.peer == "server")
        )
        assert len(gone) < schedule.peers / 2
        assert len(killed - {"server"}) + servers < schedule.peers


def test_a_schedule_as_a_plan_is_the_same_schedule_again() -> None:
    for schedule in MANY[:100]:
        plan = faults.from_toml(schedule.plan.to_toml())
        assert Schedule(0).with_plan(plan) == schedule
        assert SearchQuery(plan=plan).schedule(schedule.seed) == schedule


@pytest.mark.parametrize(
    ("world", "says"),
    [
        ("seeds = 3", "Did you mean 'seed'?"),
        ("peers = true", "is not like"),
        ("compute_s = [0.1]", "is not like"),
        ("compute_s = [0.2, 0.1]", "the lower one first"),
        ("topology = 'ring'\nshards = [4, 4]", "exchanges whole vectors"),
        ("topology = 'rong'", "Did you mean 'ring'?"),
        ("peers = 0", "has 1 to 64 peers"),
        ("duration_s = 5", "active_s <= duration_s"),
        ("rule_s = -0.1", "at least 0, and no more than round_timeout_s = 3"),
        ("server_weights = '0:4,0:2'", "peer 0 is listed twice"),
        ("server_weights = '5:2'", "there are 5 peers"),
        ("topology = 'ring'\nserver_weights = '0:2'", "unknown option of topology ring 'weights'"),
        ("rule_s = 3.5", "at least 0, and no more than round_timeout_s = 3"),
    ],
)
def test_a_world_that_cannot_be_is_refused(world: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Schedule(0).with_plan(faults.from_toml(f"[simulate]\n{world}\n"))
    assert says in str(caught.value)


def test_a_peer_that_goes_takes_its_faults_along_and_the_others_move_down() -> None:
    plan = (
        Crash(2, at_s=1.0),
        Hang(1, None, 1.0, 2.0),
        Partition(((0, 1), (2,)), 1.0, 1.0),
        Partition(((0, 2), (1, 3)), 1.0, 1.0),
        Flap((1, 3), 1.0, 1.0, 0.5),
        Loss(0.1, 1.0, 1.0, (2,)),
        Loss(0.1, 1.0, 1.0),
        Ring((3, 2, 1, 0), 1.0, 1.0),
        ByzantineFault("nan", (2, 3), 1.0),
    )
    small = without_peer(Schedule(1, peers=4, faults=plan, server_weights="0:2,2:10,3:4"), 2)
    assert small.peers == 3
    assert small.server_weights == "0:2,2:4"
    assert small.faults == (
        Hang(1, None, 1.0, 2.0),
        Partition(((0,), (1, 2)), 1.0, 1.0),
        Flap((1, 2), 1.0, 1.0, 0.5),
        Loss(0.1, 1.0, 1.0),
        ByzantineFault("nan", (2,), 1.0),
    )
    small.checked()


def test_every_drawn_schedule_stays_playable_without_any_of_its_peers() -> None:
    for schedule in MANY[:60]:
        for peer in range(schedule.peers):
            small = without_peer(schedule, peer).checked()
            assert all(
                named == "server" or named < small.peers
                for fault in small.faults
                for named in fault.victims
            )


def test_draws_of_one_kind_do_not_depend_on_what_else_is_drawn() -> None:
    """Kinds are drawn apart: a schedule of a longer list of kinds keeps what each of them drew."""
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    base = generate(2, peers=6, topology="rolling")
    again = generate(2, peers=6, topology="full")
    assert base.aggregator == again.aggregator, (
        "servers of shards that decide together have rules and lies of their own"
    )
    # nobody serves in gossip rounds
    kept = tuple(fault for fault in base.faults if not needs_a_server(fault))
    assert dataclasses.replace(
        again, topology="rolling", shards=base.shards
    ) == dataclasses.replace(base, faults=kept)
