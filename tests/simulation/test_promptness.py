"""Nobody waits in vain: for a server that it skips, when all updates are there, or without asking
for what it lacks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from checked_swarm import assert_sound, checked_swarm

from gossip.core.messages import PeerId
from gossip.core.peer import Peer
from gossip.faults.world import CrashBroadcast, HangServer, Narrow, Reset
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules.generator import generate
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm

ONE_SIDED = Schedule(
    19,
    active_s=6.471,
    duration_s=6.471,
    compute_s=(0.46, 0.58),
    rule_s=0.1,
    probe_interval_s=1.0,
    batch_policy="fixed_global",
    faults=(Reset(0.57, 5.313, 1.058, (2,)),),
)
"""Only one of the two has seen the link break, and each waits for the other: one to serve, one to
send its update."""


def test_an_ack_tells_that_a_peer_behind_a_new_link_is_the_one_that_was_there() -> None:
    assert_sound(ONE_SIDED)


BETWEEN_PAYLOADS = Schedule(
    2,
    peers=4,
    active_s=12.66,
    duration_s=12.66,
    shards=(4,) * 5,
    compute_s=(0.46, 0.58),
    rule_s=0.1,
    probe_interval_s=1.0,
    prepare_s=1.0,
    faults=(Narrow(63.995, 16.0, 2.3, 4.0), HangServer(6.4, 6.2)),
)
"""A round waits for 3 s in which no payload is on its way, since its update found a full queue. The
server of the next round then stands still for 6 s."""


def test_one_that_wakes_up_asks_for_what_it_lacks_whatever_it_had_waited_for_before() -> None:
    assert_sound(BETWEEN_PAYLOADS)


def server_of(swarm: Swarm[Peer]) -> PeerId:
    """Whoever serves the round in which all are."""
    rounds: Any = swarm.hosts[0].core.rounds
    shard = rounds.shards[0]
    return int(shard.server_of(shard.attempt))


def test_l2_a_round_that_ends_late_though_all_updates_are_there_is_caught() -> None:
    late = run(Schedule(3, peers=4, rule_s=0.7, active_s=6.0, duration_s=6.0))
    assert "0.70 s after the last update" in late.violation.text


# --- what they have found -------------------------------------------------------------------------


def test_what_a_server_that_leaves_has_in_hand_is_handed_on_at_its_word() -> None:
    """They waited until it was gone, which it is when everybody has sent it the update that
    it has no use for."""
    swarm = checked_swarm(compute_s=0.5)
    swarm.run_for(3.3)
    server = server_of(swarm)
    others = [peer for peer in range(4) if peer != server]
    rounds = [swarm.hosts[peer].core.rounds.round_id for peer in others]
    swarm.stop(server)
    swarm.run_for(0.005)
    assert [swarm.reports(peer, "attempt")[-1].fields["reason"] for peer in others] == [
        f"{server} is skipped: it has finished"
    ] * 3
    assert [swarm.hosts[peer].core.rounds.round_id for peer in others] == rounds


def test_s10_a_commit_that_only_a_newcomer_was_told_of_does_not_exist() -> None:
    """Seeds 1, 5: the server died when it had told the lowest peer alone, which was about to return
    to the roster. Nobody asks such a one, so the round was committed again without it."""
    faults = (CrashBroadcast(3.0, 0, 2.0), CrashBroadcast(6.0, 1, 2.0))
    outcome = assert_sound(Schedule(1, peers=4, faults=faults, active_s=9.0, duration_s=12.0))
    assert outcome.struck == {"crash_broadcast": 2}


@pytest.mark.parametrize("seed", range(3))
def test_s10_a_server_that_stood_still_for_a_moment_commits_nothing(seed: int) -> None:
    """Seed 2087: others find a silent link in 0.3 s and go on, which a probe interval of a second
    made nothing of."""
    schedule = Schedule(
        seed,
        peers=6,
        probe_interval_s=1.0,
        faults=(HangServer(3.0, 0.45),),
        active_s=6.0,
        duration_s=8.0,
    )
    outcome = assert_sound(schedule)
    assert outcome.struck == {"hang_server": 1}


def test_l2_who_wait_for_a_rule_that_needs_more_peers_are_not_stuck() -> None:
    # One of six has crashed for good and one has left: with multi_krum, four can tolerate nobody.
    # No schedule is drawn so.
    waits = run(dataclasses.replace(generate(881210), aggregator="multi_krum"))
    assert waits.violation is None
    assert waits.reports["paused"] >= 4
    goes_on = run(dataclasses.replace(generate(881210), aggregator="median"))
    assert goes_on.violation is None
    assert goes_on.rounds > waits.rounds + 20


def test_l2_the_pace_is_that_of_peers_that_run_and_are_not_sent_far_ahead_by_a_liar() -> None:
    assert run(generate(881030)).violation is None


def test_seed_20261267_who_comes_after_the_others_were_asked_is_asked_too() -> None:
    """Its round began at the attempt that the others had handed on, and the server waited for the
    update until its patience ended."""
    assert_sound(generate(20261267))
