"""Most peers are started again at once, in the middle of a round: no result of it gets lost that
somebody has applied (S10), and nobody takes a state at the word of too few (S12)."""

from __future__ import annotations

import pytest
from checked_swarm import assert_sound, typed
from effort import effort
from restart_waves import with_waves

from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules.schedule import Schedule

LAST_COPY = Schedule(
    1602,
    peers=4,
    active_s=8.041,
    duration_s=12.5,
    compute_s=(0.46, 0.58),
    probe_interval_s=0.5,
    round_timeout_s=10.0,
    start_timeout_s=60.0,
    bytes_per_s=27.6,
    queue_s=0.6,
    copies_per_s=820.4,
    overlap=1,
    faults=typed(
        "restart:1@4.797s+1.2s restart:2@4.637s+1.2s restart:0@4.503s+10ms restart:2@5.853s+1.2s "
        "restart:1@5.787s+1.2s restart:0@6.022s+334ms"
    ),
)
"""Peer 0 commits, dies, and is back, before its result is at peer 3; and all others die."""

LAST_COPY_OF_A_SHARD = Schedule(
    1589,
    peers=6,
    active_s=6.261,
    duration_s=13.0,
    compute_s=(0.1, 0.2),
    shards=(4, 4, 4),
    probe_interval_s=1.0,
    round_timeout_s=10.0,
    start_timeout_s=60.0,
    commit_log=8,
    stable_addresses=True,
    server_weights="1:4,2:10,4:10",
    bytes_per_s=20.3,
    copies_per_s=98.1,
    overlap=1,
    faults=typed(
        "restart:3@3.346s+1.2s restart:2@3.321s+1.2s restart:1@3.45s+1.2s restart:5@3.359s+10ms "
        "restart:4@3.483s+10ms restart:3@5.096s+10ms restart:5@5.153s+72ms restart:4@4.806s+157ms "
        "restart:2@5.06s+460ms"
    ),
)
"""Likewise of peer 4, which makes the last shard's."""

WHILE_IT_RECOVERS = Schedule(
    40,
    aggregator="median",
    active_s=9.717,
    duration_s=10.5,
    compute_s=(0.08, 0.11),
    shards=(4, 4, 4),
    batch_policy="fixed_global",
    faults=typed(
        "kill_trainer:3@6.06s+388ms restart:0@6.115s+288ms restart:2@6.046s+1.2s "
        "kill_trainer:2@8.245s+396ms restart:0@7.943s+320ms restart:4@7.986s+10ms "
        "restart:0@8.299s+1.2s restart:3@8.497s+10ms restart:2@8.17s+1.2s restart:4@8.462s+10ms"
    ),
)
"""Peers 1, 3 and 4 are left. Peer 1 commits while peer 3 takes over a state, and peer 4 refuses
that result, which opposes its update: peer 3 is the second that has to hand it over."""

STATES_ONE_BY_ONE = Schedule(
    376,
    aggregator="trimmed_mean",
    active_s=9.199,
    duration_s=12.0,
    compute_s=(0.46, 0.58),
    rule_s=0.01,
    prepare_s=1.0,
    overlap=1,
    faults=typed(
        "restart:1@3.893s+10ms restart:0@5.611s+52ms restart:2@5.566s+1.2s restart:1@5.512s+1.2s "
        "restart:2@6.682s+1.2s restart:0@6.581s+1.2s restart:4@6.899s+1.2s restart:1@6.565s+478ms "
        "hang_trainer:3@5.735s+1.325s"
    ),
)
"""Peer 2 asks all to vouch for a state when most have none yet, for a round that is to come."""

SCHEDULES = {
    "last copy": LAST_COPY,
    "last copy of a shard": LAST_COPY_OF_A_SHARD,
    "while it recovers": WHILE_IT_RECOVERS,
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_s10_a_result_outlives_those_who_made_it(schedule: Schedule) -> None:
    assert_sound(schedule)


def test_s12_those_who_had_no_state_when_they_were_asked_vouch_for_one() -> None:
    assert_sound(STATES_ONE_BY_ONE)


@pytest.mark.parametrize("seed", range(effort(3, 600)))
def test_nothing_breaks_where_peers_are_started_again_wave_after_wave(seed: int) -> None:
    schedule = with_waves(seed)
    violation = run(schedule).violation if schedule is not None else None
    assert violation is None, violation
