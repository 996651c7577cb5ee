"""Real peers that compute beside rounds, one of which is killed and comes back: all end at the same
step with the same parameters, and each sample counts once."""

from __future__ import annotations

from pathlib import Path

import ended_runs

AFTER_EPOCH = "peer.mean(loss=0.0); assert peer.step % len(loader) == 0"
PAUSE = """
import os
from pathlib import Path

with Path("began-" + os.environ["GOSSIP_PEER"]).open("a") as file:
    file.write(".")

def pause(peer, bodies):
    \"\"\"In their third epoch the others wait for the second start of peer 2, and go slowly then:
    it is back in the middle of an epoch, on any machine.\"\"\"
    while bodies == 62 and peer.id != 2 and Path("began-2").stat().st_size < 2:
        time.sleep(0.01)
    return 0.03 if 62 <= bodies < 80 and peer.id != 2 else 0.0
"""
SCRIPT = PAUSE + ended_runs.SCRIPT.format(
    epochs=6, sleep_s="pause(peer, bodies)", after_epoch=AFTER_EPOCH
)


def test_peers_that_compute_beside_rounds_end_alike(tmp_path: Path) -> None:
    words = ["--overlap", "1", "--fault", "restart:2@40+0.1s"]
    ended_runs.run(tmp_path, SCRIPT, *words, peers=3, steps=180)
