"""The end of a training in gossip rounds (L12): everybody comes to it, whatever disturbs them."""

from __future__ import annotations

import pytest
from checked_swarm import tamper
from test_checkers import each
from test_peer_gossip import gossip_swarm, run_to

from gossip.core import QUORUM_LOST
from gossip.core.events import Apply, StateConfirmed
from gossip.core.settings import RoundSettings
from gossip.simulation.campaign import last_gossip_round
from gossip.simulation.campaign.last_gossip_round import play_gossip_end
from gossip.simulation.checkers import EverybodyEnds, Violation


@pytest.mark.parametrize("topology", ["full", "random_k"])
@pytest.mark.parametrize("seed", range(6))
def test_all_end_whoever_is_slow_stands_still_or_comes_back(topology: str, seed: int) -> None:
    swarm, checker = gossip_swarm(4, seed, topology), EverybodyEnds()
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
        assert halt is not None
        assert halt.exit_code == QUORUM_LOST
    assert "2 peers are left, and none of them gives a state" in str(swarm.hosts[0].halt)


@pytest.mark.parametrize("lost", [StateConfirmed, Apply])
def test_one_that_waits_for_ever_is_caught(lost: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_gossip_round, "DISTURBED", 0.0)
    swarm = gossip_swarm(3, 1, "full")
    run_to(swarm, 5)
    tamper(swarm, 1, each(lost, lambda effect: []))
    with pytest.raises(Violation, match=r"L12 .*peer 1: it has not ended .* running in round"):
        play_gossip_end(swarm, EverybodyEnds())
