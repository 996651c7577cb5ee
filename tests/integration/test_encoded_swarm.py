"""Encoded updates between real processes: replicas stay bit-identical, whoever dies or lies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import rotated
from swarm import TRAINER, ProcessSwarm

PEERS, WIDTH = 4, (700, 1700)  # 4.8 MB: two shards
WIDE = TRAINER.replace("torch.nn.Linear(6, 3)", f"torch.nn.Linear{WIDTH}").replace(
    "randn(4, 6)", f"randn(4, {WIDTH[0]})"
)
WIDE = WIDE.replace("lr=0.01", "lr=1e-6")


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Callable[..., ProcessSwarm]]:
    made: list[ProcessSwarm] = []

    def make(**config: Any) -> ProcessSwarm:
        made.append(ProcessSwarm(tmp_path, PEERS, **config))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("encoding", "rule", "trainer"),
    rotated(
        [
            ("topk:0.1", "krum", TRAINER),
            ("powersgd:1", "geometric_median", WIDE),
            ("int4", "trimmed_mean", TRAINER),
        ],
        every=3,
    ),
)
def test_replicas_stay_bit_identical_when_a_peer_dies(
    encoding: str, rule: str, trainer: str, swarm: Callable[..., ProcessSwarm]
) -> None:
    running = swarm(encoding=encoding, aggregator=rule, f=0, trainer=trainer, ahead=6)
    running.wait_round(0, 3)
    os.killpg(running.peers[3].pid, signal.SIGKILL)
    running.wait_round(0, running.now() + 3)
    said = running.finish(0, 1, 2)
    assert len(set(said.values())) == 1, said
    assert said[0].startswith("sum ")
    assert any(commit["digest"] for commit in running.commits(0))
