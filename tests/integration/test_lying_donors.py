"""Peers as real processes, of which some lie about the state to whoever comes back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from swarm import ProcessSwarm, again

pytestmark = pytest.mark.timeout(300)

ATTACKERS = (0, 1)
VICTIM = 5


def test_two_lying_donors_of_five_mislead_nobody_who_is_killed_and_started_again(
    tmp_path: Path,
) -> None:
    swarm = ProcessSwarm(tmp_path, 6, aggregator="median", f=2, faults=("wrong_states:0,1",))
    try:
        swarm.wait_round(VICTIM, 20)
        os.killpg(swarm.peers[VICTIM].pid, signal.SIGKILL)
        swarm.start_again(VICTIM, 1)
        restored = swarm.wait(lambda: swarm.events(VICTIM, "restored"), "a state for the returner")
        assert restored[0]["from"] not in ATTACKERS
        assert restored[0]["round"] > 0
        again(swarm, VICTIM, 3)
        assert not swarm.events(VICTIM, "unattested_state")
        said = swarm.finish(2, 3, 4, VICTIM)
        assert len(set(said.values())) == 1, said
        assert any(swarm.events(attacker, "fault") for attacker in ATTACKERS), (
            "the test proves nothing"
        )
    finally:
        swarm.close()
