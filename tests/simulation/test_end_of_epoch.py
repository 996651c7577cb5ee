"""The last samples of an epoch go to enough peers for the rule, also where the slow get less."""

from __future__ import annotations

import pytest

from gossip.core.ledger import data_cursor
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


def test_l4_samples_for_too_few_peers_that_come_back_for_ever_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def by_weight_alone(total: int, weights: list[int]) -> list[int]:
        least = 1 if total >= len(weights) else 0
        shares = [max(total * weight // sum(weights), least) for weight in weights]
        for at in sorted(range(len(weights)), key=lambda at: -weights[at])[
            : max(0, total - sum(shares))
        ]:
            shares[at] += 1
        while sum(shares) > total:
            shares[shares.index(max(shares))] -= 1
        return shares

    monkeypatch.setattr(data_cursor, "_apportioned", by_weight_alone)
    violation = run(SCHEDULE).violation
    assert violation is not None
    assert violation.invariant == "L4"
