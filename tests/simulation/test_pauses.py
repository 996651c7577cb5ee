"""Peers that are stopped and go on: alone, all at once,
and with answers that their nodes have at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from checked_swarm import assert_sound, typed
from effort import effort

from gossip.faults.kinds import Crash, Hang
from gossip.faults.world import HangServer, Loss, NodeAttack, Partition
from gossip_lab.simulation.schedules.schedule import Schedule

ALONE = Schedule(
    1,
    peers=1,
    active_s=6.0,
    duration_s=12.0,
    rule_s=0.0,
    faults=(Hang(0, None, at_s=3.0, for_s=1.5),),
)


@pytest.mark.parametrize(
    ("for_s", "rule_s"),
    effort([(0.3, 0.0), (2.5, 0.0001)], list(product((0.3, 1.0, 2.5), (0.0, 0.0001)))),
)
def test_a_lone_peer_that_was_stopped_trains_on(for_s: float, rule_s: float) -> None:
    outcome = assert_sound(
        replace(ALONE, rule_s=rule_s, faults=(Hang(0, None, at_s=3.0, for_s=for_s),))
    )
    assert outcome.rounds > 17
    assert "attempt" not in outcome.reports  # there is nobody to hand on to


def test_the_last_survivor_that_was_stopped_trains_on() -> None:
    """Of two, one is enough: the roster shrinks to it."""
    faults = (Crash(1, at_s=2.0), Hang(0, None, at_s=5.0, for_s=1.5))
    outcome = assert_sound(
        Schedule(2, peers=2, rule_s=0.0, faults=faults, active_s=8.0, duration_s=14.0)
    )
    assert outcome.rounds > 10


def test_s10_who_stood_still_between_spreading_its_commit_and_holding_it_holds_it() -> None:
    """The timer that holds it was the first event after,
    and by then the attempt had been handed on."""
    faults = typed("crash:1@1s slow_node:0*8ms@2s+3s hang:0@4.45s+400ms")
    timing = {"compute_s": (0.1, 0.2), "probe_interval_s": 1.0}
    timing |= {"active_s": 4.934, "duration_s": 4.934}
    schedule = Schedule(925740, peers=2, rule_s=0.0, faults=faults, **timing)
    outcome = assert_sound(schedule)
    assert outcome.rounds > 40


def test_s13_seed_951346_a_server_that_slept_holds_its_commit_before_an_old_update() -> None:
    """Its rule answered while it slept. The update had waited behind that, and got the blame."""
    faults = (
        NodeAttack("forged_departures", (0,)),
        Partition(((2, 3), (0, 4)), 4.2, 0.42),
        Partition(((0, 1, 2, 4), (3,)), 3.7, 3.0),
        Loss(0.1, 3.1, 3.0),
        HangServer(at_s=7.1, for_s=0.2),
    )
    timing = {"compute_s": (0.46, 0.58), "probe_interval_s": 1.0}
    timing |= {"active_s": 7.688, "duration_s": 7.688}
    schedule = Schedule(951346, peers=5, faults=faults, **timing)
    outcome = assert_sound(schedule)
    assert outcome.struck["hang_server"] == 1


def test_s10_seed_972407_who_stood_still_re_issues_a_commit_as_its_server() -> None:
    """The commit was the event in which it noticed, and handed on to itself first."""
    faults = typed(
        "wrong_results:1 partition:3|0-2,4@5.819s+3.55s restart:4@6.5s+2.49s hang:0@15.45s+400ms"
    )
    timing = {"compute_s": (0.46, 0.58), "active_s": 15.943, "duration_s": 15.943}
    median = {
        "aggregator": "geometric_median",
        "rule_s": 0.01,
        "shards": (4, 4, 4),
        "piece_bytes": 4,
    }
    outcome = assert_sound(Schedule(972407, peers=5, faults=faults, **timing, **median))
    assert outcome.struck["hang"] == 1


@pytest.mark.parametrize(
    ("peers", "seed"), effort([(2, 0), (3, 1), (6, 2)], list(product((2, 3, 6), range(3))))
)
def test_all_who_were_stopped_at_once_lose_a_second_and_no_timeout(peers: int, seed: int) -> None:
    hangs = tuple(
        Hang(peer, None, at_s=3.0 + 0.01 * peer * seed, for_s=1.5) for peer in range(peers)
    )
    timing = {"active_s": 6.0, "duration_s": 14.0, "compute_s": (0.05, 0.1), "round_timeout_s": 8.0}
    outcome = assert_sound(Schedule(seed, peers=peers, faults=hangs, **timing))
    assert outcome.rounds > 95
