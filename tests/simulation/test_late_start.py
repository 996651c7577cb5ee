"""A run that begins without some of its peers: they are left out like the dead, and come in like newcomers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from test_joining import SEEDS

from gossip.core.messages import PeerId
from gossip.core.peer import Peer
from gossip.core.settings import CoreSettings, RoundSettings
from gossip.fault_kinds import Crash, Restart
from gossip.faults import Fault, from_toml
from gossip.sim.checkers import all_checkers
from gossip.sim.driver import Swarm, address
from gossip.sim.nemesis import name_of
from gossip.sim.play import run
from gossip.sim.schedule import Schedule
from gossip.sim.toy_trainer import ToyTrainer
from gossip.start_faults import LateStart, LateTrainer, NeverStarts
from gossip.topologies import load

LATE = 3
PREPARES_S = 4.0


def swarm_of_four(seed: int, prepare_s: float | None, apart: bool = False, f: int = 0) -> Swarm[Peer]:
    """Three of four begin after a second; the trainer of the fourth takes longer to prepare, or it is not there at all.

    Args:
        apart: Each has weights of its own, as scripts without a seed have: all begin with those of one of them.
    """
    wanted = RoundSettings(min_peers=3, patience_s=1.0, round_timeout_s=2.0)
    needed = {"f": f, "updates_for": (1, 3)} if f else {}
    settings = CoreSettings(b"run-id!!", b"lineage!", seed=seed, peers=(0, 1, 2, 3), rounds=wanted, **needed)
    started = 4 if prepare_s is not None else 3
    plan, folder = load("rolling"), {peer: address(peer, 0) for peer in range(started)}

    def make_core(peer: PeerId, incarnation: int) -> Peer:
        control, bulk = folder[peer] = address(peer, incarnation)
        return Peer(peer, incarnation, settings, plan, control=control, bulk=bulk, seeds=dict(folder))

    def make_trainer(peer: PeerId, incarnation: int) -> ToyTrainer:
        late = {"prepare_s": prepare_s} if peer == LATE and prepare_s is not None else {}
        late |= {"initial": peer} if apart else {}
        return ToyTrainer(peer, seed, incarnation=incarnation, compute_s=(0.05, 0.06), samples_total=997, **late)

    swarm = Swarm(make_core, started, seed, make_trainer=make_trainer)
    swarm.hooks.extend(all_checkers())
    return swarm


def rosters(swarm: Swarm[Peer], peers: tuple[PeerId, ...]) -> set[tuple[PeerId, ...]]:
    return {swarm.hosts[peer].core.rounds.roster.peers for peer in peers}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_there", [True, False], ids=["it prepares", "it is not there"])
def test_who_has_not_come_is_in_no_roster_until_it_does(is_there: bool, seed: int) -> None:
    swarm = swarm_of_four(seed, PREPARES_S if is_there else None)
    swarm.run_until(lambda: all(swarm.hosts[peer].core.rounds.round_id >= 1 for peer in range(LATE)), limit_s=3.0)
    assert rosters(swarm, (0, 1, 2)) == {(0, 1, 2)}
    begun_s = swarm.now
    swarm.run_until(lambda: swarm.hosts[0].core.rounds.round_id >= 16, limit_s=begun_s + 2.0)
    assert not any(swarm.reports(peer, "late") for peer in range(LATE))
    if not is_there:
        swarm.join(LATE)
    swarm.run_until(lambda: rosters(swarm, (0, 1, 2, 3)) == {(0, 1, 2, 3)}, limit_s=8.0)
    late = swarm.trainer(LATE)
    assert isinstance(late, ToyTrainer)
    swarm.run_until(lambda: len(late.served) >= 2, limit_s=12.0)
    assert rosters(swarm, (0, 1, 2, 3)) == {(0, 1, 2, 3)}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("f", [0, 1])
def test_nobody_takes_who_has_not_come_for_somebody_who_is_here(f: int, seed: int) -> None:
    """Those who begin with another's weights ask for them, also the node whose trainer is still to come: it knows of no state."""
    swarm = swarm_of_four(seed, 60.0, apart=True, f=f)
    swarm.run_until(lambda: all(swarm.hosts[peer].core.rounds.round_id >= 16 for peer in range(LATE)), limit_s=4.0)
    assert rosters(swarm, (0, 1, 2)) == {(0, 1, 2)}
    assert not any(swarm.reports(peer, what) for peer in range(LATE) for what in ("refused_result", "late"))


@pytest.mark.parametrize("prepare_s", [60.0, None])
def test_another_death_is_borne(prepare_s: float | None) -> None:
    """Of four, three would be a majority, and two are left of three."""
    swarm = swarm_of_four(1, prepare_s)
    swarm.run_until(lambda: all(swarm.hosts[peer].core.rounds.round_id >= 3 for peer in range(LATE)), limit_s=3.0)
    swarm.crash(2)
    swarm.run_for(2.5)
    begun = swarm.hosts[0].core.rounds.round_id
    swarm.run_for(1.0)
    assert swarm.hosts[0].core.rounds.round_id > begun + 8
    assert not swarm.reports(0, "paused")


APART = Schedule(1, peers=4, min_peers=3, patience_s=1.0, active_s=8.0, duration_s=9.0, apart=True)
"""Each has weights of its own, and those of the lowest peer that is there are what all begin with."""


@pytest.mark.parametrize("aggregator", ["mean", "median"])
@pytest.mark.parametrize("at_s", [1.1, 1.5, 2.2, 4.0])
@pytest.mark.parametrize("late", [LateStart, LateTrainer])
def test_who_comes_late_takes_the_weights_that_the_others_have_begun_with_though_its_own_would_have_been_chosen(
    late: Callable[[PeerId, float], Fault], at_s: float, aggregator: str
) -> None:
    """The others begin after a second: what they said before is true no more. In their first round they say whose theirs are."""
    outcome = run(replace(APART, faults=(late(0, at_s),), aggregator=aggregator).checked())
    assert outcome.violation is None, outcome.violation
    assert outcome.rounds > 8


@pytest.mark.parametrize("at_s", [0.06, 0.1, 0.115, 0.122, 0.127, 0.13, 0.14])
@pytest.mark.parametrize("peers", [3, 4])
def test_whose_weights_all_await_may_die_before_it_gave_them_and_come_back_with_others(peers: int, at_s: float) -> None:
    """The others await what nobody has: it is not taken for what most begin with."""
    again = Schedule(1, peers=peers, active_s=8.0, duration_s=14.0, apart=True, faults=(Restart(0, None, 1.0, at_s),))
    outcome = run(again.checked())
    assert outcome.violation is None, outcome.violation
    assert outcome.rounds > 8


def test_s9_what_a_run_began_with_is_gone_with_the_last_who_had_it() -> None:
    """Seed 779: of three one is late. The others die in the first round; one of them comes back, with other weights."""
    faults = (LateTrainer(2, 6.5), Crash("server", at_s=2.0), Restart(0, None, 0.01, 3.1))
    schedule = Schedule(779, peers=3, min_peers=2, patience_s=1.234, apart=True, compute_s=(0.46, 0.58), faults=faults)
    outcome = run(replace(schedule, probe_interval_s=0.5, active_s=6.6, duration_s=9.6, rounds_min=0).checked())
    assert outcome.violation is None, outcome.violation
    assert outcome.rounds > 2


def test_who_comes_back_into_a_first_round_that_stands_begins_with_what_is_there() -> None:
    """Seed 779 as drawn: one of three who have begun is left with their weights, and has to wait for others."""
    faults = (LateTrainer(3, 6.5), Crash("server", at_s=2.0), Restart(0, None, 0.12, 3.1))
    schedule = Schedule(779, peers=4, min_peers=3, patience_s=1.2, apart=True, compute_s=(0.46, 0.58), faults=faults)
    outcome = run(replace(schedule, probe_interval_s=0.5, active_s=6.6, duration_s=9.6).checked())
    assert outcome.violation is None, outcome.violation
    assert outcome.rounds > 2


@pytest.mark.parametrize("fault", [LateStart(3, 5.0), LateTrainer(3, 5.0), NeverStarts(3)], ids=str)
def test_a_fault_of_the_start_takes_place_when_a_round_has_ended_without_the_peer(fault: Fault) -> None:
    schedule = replace(APART, faults=(fault,)).checked()
    assert Schedule(1).with_plan(from_toml(schedule.plan.to_toml())) == schedule
    outcome = run(schedule)
    assert outcome.violation is None, outcome.violation
    assert outcome.struck == {name_of(fault): 1}
    assert outcome.rounds > 14
    assert run(replace(schedule, min_peers=0, start_timeout_s=8.5, patience_s=1.0)).struck == {}
