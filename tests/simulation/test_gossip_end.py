"""The end of a training in gossip rounds (L12): everybody comes to it, whatever disturbs them."""

from __future__ import annotations

import pytest
from checked_swarm import checked_swarm, each, tamper
from test_peer_gossip import gossip_swarm, run_to

from gossip.core import QUORUM_LOST
from gossip.core.events import Apply, Halt, Restored, StateConfirmed
from gossip.core.peer import Peer
from gossip.core.settings import RoundSettings
from gossip_lab.simulation.campaign import endings
from gossip_lab.simulation.campaign.endings import play_gossip_end
from gossip_lab.simulation.checkers import AllPeersEnd, RunConditions, Violation
from gossip_lab.simulation.world.driver import Swarm


@pytest.mark.parametrize("topology", ["full", "random_k"])
@pytest.mark.parametrize("seed", range(6))
def test_all_end_whoever_is_slow_stands_still_or_comes_back(topology: str, seed: int) -> None:
    swarm, checker = gossip_swarm(4, seed, topology), AllPeersEnd()
    run_to(swarm, 5)
    play_gossip_end(swarm, checker)
    assert checker.judged == 1


@pytest.mark.parametrize("topology", ["full", "rolling"])
def test_those_who_wait_for_a_state_that_none_of_them_has_give_up(topology: str) -> None:
    """Two are started again, and the last that has the state dies while it gives it."""
    swarm = gossip_swarm(3, 28, topology, snapshot_s=1.0)
    run_to(swarm, 5)
    for peer in (0, 1):
        swarm.restart(peer, 0.1)
    waiting = lambda: all(swarm.cores[peer].phase == "recovering" for peer in (0, 1))  # noqa: E731
    swarm.run_until(waiting, limit_s=10)
    swarm.crash(2)
    swarm.run_for(RoundSettings().quorum_timeout_s + 10.0)
    for peer in (0, 1):
        halt = swarm.hosts[peer].halt
        assert halt.exit_code == QUORUM_LOST
    assert "2 peers are left, and none of them sends a state" in str(swarm.hosts[0].halt)


@pytest.mark.parametrize("lost", [StateConfirmed, Apply])
def test_one_that_waits_for_ever_is_caught(lost: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "DISTURBED", 0.0)
    swarm = gossip_swarm(3, 1, "full")
    run_to(swarm, 5)
    tamper(swarm, 1, each(lost, lambda effect: []))
    with pytest.raises(Violation, match=r"L12 .*peer 1: it has not ended .* running in round"):
        play_gossip_end(swarm, AllPeersEnd())


def given_the_final_state(topology: str, checker: AllPeersEnd, halt: Halt | None) -> Swarm[Peer]:
    """Peer 1 of three is started again when the others are in their last round, and takes its
    state. ``halt``: how it ends then; None: by itself."""
    swarm = checked_swarm(checker, n=3, topology=topology)
    swarm.run_for(1.0)
    last = swarm.cores[0].rounds.round_id + 1
    for host in swarm.hosts.values():
        host.trainer.rounds = last
    swarm.restart(1, 0.1)
    trainer = swarm.hosts[1].trainer
    trainer.rounds = last
    if halt is not None:
        tamper(swarm, 1, lambda event, _: [halt] if isinstance(event, Restored) else None)
    swarm.run_for(12.0)
    assert [round_id for round_id, _ in trainer.history.restored] == [last]
    return swarm


@pytest.mark.parametrize("topology", ["full", "rolling"])
def test_who_was_sent_the_final_state_ends_well(topology: str) -> None:
    checker = AllPeersEnd()
    swarm = given_the_final_state(topology, checker, None)
    assert swarm.hosts[1].halt is not None
    assert checker.judged == 1


@pytest.mark.parametrize("topology", ["full", "rolling"])
def test_one_that_was_sent_it_and_ends_with_an_error_is_caught(topology: str) -> None:
    lost = Halt("quorum lost", QUORUM_LOST)
    text = r"L12 .*peer 1: it was sent the final state, and ends with exit code 5: quorum lost"
    with pytest.raises(Violation, match=text):
        given_the_final_state(topology, AllPeersEnd(), lost)
    given_the_final_state(topology, AllPeersEnd(RunConditions.of(attackers=(1,))), lost)
