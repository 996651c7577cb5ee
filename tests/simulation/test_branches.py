"""A round that has come out differently on two sides: one of them gives way, and does so once."""

from __future__ import annotations

from gossip.fault_kinds import Hang
from gossip.sim.play import run
from gossip.sim.schedule import Schedule
from gossip.world_faults import Duplicate, Flap, Narrow, Reset

ALL_GIVE_WAY = Schedule(
    912037,
    peers=8,
    aggregator="trimmed_mean",
    faults=(
        Hang(5, None, 0.02, 4.4),
        Flap((0, 7), 3.2, 0.5, 0.4),
        Flap((0, 1), 6.44, 0.5, 0.062),
        Duplicate(0.2, 8.223, 3.6),
        Reset(0.0469, 12.8, 1.9),
        Narrow(289.423, 256.0, 1.3, 6.6),
        Narrow(25.503, 0.0, 13.4, 2.03),
    ),
    active_s=15.53,
    duration_s=27.53,
    rounds_min=50,
    compute_s=(0.46, 0.58),
    rule_s=0.01,
    shards=(4, 4, 4),
    probe_interval_s=0.5,
    commit_log=8,
)


def test_seed_912037_two_branches_that_give_way_to_each_other_do_not_do_so_for_ever() -> None:
    """Five and three hold different results of a round, and each has heard more of the others than of its own. All left their
    rounds for a state that nobody could give, came back to their own, and left again at the next word of the others."""
    outcome = run(ALL_GIVE_WAY)
    assert outcome.violation is None, outcome.violation
    assert outcome.reports["kept_own_state"] > 0, "nobody has left in vain: the schedule proves nothing"
