"""Real peers that compute beside rounds, one of which is killed and comes back: all end at the same
step with the same parameters, and each sample counts once."""

from __future__ import annotations

from pathlib import Path

import ended_runs

AFTER_EPOCH = "peer.mean(loss=0.0); assert peer.step % len(loader) == 0"
SCRIPT = ended_runs.SCRIPT.format(epochs=6, sleep_s=0, after_epoch=AFTER_EPOCH)


def test_peers_that_compute_beside_rounds_end_alike(tmp_path: Path) -> None:
    words = ["--overlap", "1", "--fault", "restart:2@40+0.1s"]
    ended_runs.run(tmp_path, SCRIPT, *words, peers=3, steps=180)
