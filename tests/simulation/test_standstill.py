"""A round whose results are refused does not stand for ever, though too few updates are left to
make another one of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from effort import effort

from gossip.core.rounds.quorum import Quorum
from gossip.core.rounds.shard import ShardRound
from gossip.faults.kinds import ByzantineFault, Crash
from gossip.faults.world import HangTrainer, NodeAttack
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules.schedule import Schedule

FAST = Schedule(
    1, peers=4, active_s=8.0, duration_s=8.0, compute_s=(0.02, 0.04), round_timeout_s=1.0
)
DEAD = Crash(1, at_s=1.0)
BYZANTINE_SERVER = replace(
    FAST, aggregator="median", faults=(NodeAttack("wrong_results", (2,)), DEAD)
)
"""Peer 2 keeps to what it has made, and the other two are no majority of four."""
POISONED = replace(FAST, f=1, faults=(ByzantineFault("sign_flip", (2,), 10.0), DEAD))
"""A mean bears no liar: every peer doubts what every server makes of three updates, and the first
server keeps to it."""
OF_SIX = replace(
    FAST,
    peers=6,
    aggregator="trimmed_mean",
    faults=(NodeAttack("scaled_results", (5,)), DEAD, Crash(0, at_s=1.2)),
)
HANGING = replace(FAST, aggregator="median", active_s=14.0, duration_s=14.0)
HANGING = replace(
    HANGING, faults=(NodeAttack("wrong_results", (2,)), HangTrainer(1, at_s=1.0, for_s=12.9))
)
"""Peer 1 is passed over, and never dead."""


@pytest.mark.parametrize(
    ("schedule", "rounds"),
    [
        (BYZANTINE_SERVER, 100),
        (replace(POISONED, seed=4), 120),
        (replace(OF_SIX, seed=16), 100),
        (HANGING, 80),
    ],
    ids=["lying server", "poisoned mean", "of six", "hanging trainer"],
)
def test_a_round_whose_results_are_refused_does_not_stand(schedule: Schedule, rounds: int) -> None:
    outcome = run(schedule)
    assert outcome.violation is None, outcome.violation
    assert outcome.rounds > rounds


@pytest.mark.parametrize(
    "schedule",
    [BYZANTINE_SERVER, *effort([], [POISONED])],
)
def test_l2_a_round_that_stands_because_its_results_are_refused_is_caught(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_answers_alone(quorum: Quorum, shard: ShardRound) -> bool:
        return len(shard.served.answers) >= quorum.required()

    monkeypatch.setattr(Quorum, "suffices", by_answers_alone)
    violation = run(schedule).violation
    assert violation is not None
    assert violation.invariant == "L2"
    assert "is at attempt 8" in violation.text or "is at attempt 9" in violation.text


def test_who_changes_over_asks_more_than_those_who_do_so_themselves() -> None:
    """Of six, three are on each branch: the two who were asked first with the third one had
    no state to give."""
    faults = (ByzantineFault("sign_flip", (7,), 10.0), Crash(3, at_s=0.76), Crash(0, at_s=1.2))
    outcome = run(replace(FAST, seed=19, peers=8, f=1, faults=faults))
    assert outcome.violation is None, outcome.violation
    assert outcome.rounds > 60


def test_l3_a_crash_may_cost_more_where_those_who_are_left_with_updates_are_no_majority() -> None:
    """Seed 508: of six one lies when it serves, one dies, a third's trainer hangs. Of the four that
    it takes three are left, and the round is closed with the liar's when
    everybody has had a turn."""
    schedule = Schedule(
        508,
        peers=6,
        active_s=12.0,
        duration_s=12.0,
        compute_s=(0.08, 0.11),
        aggregator="median",
        shards=(12,),
    )
    faults = (
        NodeAttack("nan_results", (0,)),
        HangTrainer(3, 3.24, 7.71),
        Crash(1, at_s=3.337),
        HangTrainer(2, 2.526, 1.0),
    )
    outcome = run(replace(schedule, faults=faults))
    assert outcome.violation is None, outcome.violation
    assert outcome.rounds > 40
