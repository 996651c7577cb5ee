"""The last samples of an epoch go to enough peers for the rule, also where the slow get less."""

from __future__ import annotations

from gossip.faults.world import HangTrainer, KillTrainer, Partition
from gossip.simulation.campaign.play import run
from gossip.simulation.schedules.schedule import Schedule

SCHEDULE = Schedule(
    922883,
    aggregator="median",
    compute_s=(0.08, 0.1),
    round_timeout_s=3.0,
    shards=(4, 4, 4),
    probe_interval_s=1.0,
    rounds_min=50,
    batch_policy="fixed_global",
    faults=(
        Partition(((2, 3), (0, 1, 4)), 10.4, 0.03),
        Partition(((3, 4), (0, 1)), 4.08, 4.17, one_way=True),
        HangTrainer(1, 12.17, 0.7),
        KillTrainer(3, 14.2, 0.01),
    ),
)
"""Three samples are left for five peers of whom some are slow. The median needs three updates."""


def test_the_last_samples_of_an_epoch_are_used() -> None:
    outcome = run(SCHEDULE)
    assert outcome.violation is None, outcome.violation
