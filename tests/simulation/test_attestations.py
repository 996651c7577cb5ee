"""A peer that comes back takes the swarm's state, whatever at most f donors say of theirs, and
however fast the swarm moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from checked_swarm import OnEffect, assert_sound, checked_swarm
from effort import effort

from gossip.core.events import Send
from gossip.core.messages import PeerId, StateRequest
from gossip.core.peer import Peer
from gossip.faults.kinds import Restart
from gossip.faults.world import PIECE_ATTACKS, STATE_ATTACKS, CrashMidway, NodeAttack
from gossip_lab.simulation.checkers import CheckerSuite, RunConditions, every_checker
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.liars import ByzantinePeers
from gossip_lab.simulation.world.observer import Observer

OF_WHOLE_STATES = [lie for lie in STATE_ATTACKS if lie not in PIECE_ATTACKS]
FAST_S = 0.006  # of a round: less than it takes to ask, answer and ask again


@pytest.mark.parametrize("lie", OF_WHOLE_STATES)
@pytest.mark.parametrize("seed", effort((2,), tuple(range(1, 21))))
def test_two_lying_donors_of_five_mislead_nobody_who_comes_back(lie: str, seed: int) -> None:
    """Peer 0, the first whom everybody asks, and another tell the same lie; f is 2."""
    schedule = Schedule(
        seed,
        peers=6,
        aggregator="median",
        active_s=6.0,
        duration_s=6.0,
        compute_s=(0.1, 0.3),
        shards=(5, 3),
    )
    attackers = NodeAttack(lie, (0, 1 + seed % 3))
    outcome = assert_sound(
        replace(
            schedule, faults=(attackers, Restart(4, None, 0.3, 2.0), Restart(5, None, 0.1, 3.5))
        )
    )
    assert outcome.reports["restored"] >= 2
    assert "unattested_state" not in outcome.reports
    # for which a liar has to be the one that is asked to send its state
    if lie not in ("broken_states", "swapped_states"):
        assert outcome.struck[f"lie_{lie}"] == 1


def returning(
    n: int, f: int, compute_s: float, lies: dict[PeerId, tuple[str, ...]], *observers: Observer
) -> Swarm[Peer]:
    """Peer 1 was killed and is started again at 0.3 s; every checker looks on."""
    names = sorted({lie for told in lies.values() for lie in told})
    checkers = every_checker(
        RunConditions.of(lies, equivocating=lies, attacks=names, loses_votes=True)
    )
    swarm = checked_swarm(CheckerSuite(checkers), *observers, n=n, f=f, compute_s=compute_s)
    swarm.outgoing = ByzantinePeers(swarm, lies)
    swarm.run_for(0.3)
    swarm.restart(1)
    return swarm


def is_back(swarm: Swarm[Any], peer: PeerId = 1) -> bool:
    return bool(swarm.reports(peer, "restored")) and swarm.cores[peer].phase == "running"


class Asks(Observer):
    """What a peer asks of which donors."""

    def __init__(self, peer: PeerId) -> None:
        self.peer = peer
        self.said: list[tuple[PeerId, str, int]] = []

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Any) -> None:
        if (
            peer == self.peer
            and isinstance(effect, Send)
            and isinstance(effect.message, StateRequest)
        ):
            self.said.append((effect.peer, effect.message.what, effect.message.round_id))


@pytest.mark.parametrize("lie", effort(["far_states"], OF_WHOLE_STATES))
def test_those_asked_in_different_rounds_are_asked_for_one_ahead(lie: str) -> None:
    """A round takes less than the questions of peer 1 are apart,
    each of which takes another time to get there."""
    asks = Asks(1)
    swarm = returning(6, 2, FAST_S, {0: (lie,), 3: (lie,)}, asks)
    for donor in (0, 2, 3, 4, 5):
        delay_s = 0.001 + 0.02 * donor
        swarm.network.shape([(1, donor)], delay_s=(delay_s, delay_s))
    swarm.run_until(lambda: is_back(swarm), 4.0)
    here = max(core.rounds.round_id for core in swarm.cores.values())
    named = {round_id for _, what, round_id in asks.said if what == "attestation" and round_id}
    assert named, "it was not necessary: the test proves nothing"
    assert max(named) < here + 100, "no liar chooses it"
    assert not swarm.reports(1, "unattested_state")
    swarm.run_for(0.2)


@pytest.mark.parametrize("donor", [2, 5])
def test_a_donor_that_dies_at_any_effect_while_it_is_asked_is_replaced(donor: PeerId) -> None:
    """Of seven peers two lie, and of the four honest donors one dies: three are left,
    which is just enough."""
    delivered = 0
    for effect in effort(range(0, 12, 3), range(24)):
        swarm = returning(7, 2, 0.05, {0: ("wrong_states",), 3: ("wrong_states",)})
        swarm.run_until(lambda swarm=swarm: swarm.cores[1].recovery.stage == "polling", 2.0)
        left = iter(range(effect, -1, -1))
        crash = lambda at, _: at == donor and next(left, 1) == 0 and swarm.crash(donor)  # noqa: B023, E731
        swarm.hooks.append(OnEffect(crash))
        swarm.run_until(lambda swarm=swarm: is_back(swarm), 10.0)
        delivered += swarm.hosts[donor].state == "crashed"
        assert not swarm.reports(1, "unattested_state"), f"effect {effect}"
        swarm.run_for(0.5)
    assert delivered, "it never died on the way"


def test_a_swarm_that_stands_still_and_waits_for_just_this_peer_is_asked_where_it_stands() -> None:
    """Of four peers two are left, which is no quorum: they stand still until peer 1 is back."""
    swarm = checked_swarm(n=4, f=1, compute_s=0.05)
    swarm.run_for(1.0)
    swarm.crash(2)
    swarm.run_for(0.1)
    swarm.crash(1)
    swarm.run_for(3.0)
    here = swarm.cores[0].rounds.round_id
    swarm.run_for(1.0)
    assert swarm.cores[0].rounds.round_id == here, "it goes on: the test proves nothing"
    swarm.restart(1)
    swarm.run_until(lambda: swarm.cores[1].rounds.round_id > here, 5.0)
    assert not swarm.reports(1, "unattested_state")


def test_the_last_survivor_is_followed_by_all_who_come_back() -> None:
    """f is 2, and nobody but peer 0 has a state."""
    swarm = checked_swarm(n=6, f=2, compute_s=0.05)
    swarm.run_for(1.0)
    for peer in range(1, 6):
        swarm.crash(peer)
    here = swarm.cores[0].rounds.round_id
    for peer in range(1, 6):
        swarm.restart(peer, 0.2)
    swarm.run_until(
        lambda: all(core.rounds.round_id > here + 3 for core in swarm.cores.values()), 12.0
    )
    assert any(swarm.reports(peer, "unattested_state") for peer in range(1, 6)), "it is told"


def test_gossip_rounds_take_the_state_of_one_donor() -> None:
    asks = Asks(1)
    swarm = checked_swarm(asks, n=5, f=1, topology="random-k")
    swarm.run_for(1.0)
    swarm.restart(1)
    swarm.run_until(lambda: is_back(swarm), 4.0)
    assert {what for _, what, _ in asks.said} == {"state"}


@pytest.mark.parametrize("effect", effort((3,), range(30)))
def test_a_taker_that_dies_on_the_way_begins_anew(effect: int) -> None:
    faults = (
        NodeAttack("wrong_states", (0, 3)),
        Restart(4, None, 0.2, 2.0),
        CrashMidway(4, 2.21, effect, 0.2),
    )
    outcome = assert_sound(
        Schedule(
            3,
            peers=6,
            aggregator="median",
            active_s=5.0,
            duration_s=5.0,
            compute_s=(0.1, 0.2),
            faults=faults,
        )
    )
    assert "unattested_state" not in outcome.reports
