"""Several peers are started again at once in the middle of a round: the server of the latest
attempt hears from each of them (L2), and one of them that serves asks for a result that its former
life may have made (S10)."""

from __future__ import annotations

import pytest
from checked_swarm import assert_sound, typed

from gossip.faults import CrashMidway
from gossip_lab.simulation.schedules.schedule import Schedule

FIVE_OF_SIX = Schedule(
    24000398,
    peers=6,
    aggregator="krum",
    active_s=15.1,
    duration_s=17.0,
    compute_s=(0.46, 0.58),
    rule_s=0.01,
    shards=(4, 4, 4),
    commit_log=8,
    stable_addresses=True,
    local_steps=2,
    faults=typed(
        "restart:0@8.582s+398ms restart:4@14.912s+89ms restart:1@12.848s+307ms "
        "restart:0@12.912s+202ms restart:2@12.896s+356ms restart:5@13.02s+375ms "
        "restart:4@12.879s+450ms spike:all*0.0099*764ms@1.814s+3.592s "
        "hang_trainer:2@12.543s+2.217s"
    ),
)
ONE_AFTER_THE_OTHER = Schedule(
    66,
    peers=6,
    aggregator="krum",
    active_s=12.184,
    duration_s=18.0,
    compute_s=(0.46, 0.58),
    rule_s=0.01,
    shards=(5, 3),
    probe_interval_s=0.5,
    min_peers=5,
    patience_s=0.772,
    prepare_s=1.0,
    piece_bytes=8,
    overlap=1,
    faults=typed(
        "late_start:0@5.9s restart:4@10s+1.5s kill_trainer:0@12.05s+10ms restart:4@7.6s+10ms "
        "restart:3@11.8s+300ms restart:5@7s+20ms"
    ),
)


@pytest.mark.parametrize("schedule", [FIVE_OF_SIX, ONE_AFTER_THE_OTHER], ids=["five", "one by one"])
def test_l2_who_comes_back_is_asked_for_the_latest_attempt(schedule: Schedule) -> None:
    """Who was asked before it had a state was not asked again, and waited, with others that were
    back, in an earlier attempt for as long as a round may take: 4.00 s and 3.79 s of 3.65."""
    assert_sound(schedule)


THREE_OF_FOUR = Schedule(
    15,
    peers=4,
    aggregator="trimmed_mean",
    active_s=8.5,
    duration_s=9.5,
    compute_s=(0.2, 0.25),
    shards=(4, 4, 4),
    probe_interval_s=0.5,
    round_timeout_s=1.0,
    faults=(
        CrashMidway(0, 1.291, 16, 0.747),
        CrashMidway(2, 1.299, 4, 0.771),
        CrashMidway(3, 1.416, 7, 0.592),
        CrashMidway(1, 3.346, 13, 1.053),
        CrashMidway(3, 3.363, 9, 0.772),
        CrashMidway(0, 3.486, 13, 0.702),
        CrashMidway(3, 5.211, 23, 0.504),
        CrashMidway(0, 5.332, 28, 0.344),
        CrashMidway(2, 5.493, 8, 0.955),
    ),
)
"""Nobody lies. Three die within a round, three times. Peer 1 is left the last time: it holds the
result of a shard that peer 2 has made, and lacks that of another. The three come back with its
state."""


def test_who_comes_back_makes_no_second_result_of_the_round_that_it_had_made_one_of() -> None:
    outcome = assert_sound(THREE_OF_FOUR)
    assert outcome.rounds > 15
