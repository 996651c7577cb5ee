"""Plans with faults of the network, or that only the simulator can inject, and faults with times in
place of rounds."""

from __future__ import annotations

from typing import get_args

import pytest

from gossip.errors import BadFault
from gossip.faults import plan as faults
from gossip.faults.declare import KINDS
from gossip.faults.kinds import Crash, Hang, Restart
from gossip.faults.plan import FaultPlan
from gossip.faults.start import LateStart, LateTrainer, NeverStarts
from gossip.faults.world import (
    FINAL_ROUND_ATTACKS,
    LINK_KINDS,
    NODE_ATTACKS,
    CrashBroadcast,
    CrashMidway,
    Delay,
    Drift,
    Flap,
    HangServer,
    HangTrainer,
    KillTrainer,
    Leave,
    Loss,
    Narrow,
    Partition,
    Reorder,
    Ring,
    WorldFault,
)
from gossip_lab.simulation.world.liars import LIES

WORLD_KINDS = {
    name: kind.made
    for name, kind in KINDS.items()
    if kind.made in get_args(WorldFault) and not kind.fixed
}

PLAN = FaultPlan(
    (
        Crash("server", at_s=3.5),
        Restart(1, None, 0.25, 2.0),
        Hang(2, None, 1.5, 4.0),
        Partition(((0, 1), (2, 3)), 1.0, 2.5, one_way=True),
        Flap((0, 3), 1.0, 2.0, 0.25),
        Loss(0.2, 1.0, 3.0, (1, 2)),
        Loss(0.2, 1.0, 3.0),
        Delay(0.05, 0.0, 3.0),
        Narrow(100.0, 64.0, 1.0, 2.0),
        Reorder(0.2, 0.1, 1.0, 2.0),
        Ring((3, 1, 0, 2), 1.0, 2.0),
        Drift(1, 0.95, 1.0, 5.0),
        CrashMidway(1, 9.0, 4, 0.5),
        CrashBroadcast(9.0, 2, 0.5),
        HangServer(9.0, 2.0),
        HangTrainer(0, 1.0, 2.0),
        KillTrainer(0, 5.0, 2.0),
        Leave(3, 8.0),
        LateStart(1, 4.0),
        LateTrainer(2, 4.0),
        NeverStarts(3),
    ),
    {"peers": 4, "topology": "random-k:k=2", "compute_s": (0.1, 0.2), "stable_addresses": True},
)


def test_a_plan_of_every_sort_survives_toml() -> None:
    assert faults.from_toml(PLAN.to_toml()) == PLAN


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("crash:3@5s", Crash(3, None, 5.0)),
        ("crash:server@1.5s", Crash("server", None, 1.5)),
        ("restart:3@500ms+2s", Restart(3, None, 2.0, 0.5)),
        ("hang:3@1m+2s", Hang(3, None, 2.0, 60.0)),
        ("hang:3@60+2s", Hang(3, 60, 2.0)),
    ],
)
def test_a_moment_with_a_unit_is_a_time_else_a_round(word: str, fault: faults.Fault) -> None:
    assert faults.parse(word).faults == (fault,)
    assert faults.parse(str(fault)).faults == (fault,)
    assert faults.from_toml(FaultPlan((fault,)).to_toml()).faults == (fault,)


@pytest.mark.parametrize("kind", sorted({*WORLD_KINDS} - {*LINK_KINDS}))
def test_real_processes_refuse_what_only_the_simulator_can_do(kind: str) -> None:
    plan = FaultPlan(
        (Crash(0, 5), *(fault for fault in EXAMPLES if type(fault) is WORLD_KINDS[kind]))
    )
    with pytest.raises(BadFault, match=f"only the simulator supports '{kind}'") as caught:
        plan.specs  # noqa: B018 - asking for the words is what real runs do first
    assert "gossip simulate" in str(caught.value.hint)


EXAMPLES = tuple(
    faults.from_toml(f'[[fault]]\nkind = "{kind}"\n{keys}').faults[0]
    for kind, keys in {
        "partition": "sides = [[0], [1]]\nat_s = 1\nfor_s = 1",
        "flap": "peers = [0, 1]\nat_s = 1\nfor_s = 1\nperiod_s = 0.5",
        "loss": "share = 0.1\nat_s = 1\nfor_s = 1",
        "duplicate": "share = 0.1\nat_s = 1\nfor_s = 1",
        "corrupt": "share = 0.1\nat_s = 1\nfor_s = 1",
        "delay": "delay_s = 0.1\nat_s = 1\nfor_s = 1",
        "reset": "share = 0.1\nat_s = 1\nfor_s = 1",
        "reorder": "share = 0.1\nheld_s = 0.1\nat_s = 1\nfor_s = 1",
        "spike": "share = 0.1\nspike_s = 0.1\nat_s = 1\nfor_s = 1",
        "unreadable": "peers = [0]\nat_s = 1\nfor_s = 1",
        "rewritten": "peers = [0]\nat_s = 1\nfor_s = 1",
        "ring": "peers = [0, 1, 2, 3]\nat_s = 1\nfor_s = 1",
        "drift": "peer = 1\nrate = 0.9\nat_s = 1\nfor_s = 1",
        "late_timers": "peer = 1\nlate_s = 0.1\nat_s = 1\nfor_s = 1",
        "slow_node": "peer = 1\nhandling_s = 0.01\nat_s = 1\nfor_s = 1",
        "starve": "peer = 1\nshare = 0.1\nat_s = 1\nfor_s = 1",
        "trickle": "peers = [1]\nbytes_per_s = 100\nat_s = 1\nfor_s = 1",
        "narrow": "bytes_per_s = 100\nqueue_bytes = 64\nat_s = 1\nfor_s = 1",
        "crash_midway": "peer = 1\nat_s = 1\neffect = 3\nafter_s = 1",
        "crash_broadcast": "told = 1\nat_s = 1\nafter_s = 1",
        "hang_server": "at_s = 1\nfor_s = 1",
        "hang_trainer": "peer = 1\nat_s = 1\nfor_s = 1",
        "kill_trainer": "peer = 1\nat_s = 1\nafter_s = 1",
        "lie": 'lie = "false_deaths"\npeers = [1]',
        "leave": "peer = 1\nat_s = 1",
        "late_start": "peer = 1\nat_s = 1",
        "late_trainer": "peer = 1\nat_s = 1",
        "never_starts": "peer = 1",
    }.items()
)


def test_every_kind_of_the_simulator_has_an_example_here() -> None:
    assert {type(fault) for fault in EXAMPLES} == set(WORLD_KINDS.values())


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ('kind = "partition"\nsides = [[0, 1]]\nat_s = 1\nfor_s = 1', "not a list of sides"),
        ('kind = "partition"\nsides = [[0, 1], [1, 2]]\nat_s = 1\nfor_s = 1', "on two sides"),
        (
            'kind = "partition"\nsides = [[0], [1]]\nat_s = 1\nfor_s = 1\none_way = 1',
            "neither true nor false",
        ),
        ('kind = "partition"\nsides = [[0], [1]]\nat_s = 1', "partition needs 'for_s'"),
        ('kind = "loss"\nshare = 1.5\nat_s = 1\nfor_s = 1', "is not a number from 0 to 1"),
        ('kind = "loss"\nshare = true\nat_s = 1\nfor_s = 1', "is not a number"),
        ('kind = "loss"\nshare = 0.5\nat = 1\nfor_s = 1', "Did you mean 'at_s'?"),
        ('kind = "flap"\npeers = [1]\nat_s = 1\nfor_s = 1\nperiod_s = 1', "two ends, not 1"),
        ('kind = "crash_midway"\npeer = 1\nat_s = 1\neffect = 0.5\nafter_s = 1', "is not a count"),
        ('kind = "lie"\nlie = "false_death"\npeers = [1]', "Did you mean 'false_deaths'?"),
        ('kind = "partitoin"', "Did you mean 'partition'?"),
        ('kind = "crash"\npeer = 1\nround = 3\nat_s = 1', "'round' or 'at_s', and not both"),
    ],
)
def test_a_bad_table_is_refused_with_what_is_wrong(keys: str, says: str) -> None:
    with pytest.raises(BadFault) as caught:
        faults.from_toml(f"[[fault]]\n{keys}\n", "plan.toml")
    assert says in str(caught.value)
    assert "plan.toml, fault 1" in str(caught.value)


def test_an_unknown_kind_in_a_file_may_mean_one_of_the_simulator() -> None:
    with pytest.raises(BadFault, match="Did you mean 'starve'"):
        faults.from_toml('[[fault]]\nkind = "starv"\n')


def test_a_peer_that_does_not_exist_is_refused_on_either_side_of_a_partition() -> None:
    with pytest.raises(BadFault, match="there is no peer 3"):
        PLAN.checked(peers=3)
    assert PLAN.checked(peers=4) is PLAN


def test_the_lies_of_plans_are_those_that_the_simulator_can_tell() -> None:
    assert sorted((*NODE_ATTACKS, *FINAL_ROUND_ATTACKS)) == sorted(LIES)
