"""Scripts that skip batches, and gradients that are not finite, beside crashes and pauses."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
from checked_swarm import record_commits
from effort import effort, in_turn
from test_peer_rolling import assert_one_history, rolling_swarm, settle, shake

from gossip.core import events
from gossip_lab.simulation.checkers import CheckerSuite, every_checker
from gossip_lab.simulation.world.toy_trainer import ToyTrainer

PEERS, BATCH, SAMPLES = 5, 8, 997


@dataclass(eq=False, repr=False)
class DamagedData(ToyTrainer):
    """Skips a fifth of its slices, and has no finite gradient on another fifth."""

    def _contribution(self, draft: Any, go: events.StartRound) -> events.Contributed:
        made = super()._contribution(draft, go)
        lot = random.Random(f"damage/{self.seed}/{self.peer}/{go.round_id}").random()
        if not made.samples or lot >= 0.4:
            return made
        if lot < 0.2:
            return replace(made, samples=0, payloads=(), rates=(), skipped=True)
        return replace(made, payloads=tuple([replace(p, finite=False) for p in made.payloads]))


@in_turn(0)
@pytest.mark.parametrize("seed", range(effort(1, 20)))
def test_no_sample_that_a_script_skips_comes_again(seed: int) -> None:
    swarm = rolling_swarm(PEERS, seed, batch=BATCH, kind=DamagedData)
    swarm.hooks.append(CheckerSuite(every_checker()))
    commits = record_commits(swarm)
    swarm.run_for(1.0)
    shake(swarm, random.Random(seed), ["crash", "pause"], bouts=effort(2, 6))
    settle(swarm)
    assert_one_history(swarm)
    used: set[int] = set()
    seen: set[int] = set()
    over: set[int] = set()
    for _, done in sorted(commits.items()):
        slices = {
            peer: {p for pair in ranges for p in range(*pair)}
            for peer, ranges in done.slices.items()
        }
        assert over.isdisjoint(set().union(*slices.values()))
        named = {each.peer for each in done.commit.contributors}
        reasons = {each.peer: each.reason for each in done.commit.rejected}
        used = used.union(*[slices.get(peer, set()) for peer in named])
        for peer, positions in slices.items():
            if peer in named or reasons.get(peer) == "skipped":
                over |= positions
            elif reasons.get(peer) == "non_finite":
                over |= positions & seen
        seen = seen.union(*slices.values())
    cursor = swarm.hosts[swarm.up[0]].core.rounds.replicated.cursor
    assert len(commits) > 60
    assert used
    assert used < over
    assert len(over) + cursor.remaining == SAMPLES * (cursor.epoch + 1)
