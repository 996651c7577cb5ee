"""Peers whose processes get a tenth of a processor: each event is handled late, behind a backlog,
and the sockets accept what comes meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from checked_swarm import assert_sound
from effort import effort, in_turn

from gossip.core import Contributed, Event, PeerId
from gossip.faults import Fault, Hang, Starve
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules import generate, strains
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.observer import Observer

FRESH = Schedule(1, peers=3, compute_s=(0.1, 0.2), active_s=8.0, duration_s=12.0)


class Contributions(Observer):
    """When the trainer of peer 1 had its updates."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_event(self, swarm: Any, peer: PeerId, event: Event) -> None:
        if peer == 1 and isinstance(event, Contributed):
            self.times.append(swarm.now)


def starving(peers: Sequence[PeerId], at_s: float, for_s: float, share: float = 0.1) -> Schedule:
    return replace(FRESH, faults=tuple([Starve(peer, share, at_s, for_s) for peer in peers]))


@pytest.mark.parametrize("seed", range(effort(1, 100)))
@pytest.mark.parametrize("peers", [(0, 1, 2), (1, 2), (1,)])
def test_fresh_peers_that_starve_stay_on_one_branch(peers: tuple[PeerId, ...], seed: int) -> None:
    outcome = assert_sound(replace(starving(peers, 0.06, 6.0), seed=seed))
    assert outcome.struck["starve"] == len(peers)


def test_a_trainer_that_starves_is_fast_again_in_the_middle_of_its_work() -> None:
    seen = Contributions()
    assert_sound(starving((1,), 2.0, 3.0, share=0.01), [seen])
    assert not [at_s for at_s in seen.times if 3.0 < at_s < 5.0]
    assert [at_s for at_s in seen.times if 5.0 <= at_s < 6.0]


def test_a_share_of_the_schedules_starves_peers_and_is_otherwise_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = [generate(seed) for seed in range(300)]
    starved = [s for s in drawn if any(isinstance(fault, Starve) for fault in s.faults)]
    assert 4 <= len(starved) <= 30
    monkeypatch.setattr(strains, "STARVED_SHARE", 0.0)
    for schedule in starved:
        others = tuple([fault for fault in schedule.faults if not isinstance(fault, Starve)])
        assert generate(schedule.seed) == replace(schedule, faults=others)


@in_turn(1, 2)
@pytest.mark.parametrize(
    "seeds", effort([range(5)], [range(k, k + 100) for k in range(0, 1000, 100)])
)
def test_drawn_schedules_with_starved_peers_are_borne(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strains, "STARVED_SHARE", 1.0)
    for seed in seeds:
        outcome = run(generate(seed))
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}"


@pytest.mark.parametrize("seed", [188, 245])
def test_what_starved_schedules_have_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """188: shards of a round that is lost, of two kinds of steps, became the last aggregate (S11).
    245: a peer took a state from a million rounds ahead, and the others were played to there."""
    monkeypatch.setattr(strains, "STARVED_SHARE", 1.0)
    assert_sound(generate(seed))


@pytest.mark.xfail(strict=True, reason="a server has no lease: docs/limits.md")
@pytest.mark.parametrize(
    ("seed", "stops"),
    [(52, (Hang(2, None, 0.091, 1.075), Hang(2, None, 0.126, 3.932), Hang(2, None, 0.076, 4.232)))],
)
def test_short_stops_of_a_server_leave_one_result(seed: int, stops: tuple[Fault, ...]) -> None:
    """Each stop is too short for the server to notice, and its links break."""
    quick = replace(FRESH, compute_s=(0.005, 0.03), rule_s=0.001, active_s=5.0, duration_s=8.0)
    assert_sound(replace(quick, seed=seed, faults=stops))
