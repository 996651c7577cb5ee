"""Peers as real processes, of which some lie about the state to whoever comes back."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from test_node_swarm import Swarm, again

pytestmark = pytest.mark.timeout(300)

LIARS = (0, 1)
VICTIM = 5

# Python imports this before anything else, in trainers and in nodes. A liar's node hands out a state of which one bit is another,
# and vouches for that one, as its fellow does.
LIE = f"""
import os
if os.environ.get("GOSSIP_PEER") in {tuple(map(str, LIARS))}:
    import dataclasses
    from gossip.core import donating
    from gossip.core.digests import digests_of
    honest = donating.Donor.on_snapshot

    def on_snapshot(self, event, now):
        state = event.payload.data.copy()
        state[event.parts[0] - 9] ^= 1
        digest, parts = digests_of(state, event.parts)
        payload = dataclasses.replace(event.payload, data=state, digest=digest, parts=parts)
        print("a liar was asked for its state", flush=True)
        return honest(self, dataclasses.replace(event, payload=payload), now)

    donating.Donor.on_snapshot = on_snapshot
"""


def test_two_lying_donors_of_five_mislead_nobody_who_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies = tmp_path / "lies"
    lies.mkdir()
    (lies / "sitecustomize.py").write_text(LIE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(lies), os.environ.get("PYTHONPATH", "")))))
    folder = tmp_path / "run"
    folder.mkdir()
    swarm = Swarm(folder, 6, aggregator="median", f=2)
    try:
        swarm.wait_round(VICTIM, 20)
        victim = swarm.peers[VICTIM]
        os.killpg(victim.pid, signal.SIGKILL)
        victim.communicate()
        environment = {
            **os.environ,
            "GOSSIP_PEER": str(VICTIM),
            "GOSSIP_RUN_DIR": str(folder),
            "GOSSIP_CONFIG": str(folder / "config.json"),
        }
        pipe = subprocess.PIPE
        swarm.peers[VICTIM] = subprocess.Popen(
            victim.args, env=environment, start_new_session=True, stdout=pipe, stderr=pipe, text=True
        )
        restored = swarm.wait(lambda: swarm.events(VICTIM, "restored"), "a state for the returner")
        assert restored[0]["from"] not in LIARS
        assert restored[0]["round"] > 0
        again(swarm, VICTIM, 3)
        assert not swarm.events(VICTIM, "unvouched_state")
        said = swarm.finish(2, 3, 4, VICTIM)
        assert len(set(said.values())) == 1, said
        told = [swarm.peers[liar].communicate(timeout=60)[0] for liar in LIARS]
        assert any("a liar was asked for its state" in out for out in told), "the test proves nothing"
    finally:
        swarm.close()
