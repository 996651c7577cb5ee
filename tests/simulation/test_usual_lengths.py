"""The default rule clips what is longer than usual: what is usual follows from commits."""

from __future__ import annotations

import pytest
from checked_swarm import assert_sound, checked_swarm
from effort import effort

from gossip.faults.kinds import ByzantineFault, Crash, Hang, Restart
from gossip_lab.simulation.campaign.play import rule_of
from gossip_lab.simulation.checkers.trust.lengths import UsualLengthsMatchCommits
from gossip_lab.simulation.schedules.generator import generate
from gossip_lab.simulation.schedules.schedule import Schedule

RULE = rule_of("guarded_mean", 1).aggregate


def test_every_server_knows_the_same_usual_length_as_the_commits_say() -> None:
    checker = UsualLengthsMatchCommits()
    checked_swarm(checker, n=5, f=1, aggregate=RULE, sizes=(5, 3)).run_for(6.0)
    assert checker.judged > 40


@pytest.mark.parametrize(
    "fault", [Restart(0, 12, 0.5), *effort([], [Crash(0, 12), Hang(0, 12, 1.5)])]
)
def test_a_peer_with_a_runaway_scale_is_quarantined_beside_other_faults(
    fault: Crash | Restart | Hang,
) -> None:
    broken = ByzantineFault("scale", (3,), 1000.0)
    schedule = Schedule(
        4, peers=6, f=1, aggregator="guarded_mean", faults=(broken, fault), active_s=20.0
    ).checked()
    outcome = assert_sound(schedule)
    assert outcome.reports["quarantined"]
    assert outcome.judged_by["UsualLengthsMatchCommits"]


@pytest.mark.parametrize(
    "seed",
    [seed for seed in range(effort(60, 1500)) if generate(seed).aggregator == "guarded_mean"],
)
def test_drawn_schedules_are_borne_under_the_default_rule(seed: int) -> None:
    assert_sound(generate(seed))
