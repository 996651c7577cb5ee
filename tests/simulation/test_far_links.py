"""Hosts as far apart as continents: round trips of 20 to 400 ms, constant or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checked_swarm import assert_sound
from effort import effort, in_turn

from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules import generate, strains
from gossip_lab.simulation.schedules.schedule import Schedule

NEAR_S = Schedule(0).delay_s
LIMITS = {821: "S10"}
"""Of the first thousand: what docs/limits.md says about hosts that are far apart."""


def test_a_share_of_the_schedules_has_far_links_and_is_otherwise_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far = [drawn for seed in range(300) if (drawn := generate(seed)).delay_s != NEAR_S]
    assert 4 <= len(far) <= 30
    assert all(0.007 <= least <= most <= 0.26 for least, most in (drawn.delay_s for drawn in far))
    monkeypatch.setattr(strains, "FAR_SHARE", 0.0)
    for drawn in far:
        near = generate(drawn.seed)
        assert replace(near, delay_s=drawn.delay_s, rounds_min=0) == drawn


@in_turn(1, 2)
@pytest.mark.parametrize(
    "seeds", effort([range(4)], [range(k, k + 100) for k in range(0, 1000, 100)])
)
def test_drawn_schedules_with_far_links_hold(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strains, "FAR_SHARE", 1.0)
    for seed in seeds:
        violation = run(generate(seed)).violation
        found = violation and violation.invariant
        assert found == LIMITS.get(seed), f"seed {seed}: {violation}"


@pytest.mark.parametrize(
    ("seed", "delay_s"), [(2490, (0.195, 0.195)), *effort([], [(1702, (0.1169, 0.2171))])]
)
def test_nobody_is_suspected_before_a_link_stands(seed: int, delay_s: tuple[float, float]) -> None:
    """It was, when the answers to its first pings had no way yet. 2490: with large updates, which
    fill the queues."""
    assert_sound(replace(generate(seed), delay_s=delay_s, rounds_min=0))
