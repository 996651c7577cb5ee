"""The checker that sees who stays on the smaller side of a fork, with planted violations."""

from __future__ import annotations

import pytest
from checked_swarm import checked_swarm

from gossip.core.events import Received
from gossip.core.messages import PeerId, Update
from gossip.core.peer import Peer
from gossip_lab.simulation.checkers import CheckerSuite, Violation
from gossip_lab.simulation.checkers.liveness.branches import LargerBranchWins
from gossip_lab.simulation.world.driver import Swarm

OTHER = bytes(range(16))
"""H of a round that nobody has had here."""


def forked(f: int = 0) -> tuple[Swarm[Peer], LargerBranchWins]:
    checker = LargerBranchWins()
    swarm = checked_swarm(CheckerSuite([checker]), n=5, f=f, compute_s=0.5)
    swarm.run_until(
        lambda: all(core.rounds.round_id == 2 for core in swarm.cores.values()), limit_s=5.0
    )
    return swarm, checker


def receive_report(swarm: Swarm[Peer], peer: PeerId, sender: PeerId) -> None:
    """``peer`` is sent an update of its present round from the other branch."""
    rounds = swarm.cores[peer].rounds
    update = Update(b"lineage!", rounds.round_id, 0, 0, OTHER, 0, 0.0, (), 0)
    swarm.inject(peer, Received(sender, 0, update))


@pytest.mark.parametrize("f", [0, 1])
def test_l5_one_that_stays_on_the_smaller_side_of_a_fork_is_caught(f: int) -> None:
    swarm, checker = forked(f)
    swarm.cores[0]._recover = lambda donor, reason, now: []  # type: ignore[method-assign]
    receive_report(swarm, 0, 1)  # as many on either side, and one may lie
    assert checker.judged == 1
    with pytest.raises(
        Violation,
        match=(
            r"L5 .*, peer 0: stays in round 2 with \[0\], although peers \[1, 2\] have reported "
            r"another"
        ),
    ):
        receive_report(swarm, 0, 2)


def test_l5_one_that_changes_over_is_not() -> None:
    swarm, checker = forked(f=1)
    phases = []
    for sender in (1, 2):
        receive_report(swarm, 0, sender)
        phases.append(swarm.cores[0].phase)
    assert phases == ["running", "recovering"]
    assert checker.judged == 1
