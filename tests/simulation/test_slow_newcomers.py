"""Newcomers behind a link that carries less than state and rounds need: they count when they keep
up, and nobody waits."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from checked_swarm import assert_sound
from effort import effort

from gossip.faults.kinds import Hang
from gossip.faults.world import Loss, Narrow
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world import network_faults, wire

PAIR = Schedule(
    1,
    peers=2,
    joins_s=(5.0, 5.2),
    active_s=70.0,
    duration_s=74.0,
    compute_s=(0.3, 0.4),
    round_timeout_s=10.0,
    shards=(8, 8),
)
"""A round has 64 bytes of results and takes 0.35 s:
a link of fewer than 183 bytes/s cannot follow."""


def behind(bytes_per_s: float) -> Schedule:
    return replace(PAIR, faults=(Narrow(bytes_per_s, 1e9, 1.0, 25.0, (2, 3)),))


@pytest.mark.parametrize(
    ("bytes_per_s", "share"), effort([(40.0, 0.9)], [(40.0, 0.9), (80.0, 0.9), (100.0, 0.75)])
)
def test_newcomers_that_cannot_keep_up_cost_others_little(bytes_per_s: float, share: float) -> None:
    """Up to 80 bytes/s they are let in when the link is as fast as before: the others have 195
    rounds, as if nobody had come. From 100 bytes/s on they come in before that, and one that serves
    costs a round timeout: 159."""
    outcome = assert_sound(behind(bytes_per_s))
    assert outcome.reports["restored"] >= 2  # a transfer ends, however slow the link
    assert outcome.rounds > share * 74.0 / 0.37
    assert "paused" not in outcome.reports


def fill_queues(monkeypatch: pytest.MonkeyPatch, queue_s: float) -> None:
    """Small messages wait behind payloads on narrow links, whose progress is not reported."""
    worse = network_faults._worse
    monkeypatch.setattr(
        network_faults, "_worse", lambda model, fault: replace(worse(model, fault), queue_s=queue_s)
    )
    monkeypatch.setattr(wire, "TOLD_EVERY_NS", 60 * 10**9)


@pytest.mark.parametrize("seed", effort((0,), tuple(range(8))))
def test_nobody_is_suspected_while_a_state_and_what_came_since_pass_a_full_link(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers wait up to 0.6 s behind payloads there, and of a chunk that takes longer than a probe
    nobody hears before it is there: the others were suspected at once, and one was taken for
    dead."""
    fill_queues(monkeypatch, 0.6)
    narrow = Narrow(40.0, 1e9, 1.0, 24.0, (2,))
    outcome = run(
        replace(PAIR, seed=seed, joins_s=(5.0,), active_s=24.0, duration_s=24.0, faults=(narrow,))
    )
    assert outcome.reports["restored"] >= 1
    assert outcome.violation is None, outcome.violation
    assert not {"suspect", "dead", "attempt"} & outcome.reports.keys()


@pytest.mark.parametrize(
    ("seed", "joins_s"),
    effort(((3, (5.0, 5.2)),), tuple(product(range(8), ((5.0, 5.2), (5.0, 7.0))))),
)
def test_nobody_is_suspected_whose_link_is_full_of_what_another_newcomer_is_sent(
    seed: int, joins_s: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a newcomer has said where it is, nobody knows that its answers wait, nor does it
    itself. As it was: it accused the others, and they it."""
    fill_queues(monkeypatch, 0.35)
    narrow = Narrow(40.0, 1e9, 1.0, 24.0, (2, 3))
    outcome = run(
        replace(PAIR, seed=seed, joins_s=joins_s, active_s=24.0, duration_s=24.0, faults=(narrow,))
    )
    assert outcome.reports["restored"] == 2
    assert outcome.violation is None, outcome.violation
    assert not {"suspect", "dead"} & outcome.reports.keys()


def test_newcomers_that_can_keep_up_come_in() -> None:
    outcome = assert_sound(behind(2000.0))
    assert outcome.reports["restored"] == 2
    assert outcome.judged["L9"] >= 2


def test_l9_only_the_first_shard_says_who_is_in_the_next_round() -> None:
    """One shard's server knows that a peer is dead, the other's does not yet: nobody is let in."""
    faults = (Hang(1, None, 4.0, 5.6), Loss(0.06, 3.3, 1.4))
    schedule = Schedule(
        922906, peers=3, active_s=8.104, duration_s=8.104, compute_s=(0.08, 0.1), shards=(5, 3)
    )
    schedule = replace(
        schedule, probe_interval_s=0.5, round_timeout_s=3.0, commit_log=8, faults=faults
    )
    assert_sound(schedule)
