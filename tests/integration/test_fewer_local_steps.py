"""Real peers with local steps, one of which is four times slower: it takes fewer, is on time, and
all end at the same step with the same parameters."""

from __future__ import annotations

from pathlib import Path

import ended_runs

SCRIPT = ended_runs.SCRIPT.format(epochs=4, sleep_s=0.02, after_epoch="pass")
SLOW = 2


def test_a_slow_peer_takes_fewer_local_steps_and_every_sample_is_counted(tmp_path: Path) -> None:
    words = ["--outer", "mean", "--local-steps", "10", "--fault", f"slow:{SLOW}*4"]
    ended = ended_runs.run(tmp_path, SCRIPT, *words, peers=3, steps=120)
    assert ended.bodies[SLOW] < min(ended.bodies[0], ended.bodies[1])
    used = [{each["peer"]: each["samples"] for each in row["contributors"]} for row in ended.rounds]
    took_part = [each for each in used if SLOW in each]
    # The first round has no deadline yet: the slow peer may be too late in it.
    assert len(took_part) >= len(used) / 2
    assert sum(each[SLOW] < max(each.values()) for each in took_part) >= len(took_part) / 2
    assert ended.summary["participation"]["mean"] > 0.5
