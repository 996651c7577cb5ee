"""Peers whose schedulers are apart step alike: the commit says with what."""

from __future__ import annotations

from dataclasses import replace
from statistics import median_low

import pytest
from checked_swarm import OnEffect, checked_swarm, tamper

from gossip.core.events import Apply, Contributed, Effect, Send
from gossip.core.messages import Commit, PeerId, Update
from gossip.core.peer import Peer
from gossip_lab.simulation.checkers import Panel, every_checker
from gossip_lab.simulation.world.driver import Swarm


def with_rates(
    swarm: Swarm[Peer], rates: dict[PeerId, float]
) -> dict[PeerId, dict[int, tuple[float, ...]]]:
    """Trainers that would step with ``rates``. Returns what each is told to step with, by round."""
    told: dict[PeerId, dict[int, tuple[float, ...]]] = {peer: {} for peer in rates}
    for peer, rate in rates.items():
        core = swarm.hosts[peer].core
        handle = core.handle

        def tells(event: object, now: float, handle=handle, rate: float = rate) -> list[Effect]:  # type: ignore[no-untyped-def]
            return handle(
                replace(event, rates=(rate,))
                if isinstance(event, Contributed) and event.samples
                else event,
                now,
            )

        core.handle = tells  # type: ignore[method-assign]

    def look(peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Apply) and effect.payloads:
            told[peer][effect.round_id] = effect.rates

    swarm.hooks.append(OnEffect(look))
    return told


@pytest.mark.parametrize("crash", [False, True])
def test_peers_whose_schedulers_are_apart_step_with_the_same(crash: bool) -> None:
    swarm = checked_swarm(Panel(every_checker()), n=4)
    rates = {0: 0.3, 1: 0.1, 2: 0.1, 3: 0.2}
    told = with_rates(swarm, rates)
    if crash:
        swarm.at(1.0, lambda: swarm.crash(3))
    swarm.run_for(4.0)
    commits = {effect.commit.round_id: effect.commit for _, effect in swarm.hosts[0].commits}
    last = min(max(of_peer) for peer, of_peer in told.items() if peer in swarm.up)
    assert last > 10
    for round_id in range(last):
        stepped = {of_peer[round_id] for peer, of_peer in told.items() if round_id in of_peer}
        assert len(stepped) == 1, f"round {round_id} was stepped with {stepped}"
        contributors = [rates[each.peer] for each in commits[round_id].contributors]
        assert stepped == {(median_low(contributors),)}, f"round {round_id} of {contributors}"


def test_a_server_that_would_have_the_others_climb_is_refused() -> None:
    swarm = checked_swarm(n=4, f=1)
    told = with_rates(swarm, dict.fromkeys(range(4), 0.1))

    def lie(event: object, effects: list[Effect]) -> list[Effect]:
        return [
            replace(effect, message=replace(effect.message, rates=(-0.1,)))
            if isinstance(effect, Send) and isinstance(effect.message, Commit)
            else effect
            for effect in effects
        ]

    tamper(swarm, 2, lie)
    swarm.run_for(12.0)
    assert {rates for peer in (0, 1, 3) for rates in told[peer].values()} == {(0.1,)}
    assert max(told[0]) >= 4
    assert swarm.reports(0, "refused_result"), "it served, and was found out"


def test_only_the_update_of_the_first_shard_tells() -> None:
    swarm = checked_swarm(n=3, sizes=(4, 4))
    seen: list[Update] = []
    with_rates(swarm, dict.fromkeys(range(3), 0.1))
    look = OnEffect(
        lambda _, effect: (
            seen.append(effect.message)
            if isinstance(effect, Send) and isinstance(effect.message, Update)
            else None
        )
    )
    swarm.hooks.append(look)
    swarm.run_for(2.0)
    assert {update.rates for update in seen if update.shard == 0 and update.samples} == {(0.1,)}
    assert {update.rates for update in seen if update.shard} == {()}
