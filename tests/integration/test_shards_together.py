"""A model of several shards under a rule that decides for all of them together,
as real processes over ZeroMQ."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import effort
from swarm import TRAINER, ProcessSwarm

from gossip.vectors.sharding import shard_sizes

pytestmark = pytest.mark.timeout(300)

PEERS, LINEAR = 5, (1100, 1000)
ELEMENTS = LINEAR[0] * LINEAR[1] + LINEAR[1]
WIDE = TRAINER.replace("torch.nn.Linear(6, 3)", f"torch.nn.Linear{LINEAR}").replace(
    "randn(4, 6)", f"randn(4, {LINEAR[0]})"
)
WIDE = WIDE.replace("lr=0.01", "lr=1e-7")


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Callable[..., ProcessSwarm]]:
    made: list[ProcessSwarm] = []

    def make(**config: Any) -> ProcessSwarm:
        made.append(ProcessSwarm(tmp_path, PEERS, trainer=WIDE, ahead=6, **config))
        return made[-1]

    yield make
    for each in made:
        each.close()


def by_round(swarm: ProcessSwarm) -> dict[int, dict[int, dict[str, Any]]]:
    """Commits by round and shard, whoever made them."""
    found: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
    for peer in range(swarm.n):
        for commit in swarm.commits(peer):
            found[commit["round"]][commit["shard"]] = commit
    return found


@pytest.mark.parametrize(
    ("rule", "f"), effort([("centered_clipping", 1)], [("centered_clipping", 1), ("krum", 0)])
)
def test_replicas_stay_bit_identical_and_all_shards_are_of_one_decision(
    rule: str, f: int, swarm: Callable[..., ProcessSwarm]
) -> None:
    sizes = shard_sizes(ELEMENTS, PEERS, whole_vector=True, cross_shard=True)
    assert len(sizes) == 3, "a short one, which everybody waits for, and two of the rest"
    running = swarm(aggregator=rule, f=f)
    running.wait_round(0, 3)
    victim = 4
    os.killpg(running.peers[victim].pid, signal.SIGKILL)
    running.wait_round(0, running.now() + 3)
    said = running.finish(0, 1, 2, 3)
    assert len(set(said.values())) == 1, said
    assert said[0].startswith("sum ")
    rounds = by_round(running)
    used = 0
    for number, shards in sorted(rounds.items()):
        changed = [commit for commit in shards.values() if commit.get("digest")]
        told = {json.dumps(commit["contributors"], sort_keys=True) for commit in changed}
        assert len(told) <= 1, f"round {number}: {told}"
        used += len(changed) == len(sizes)
    assert used >= len(rounds) - 2, (
        f"{used} rounds of {len(rounds)} changed anything, and one peer died"
    )
    assert used >= 6
