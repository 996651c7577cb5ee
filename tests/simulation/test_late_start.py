"""A run that begins without some of its peers: they are left out like the dead,
and come in like newcomers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, product
from random import Random

import pytest
from checked_swarm import assert_sound, core_settings, peer_swarm
from effort import effort
from test_joining import SEEDS

from gossip.core.events import Payload
from gossip.core.messages import Envelope, Hello, PeerId
from gossip.core.peer import Peer
from gossip.core.settings import RoundSettings
from gossip.faults.kinds import Crash, Hang, Restart
from gossip.faults.plan import Fault, from_toml
from gossip.faults.start import LateStart, LateTrainer, NeverStarts
from gossip.faults.world import KillTrainer, Loss, NodeAttack, Partition
from gossip.inject.byzantine import OutMessage
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.checkers import CheckerSuite, every_checker
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.nemesis import name_of
from gossip_lab.simulation.world.toy_trainer import ToyPace, ToyTrainer

LATE = 3
GIVES_NONE = ("kept_states", "broken_states", "swapped_states", "hollow_states")
PREPARES_S = 4.0


def swarm_of_four(
    seed: int, prepare_s: float | None, apart: bool = False, f: int = 0
) -> Swarm[Peer]:
    """Three of four begin after a second; the trainer of the fourth takes longer to prepare, or it
    is not there at all.

    Args:
        apart: Each has weights of its own, as scripts without a seed have:
            all begin with those of one of them.
    """
    wanted = RoundSettings(min_peers=3, patience_s=1.0, round_timeout_s=2.0)
    needed = {"f": f, "updates_for": (1, 3)} if f else {}
    settings = core_settings(4, seed, rounds=wanted, **needed)

    def make_trainer(peer: PeerId, incarnation: int) -> ToyTrainer:
        pace = ToyPace((0.05, 0.06))
        if peer == LATE and prepare_s is not None:
            pace.prepare_s = prepare_s
        late = {"initial": peer} if apart else {}
        return ToyTrainer(peer, seed, incarnation=incarnation, pace=pace, samples_total=997, **late)

    swarm = peer_swarm(settings, make_trainer, started=4 if prepare_s is not None else 3)
    swarm.hooks.append(CheckerSuite(every_checker()))
    return swarm


def rosters(swarm: Swarm[Peer], peers: tuple[PeerId, ...]) -> set[tuple[PeerId, ...]]:
    return {swarm.hosts[peer].core.rounds.roster.peers for peer in peers}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_there", [True, False], ids=["it prepares", "it is not there"])
def test_who_has_not_come_is_in_no_roster_until_it_does(is_there: bool, seed: int) -> None:
    swarm = swarm_of_four(seed, PREPARES_S if is_there else None)
    swarm.run_until(
        lambda: all(swarm.hosts[peer].core.rounds.round_id >= 1 for peer in range(LATE)),
        limit_s=3.0,
    )
    assert rosters(swarm, (0, 1, 2)) == {(0, 1, 2)}
    begun_s = swarm.now
    swarm.run_until(lambda: swarm.hosts[0].core.rounds.round_id >= 16, limit_s=begun_s + 2.0)
    assert not any(swarm.reports(peer, "late") for peer in range(LATE))
    if not is_there:
        swarm.join(LATE)
    swarm.run_until(lambda: rosters(swarm, (0, 1, 2, 3)) == {(0, 1, 2, 3)}, limit_s=8.0)
    late = swarm.trainer(LATE)
    swarm.run_until(lambda: len(late.history.served) >= 2, limit_s=12.0)
    assert rosters(swarm, (0, 1, 2, 3)) == {(0, 1, 2, 3)}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("f", [0, 1])
def test_nobody_takes_who_has_not_come_for_somebody_who_is_here(f: int, seed: int) -> None:
    """Those who begin with another's weights ask for them, also the node whose trainer is still to
    come: it knows of no state."""
    swarm = swarm_of_four(seed, 60.0, apart=True, f=f)
    swarm.run_until(
        lambda: all(swarm.hosts[peer].core.rounds.round_id >= 16 for peer in range(LATE)),
        limit_s=4.0,
    )
    assert rosters(swarm, (0, 1, 2)) == {(0, 1, 2)}
    assert not any(
        swarm.reports(peer, what) for peer in range(LATE) for what in ("refused_result", "late")
    )


@pytest.mark.parametrize("prepare_s", [60.0, None])
def test_another_death_is_borne(prepare_s: float | None) -> None:
    """Of four, three would be a majority, and two are left of three."""
    swarm = swarm_of_four(1, prepare_s)
    swarm.run_until(
        lambda: all(swarm.hosts[peer].core.rounds.round_id >= 3 for peer in range(LATE)),
        limit_s=3.0,
    )
    swarm.crash(2)
    swarm.run_for(2.5)
    begun = swarm.hosts[0].core.rounds.round_id
    swarm.run_for(1.0)
    assert swarm.hosts[0].core.rounds.round_id > begun + 8
    assert not swarm.reports(0, "paused")


APART = Schedule(1, peers=4, min_peers=3, patience_s=1.0, active_s=8.0, duration_s=9.0, apart=True)
"""Each has weights of its own, and those of the lowest peer that is there are
what all begin with."""
FIRST = Schedule(1, active_s=8.0, duration_s=14.0, apart=True)
"""All begin together, and something befalls them in the first moments."""


@pytest.mark.parametrize(
    ("aggregator", "at_s", "late"),
    effort(
        [("mean", 1.1, LateStart), ("median", 1.1, LateTrainer), ("median", 2.2, LateStart)],
        list(product(("mean", "median"), (1.1, 1.5, 2.2, 4.0), (LateStart, LateTrainer))),
    ),
)
def test_a_late_peer_takes_the_weights_the_others_began_with_though_its_own_would_be_chosen(
    late: Callable[[PeerId, float], Fault], at_s: float, aggregator: str
) -> None:
    """The others begin after a second: what they said before is true no more. In their first round
    they say whose theirs are."""
    outcome = assert_sound(replace(APART, faults=(late(0, at_s),), aggregator=aggregator).checked())
    assert outcome.rounds > 8


@pytest.mark.parametrize(
    "at_s", effort([0.06, 0.115, 0.127, 0.14], [0.06, 0.1, 0.115, 0.122, 0.127, 0.13, 0.14])
)
@pytest.mark.parametrize("peers", [3, 4])
def test_whose_weights_all_await_may_die_before_it_gave_them_and_come_back_with_others(
    peers: int, at_s: float
) -> None:
    """The others await what nobody has: it is not taken for what most begin with."""
    again = replace(FIRST, peers=peers, faults=(Restart(0, None, 1.0, at_s),))
    outcome = assert_sound(again.checked())
    assert outcome.rounds > 8


@pytest.mark.parametrize(
    "at_s", effort([0.08, 0.14], [0.06, 0.08, 0.1, 0.115, 0.122, 0.127, 0.13, 0.14, 0.156])
)
@pytest.mark.parametrize(("peers", "f"), effort([(3, 0), (4, 1)], [(3, 0), (4, 0), (4, 1), (5, 1)]))
def test_whose_weights_all_await_may_die_for_good_before_it_gave_them(
    peers: int, f: int, at_s: float
) -> None:
    """Nobody has them: the others begin with those of the next."""
    gone = replace(FIRST, peers=peers, f=f, aggregator="median" if f else "mean")
    outcome = assert_sound(replace(gone, faults=(Crash(0, at_s=at_s),)).checked())
    assert outcome.rounds > 8
    assert outcome.reports["no_state_found"] >= peers - 1


@pytest.mark.parametrize(
    ("lie", "peers", "seed"),
    effort(
        [(lie, *world) for lie, world in zip(GIVES_NONE, cycle([(5, 1), (3, 21)]))],
        [(lie, *world) for lie in GIVES_NONE for world in ((5, 1), (5, 10), (5, 20), (3, 21))],
    ),
)
def test_a_liar_whose_weights_all_await_and_that_gives_none_is_passed_over(
    lie: str, peers: int, seed: int
) -> None:
    """It says that it has begun, and goes on saying so. With all seeds but the first the lot
    between those who vouch for different weights prefers it."""
    longer = replace(FIRST, active_s=16.0, duration_s=22.0, seed=seed, peers=peers)
    lying = replace(longer, f=1, aggregator="median", faults=(NodeAttack(lie, (0,)),))
    outcome = assert_sound(lying.checked())
    assert outcome.struck == {f"lie_{lie}": 1}
    assert outcome.rounds > 8


def at_the_start(seed: int) -> Schedule:
    """Each peer has weights of its own, and in the first moments one or two of them die, come back,
    hang or are cut off."""
    lots = Random(f"lost start {seed}")
    peers = lots.choice((3, 4, 5, 6))
    at_s = round(lots.uniform(0.03, 0.4), 4)
    for_s = lots.choice((0.5, 1.0, 2.0, 3.0))
    f, who = lots.choice((0, 1)) if peers > 3 else 0, lots.choice((0, 0, 0, 1, 2))
    others = tuple(peer for peer in range(peers) if peer != who)
    then_s = round(at_s + lots.uniform(0.0, 2.0), 4)
    next_one, cut_off = (who + 1) % peers, Partition(((who,), others), at_s, for_s)
    faults: tuple[Fault, ...] = lots.choice(
        (
            (Crash(who, at_s=at_s),),
            (Restart(who, None, for_s, at_s),),
            (Hang(who, None, for_s, at_s),),
            (cut_off,),
            (KillTrainer(who, at_s, for_s),),
            (Crash(who, at_s=at_s), Restart(next_one, None, for_s, then_s)),
            (Loss(0.2, 0.02, 3.0), Crash(who, at_s=at_s)),
            (cut_off, Crash(next_one, at_s=then_s)),
        )
    )
    drawn = replace(FIRST, seed=seed, peers=peers, f=f, faults=faults)
    return replace(drawn, aggregator="median" if f else "mean").checked()


@pytest.mark.parametrize("seed", range(effort(6, 400)))
def test_whatever_befalls_the_first_moments_all_begin_with_the_same(seed: int) -> None:
    """L2 and L3: they do begin. S9 and L5: on one branch."""
    outcome = assert_sound(at_the_start(seed))
    assert outcome.rounds > 2


@pytest.mark.parametrize("fault", [LateStart(3, 5.0), LateTrainer(3, 5.0), NeverStarts(3)], ids=str)
def test_a_fault_of_the_start_takes_place_when_a_round_ends_without_the_peer(fault: Fault) -> None:
    schedule = replace(APART, faults=(fault,)).checked()
    assert Schedule(1).with_plan(from_toml(schedule.plan.to_toml())) == schedule
    outcome = assert_sound(schedule)
    assert outcome.struck == {name_of(fault): 1}
    assert outcome.rounds > 14
    assert run(replace(schedule, min_peers=0, start_timeout_s=8.5, patience_s=1.0)).struck == {}


ATTACKER = 0


def flatters(swarm: Swarm[Peer]) -> None:
    """The liar tells each of the others, before the first round, that it has just their weights."""
    own = {peer: host.core.hello_exchange for peer, host in swarm.hosts.items()}

    def outgoing(
        sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None
    ) -> list[OutMessage]:
        message = envelope.message
        if sender == ATTACKER and isinstance(message, Hello) and message.state and own[to].state:
            envelope = replace(envelope, message=replace(message, state=own[to].state))
        return [(to, envelope, payload)]

    swarm.outgoing = outgoing


@pytest.mark.parametrize("seed", effort((1, 2, 3), tuple(range(1, 21))))
def test_those_who_were_made_to_begin_apart_come_together(seed: int) -> None:
    swarm = swarm_of_four(seed, 0.05, apart=True, f=1)
    flatters(swarm)
    cores = [swarm.hosts[peer].core for peer in range(4) if peer != ATTACKER]
    swarm.run_until(
        lambda: len({core.rounds.chain for core in cores if core.phase == "running"}) > 1,
        limit_s=8.0,
    )
    swarm.run_until(lambda: all(core.rounds.round_id >= 16 for core in cores), limit_s=30.0)
    trainers = [swarm.trainer(core.local) for core in cores]
    same = {
        (trainer.next_round, trainer.digest)
        for trainer in trainers
        if isinstance(trainer, ToyTrainer)
    }
    assert len(same) == len({next_round for next_round, _ in same}) > 0
