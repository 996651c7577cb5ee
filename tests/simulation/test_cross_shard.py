"""Rounds whose shards decide together, in whole swarms: who dies in them, who lies in them,
and what finds it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from checked_swarm import assert_sound, tamper
from effort import effort, rotated

from gossip.core.events import Aggregate, Committed, Effect, Event
from gossip.core.messages import PeerId
from gossip.faults.world import SHARD_ATTACKS, CrashMidway, HangServer, NodeAttack
from gossip_lab.simulation.campaign.play import make_swarm, run
from gossip_lab.simulation.checkers import Violation
from gossip_lab.simulation.checkers.safety.cross_shard import CrossShardDecision
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.nemesis import Nemesis
from gossip_lab.simulation.world.observer import Observer

CROSS_SHARD = effort(
    ("krum", "centered_clipping"),
    ("krum", "multi_krum", "geometric_median", "centered_clipping", "suspicion", "cge"),
)
"""One that decides once, one that takes steps."""
BEGIN_S, BACK_S = 1.0, 0.2
QUIET = Schedule(
    7,
    peers=6,
    active_s=2.5,
    duration_s=2.5,
    compute_s=(0.1, 0.12),
    aggregator="krum",
    shards=(3, 3, 2),
)


class Serving(Observer):
    """At which of its effects since ``BEGIN_S`` a peer takes each step of a rule first."""

    def __init__(self, peer: PeerId) -> None:
        self.peer, self.effects, self.first_at = peer, 0, dict[str, int]()

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if peer == self.peer and swarm.now >= BEGIN_S:
            if isinstance(effect, Aggregate):
                self.first_at.setdefault(effect.step, self.effects)
            self.effects += 1


@pytest.mark.parametrize("rule", CROSS_SHARD)
def test_a_quiet_swarm_loses_no_round_and_takes_no_second_attempt(rule: str) -> None:
    outcome = assert_sound(replace(QUIET, aggregator=rule))
    assert not outcome.reports.get("attempt")
    assert not outcome.reports.get("lost_round")
    assert outcome.rounds >= 22
    assert outcome.judged_by["CrossShardDecision"] > 100
    assert outcome.left < 0.1


@cache
def first_effects() -> dict[str, int]:
    """Of peer 0 where nobody dies, by step of the rule."""
    serving = Serving(0)
    run(QUIET, [serving])
    return serving.first_at


@pytest.mark.parametrize("step", ["measure", "decide", "combine"])
def test_a_server_that_dies_at_any_effect_of_a_step_breaks_no_promise(step: str) -> None:
    moment = first_effects()[step]
    for effect in range(max(0, moment - 2), moment + effort(6, 24), effort(4, 1)):
        outcome = run(replace(QUIET, faults=(CrashMidway(0, BEGIN_S, effect, BACK_S),)))
        assert outcome.violation is None, f"effect {effect}: {outcome.violation}"
        assert outcome.struck == {"crash_midway": 1}
        assert outcome.rounds >= 10
        assert outcome.reports.get("lost_round", 0) <= 2 * QUIET.peers, (
            f"effect {effect}: rounds are lost"
        )


def test_a_server_that_hangs_is_handed_on() -> None:
    faults = tuple(HangServer(at_s, 1.0) for at_s in (1.0, 4.0))
    outcome = assert_sound(replace(QUIET, active_s=7.0, duration_s=8.0, faults=faults))
    assert outcome.rounds >= 27


@pytest.mark.parametrize(
    ("lie", "rule"),
    effort(
        rotated(zip(SHARD_ATTACKS, itertools.cycle(CROSS_SHARD))),
        list(itertools.product(SHARD_ATTACKS, ("krum", "centered_clipping"))),
    ),
)
def test_one_that_lies_to_the_other_servers_breaks_nothing(lie: str, rule: str) -> None:
    outcome = assert_sound(
        replace(
            QUIET, aggregator=rule, active_s=5.0, duration_s=5.0, faults=(NodeAttack(lie, (0,)),)
        )
    )
    assert outcome.struck[f"lie_{lie}"] == 1
    assert outcome.counts.get("lied", 0) + outcome.counts.get("withheld", 0) > 0, "it told no lie"
    assert outcome.judged_by["CrossShardDecision"] > 50


# --- the checker ----------------------------------------------------------------------------------


def forged_weights(effect: Effect) -> Effect:
    if isinstance(effect, Aggregate) and effect.step == "combine":
        return replace(effect, decision=(effect.decision[-1], *effect.decision[:-1]))
    return effect


def forged_parts(effect: Effect) -> Effect:
    if isinstance(effect, Aggregate) and effect.step == "decide":
        first, second, *others = effect.parts
        return replace(
            effect,
            parts=(first, replace(second, statistics=bytes(len(second.statistics))), *others),
        )
    return effect


def too_few(effect: Effect) -> Effect:
    return (
        replace(effect, peers=effect.peers[1:])
        if isinstance(effect, Aggregate) and effect.step == "decide"
        else effect
    )


def another_verdict(effect: Effect) -> Effect:
    if isinstance(effect, Committed) and effect.commit.shard == 1:
        return replace(
            effect, commit=replace(effect.commit, contributors=effect.commit.contributors[1:])
        )
    return effect


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (forged_weights, "with the weights"),
        (forged_parts, "that no peer has measured"),
        (too_few, "all servers have measured"),
        (another_verdict, "decision was"),
    ],
)
def test_the_checker_catches_a_server_that_goes_its_own_way(
    forge: Callable[[Effect], Effect], said: str
) -> None:
    swarm = make_swarm(QUIET, Nemesis(QUIET))
    swarm.hooks.extend([CrossShardDecision()])
    swarm.run_for(0.9)

    def change(event: Event, effects: list[Effect]) -> list[Effect]:
        return [forge(effect) for effect in effects]

    for peer in range(QUIET.peers):
        tamper(swarm, peer, change)
    with pytest.raises(Violation, match=said) as found:
        swarm.run_for(1.5)
    assert found.value.invariant == "S10"
