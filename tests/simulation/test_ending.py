"""How a training ends for those who are not there when the others complete it: asleep, killed and
started again, cut off."""

from __future__ import annotations

from typing import Any

import pytest
from checked_swarm import core_settings, peer_swarm, toy_trainers
from effort import effort

from gossip.core.events import Halt, PeerEnded, Received
from gossip.core.messages import Gossip, Hello, PeerId
from gossip.core.peer import Peer
from gossip.core.settings import RoundSettings
from gossip_lab.simulation.world.driver import Swarm, address
from gossip_lab.simulation.world.toy_trainer import ToyTrainer

ROUNDS = 60
LATE = 3  # who misses the end
LINGER_S = 12.0
QUORUM_S = 20.0


def swarm_that_ends(
    seed: int,
    topology: str = "rolling",
    n: int = 5,
    f: int = 0,
    endless: tuple[PeerId, ...] = (),
    snapshot_s: float = 0.0005,
    **rounds: Any,
) -> Swarm[Peer]:
    """Everybody trains for ``ROUNDS`` rounds, but for the scripts of ``endless``,
    which do not count them."""
    wanted = RoundSettings(
        **{"round_timeout_s": 2.0, "linger_s": LINGER_S, "quorum_timeout_s": QUORUM_S, **rounds}
    )
    settings = core_settings(n, seed, f=f, rounds=wanted)
    ends = {peer: None if peer in endless else ROUNDS for peer in range(n)}
    return peer_swarm(settings, toy_trainers(seed, rounds=ends, snapshot_s=snapshot_s), topology)


def toy(swarm: Swarm[Peer], peer: PeerId) -> ToyTrainer:
    trainer = swarm.trainer(peer)
    assert isinstance(trainer, ToyTrainer)
    return trainer


def run_to(swarm: Swarm[Peer], round_id: int, limit_s: float = 20.0) -> None:
    swarm.run_until(
        lambda: all(host.core.rounds.round_id >= round_id for host in swarm.hosts.values()),
        limit_s=limit_s,
    )


def over(swarm: Swarm[Peer], *peers: PeerId) -> bool:
    return all(swarm.hosts[peer].halt is not None for peer in peers or swarm.hosts)


def halts(swarm: Swarm[Peer]) -> dict[PeerId, Halt | None]:
    return {peer: host.halt for peer, host in swarm.hosts.items()}


def everybody_finished(swarm: Swarm[Peer]) -> None:
    assert all(halt == Halt("finished", 0) for halt in halts(swarm).values()), swarm.summary()
    assert all(toy(swarm, peer).next_round == ROUNDS for peer in swarm.hosts), swarm.summary()


def complete_without_the_late(swarm: Swarm[Peer]) -> list[PeerId]:
    rest = [peer for peer in swarm.hosts if peer != LATE]
    swarm.run_until(lambda: all(toy(swarm, peer).next_round == ROUNDS for peer in rest), limit_s=20)
    return rest


def end_without_the_late(swarm: Swarm[Peer]) -> list[PeerId]:
    rest = [peer for peer in swarm.hosts if peer != LATE]
    swarm.run_until(lambda: over(swarm, *rest), limit_s=60)
    return rest


def sleeps(swarm: Swarm[Peer]) -> None:
    swarm.pause_for(LATE, 5.0)


def starts_again(swarm: Swarm[Peer]) -> None:
    swarm.restart(LATE, after_s=5.0)


def is_cut_off(swarm: Swarm[Peer]) -> None:
    swarm.network.partition([LATE], [peer for peer in swarm.hosts if peer != LATE])
    swarm.at_ns(swarm.now_ns + 5 * 10**9, swarm.network.heal)


@pytest.mark.parametrize("misses", [sleeps, starts_again, is_cut_off])
@pytest.mark.parametrize("missed", [10, ROUNDS - 20])
@pytest.mark.parametrize("seed", effort((1,), (1, 2, 3)))
def test_who_misses_the_end_of_rolling_rounds_ends_with_everybodys_bits(
    misses: Any, missed: int, seed: int
) -> None:
    swarm = swarm_that_ends(seed, commit_log=16)
    run_to(swarm, missed)
    misses(swarm)
    back_at = swarm.now + 5.0
    swarm.run_until(lambda: over(swarm), limit_s=60)
    everybody_finished(swarm)
    assert len({toy(swarm, peer).digest for peer in swarm.hosts}) == 1
    assert swarm.now < back_at + 3.0


@pytest.mark.parametrize("snapshot_s", [0.35, 3.0])
def test_who_comes_back_to_those_who_have_finished_gets_a_state_that_takes_long_to_copy(
    snapshot_s: float,
) -> None:
    """Nobody is in reach at first, the copy is not there when they are looked for again, no round
    comes after the last, and those who have it do not stay longer than that for one that
    asks for nothing."""
    swarm = swarm_that_ends(3, n=4, f=1, snapshot_s=snapshot_s)
    run_to(swarm, ROUNDS - 20)
    swarm.restart(LATE, after_s=2.0)
    swarm.run_until(lambda: over(swarm), limit_s=60)
    everybody_finished(swarm)
    assert toy(swarm, LATE).history.restored[-1][0] == ROUNDS
    assert len({toy(swarm, peer).digest for peer in swarm.hosts}) == 1


def test_who_is_about_to_take_a_state_has_its_time_from_then_on() -> None:
    """In pieces of different donors, say, that are large: each question shows that it is at it."""
    swarm = swarm_that_ends(3, n=4, f=1, snapshot_s=1.5, drain_timeout_s=2.0)
    run_to(swarm, ROUNDS - 20)
    swarm.restart(LATE, after_s=2.0)
    swarm.run_until(lambda: swarm.hosts[LATE].core.phase == "recovering", limit_s=20)
    swarm.run_for(1.6)  # they have vouched, and one is asked for what they vouched for
    assert swarm.hosts[LATE].core.recovery.donor is not None
    linger_until = max(swarm.hosts[peer].core.shutdown.linger_until() for peer in range(LATE))
    assert linger_until > swarm.now + 1.8


@pytest.mark.parametrize("misses", [sleeps, starts_again, is_cut_off])
@pytest.mark.parametrize("seed", effort((1,), (1, 2, 3)))
def test_who_misses_the_end_of_gossip_rounds_takes_a_final_state(misses: Any, seed: int) -> None:
    swarm = swarm_that_ends(seed, "random_k")
    run_to(swarm, 10)
    misses(swarm)
    back_at = swarm.now + 5.0
    swarm.run_until(lambda: over(swarm), limit_s=60)
    everybody_finished(swarm)
    late = toy(swarm, LATE)
    if misses is not is_cut_off:  # which it spent training alone, to the end
        assert late.history.restored[-1][0] == ROUNDS
        assert late.digest in {toy(swarm, peer).digest for peer in swarm.hosts if peer != LATE}
    assert swarm.now < back_at + 3.0


@pytest.mark.parametrize("topology", ["rolling", "random_k"])
def test_a_script_that_wants_more_rounds_than_the_others_ends_with_them(topology: str) -> None:
    swarm = swarm_that_ends(4, topology, endless=(LATE,))
    swarm.run_until(lambda: over(swarm), limit_s=60)
    halt = swarm.hosts[LATE].halt
    assert halt == Halt(f"the others have completed the training at round {ROUNDS}", 0)
    others = {toy(swarm, peer).digest for peer in swarm.hosts if peer != LATE}
    assert topology != "rolling" or toy(swarm, LATE).digest in others
    assert swarm.now < 5.0


@pytest.mark.parametrize("misses", [sleeps, starts_again])
def test_a_late_script_that_wants_more_rounds_ends_with_the_final_state(misses: Any) -> None:
    swarm = swarm_that_ends(5, endless=(LATE,))
    run_to(swarm, 10)
    misses(swarm)
    swarm.run_until(lambda: over(swarm), limit_s=60)
    halt = swarm.hosts[LATE].halt
    assert halt.exit_code == 0, swarm.summary()
    assert len({toy(swarm, peer).digest for peer in swarm.hosts}) == 1


@pytest.mark.parametrize("topology", ["rolling", "random_k"])
def test_nobody_waits_long_for_the_dead_and_not_at_all_for_those_who_will_not_be_started_again(
    topology: str,
) -> None:
    swarm = swarm_that_ends(6, topology)
    run_to(swarm, 20)
    swarm.crash(LATE)
    died_at = swarm.now
    rest = complete_without_the_late(swarm)
    swarm.run_for(0.5)
    assert not any(over(swarm, peer) for peer in rest), "somebody did not wait"
    for peer in rest[:2]:
        swarm.inject(peer, PeerEnded(LATE))
    assert over(swarm, *rest[:2])
    swarm.run_until(lambda: over(swarm, *rest), limit_s=60)
    assert died_at + LINGER_S <= swarm.now < died_at + LINGER_S + 0.5


def test_nobody_waits_for_one_that_was_lost_long_before() -> None:
    swarm = swarm_that_ends(7, linger_s=0.2)
    run_to(swarm, 10)
    swarm.crash(LATE)
    rest = complete_without_the_late(swarm)
    swarm.run_for(0.1)
    assert over(swarm, *rest)


def test_a_second_request_to_stop_ends_the_wait_at_once() -> None:
    swarm = swarm_that_ends(8)
    run_to(swarm, 20)
    swarm.crash(LATE)
    rest = complete_without_the_late(swarm)
    swarm.run_for(0.5)
    for peer in rest:
        swarm.stop(peer)
    assert over(swarm, *rest)


def test_who_wakes_when_all_are_gone_says_so_as_soon_as_that_is_known() -> None:
    swarm = swarm_that_ends(9)
    run_to(swarm, 20)
    swarm.pause(LATE)
    rest = end_without_the_late(swarm)
    swarm.resume(LATE)
    woke_at = swarm.now
    swarm.run_for(3.0)
    assert not over(swarm, LATE), "the others may be cut off"
    for peer in rest:
        swarm.inject(LATE, PeerEnded(peer))
    swarm.run_until(lambda: over(swarm), limit_s=3)
    halt = swarm.hosts[LATE].halt
    assert halt.exit_code == 5
    assert (
        "quorum lost: 1 peer is left, a round needs 3, and this peer is in round 2" in halt.reason
    )
    assert swarm.now < woke_at + QUORUM_S


def test_who_hears_that_all_have_completed_and_are_gone_says_that() -> None:
    swarm = swarm_that_ends(10)
    run_to(swarm, 20)
    swarm.pause(LATE)
    rest = end_without_the_late(swarm)
    swarm.resume(LATE)
    for peer in rest:  # what they said last was in its mailbox
        core = swarm.hosts[peer].core
        swarm.inject(LATE, Received(peer, 0, core.hello_exchange.hello()))
        swarm.inject(LATE, Received(peer, 0, Gossip((core.membership.me.rumor(),))))
    swarm.run_until(lambda: over(swarm), limit_s=2)
    halt = swarm.hosts[LATE].halt
    assert halt.exit_code == 5
    assert f"the others have completed the training at round {ROUNDS} and are gone" in halt.reason
    assert "no peer can send it the final state" in halt.reason


def test_a_node_whose_trainer_hangs_through_the_end_needs_nobody_when_it_wakes() -> None:
    swarm = swarm_that_ends(11, drain_timeout_s=1.0, linger_s=2.0)
    run_to(swarm, ROUNDS - 5)
    swarm.stop_trainer(LATE)
    end_without_the_late(swarm)
    swarm.run_for(QUORUM_S + 5.0)
    swarm.resume_trainer(LATE)
    swarm.run_until(lambda: over(swarm), limit_s=5)
    everybody_finished(swarm)
    assert len({toy(swarm, peer).digest for peer in swarm.hosts}) == 1


@pytest.mark.parametrize("topology", ["rolling", "random_k"])
def test_a_liars_word_that_the_training_is_over_ends_nothing(topology: str) -> None:
    swarm = swarm_that_ends(12, topology, f=1)
    run_to(swarm, 20)
    told = Hello(b"lineage!", b"", b"", 10**9, "completed", *address(0, 0))
    for peer in range(1, 5):
        swarm.inject(peer, Received(0, 0, told))
    swarm.run_until(lambda: over(swarm), limit_s=60)
    # Nobody need stay for the liar itself, which has had its rounds as it says.
    assert {halt for peer, halt in halts(swarm).items() if peer} == {Halt("finished", 0)}
    assert all(toy(swarm, peer).next_round == ROUNDS for peer in range(1, 5)), swarm.summary()
    assert all(not swarm.reports(peer, "recovering") for peer in range(1, 5))


def test_the_end_of_a_peer_that_has_completed_the_training_is_not_reported_as_a_skip() -> None:
    """Its connections may close before its farewell is here."""
    swarm = swarm_that_ends(1, endless=(0,))
    swarm.run_until(lambda: 1 in swarm.hosts[0].core.shutdown.completed, limit_s=60.0)
    assert swarm.hosts[0].core.phase == "running"
    swarm.crash(1)
    swarm.run_until(lambda: swarm.hosts[0].core.membership.view.skip_reason(1), limit_s=1.0)
    assert not swarm.reports(0, "skip")
