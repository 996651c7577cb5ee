"""A replica that differs from those of most is found by digests that travel with updates, and
replaced; where that does not help, the run ends."""

from __future__ import annotations

import random

import pytest
from effort import effort
from test_ending import toy

from gossip.core import DIVERGED
from gossip.core.messages import Commit, PeerId
from gossip.core.peer import Peer
from gossip.core.settings import CoreSettings, RoundSettings
from gossip.topologies import load
from gossip_lab.simulation.world.driver import Swarm, address
from gossip_lab.simulation.world.toy_trainer import ToyTrainer

PERIOD = 4
HEALED_WITHIN = 12
"""Rounds that a state transfer may take, beside those until the next comparison."""


def swarm_of(
    n: int,
    seed: int,
    corrupted: dict[PeerId, frozenset[int]],
    f: int = 0,
    on_divergence: str = "stop",
    shards: int = 1,
) -> Swarm[Peer]:
    rounds = RoundSettings(on_divergence=on_divergence)  # type: ignore[arg-type]
    settings = CoreSettings(
        b"run-id!!", b"lineage!", seed=seed, peers=tuple(range(n)), f=f, rounds=rounds
    )
    plan = load("rolling" if shards == 1 else f"rolling:shards={shards}")
    seeds = {peer: address(peer, 0) for peer in range(n)}

    def make_core(peer: PeerId, incarnation: int) -> Peer:
        control, bulk = address(peer, incarnation)
        return Peer(peer, incarnation, settings, plan, control=control, bulk=bulk, seeds=seeds)

    def make_trainer(peer: PeerId, incarnation: int) -> ToyTrainer:
        return ToyTrainer(
            peer,
            seed,
            incarnation=incarnation,
            sizes=(8,) * shards,
            compares_every=PERIOD,
            corrupted_in=frozenset() if incarnation else corrupted.get(peer, frozenset()),
        )

    return Swarm(make_core, n, seed, make_trainer=make_trainer)


def reached(swarm: Swarm[Peer], round_id: int) -> bool:
    return all(toy(swarm, peer).next_round >= round_id for peer in swarm.hosts)


def alike_after_the_same_round(swarm: Swarm[Peer]) -> bool:
    """Whether all trainers have the same parameters, if they are in the same round."""
    trainers = [toy(swarm, peer) for peer in swarm.hosts]
    at = {trainer.next_round for trainer in trainers}
    return len(at) == 1 and len({trainer.digest for trainer in trainers}) == 1


@pytest.mark.parametrize("seed", range(effort(12, 200)))
def test_a_flipped_bit_is_found_within_a_period_and_the_replica_is_replaced(seed: int) -> None:
    draw = random.Random(f"flip/{seed}")
    n = draw.choice((3, 4, 5, 8))  # of two, one may miss rounds and take the state of the other
    f = draw.choice((0, 1)) if n >= 4 else 0
    victim, at = draw.randrange(n), draw.randrange(2, 20)
    swarm = swarm_of(n, seed, {victim: frozenset({at})}, f, shards=draw.choice((1, 2)))
    commits = commits_of(swarm)
    if n >= 5 and draw.random() < 0.5:  # of fewer, those with the flipped bit may be most
        swarm.run_until(lambda: reached(swarm, max(1, at - 3)), limit_s=30.0)
        swarm.restart(draw.choice([peer for peer in range(n) if peer != victim]))
    swarm.run_until(lambda: reached(swarm, at + PERIOD + HEALED_WITHIN), limit_s=60.0)
    found = [report for peer in range(n) for report in swarm.reports(peer, "replicas_differ")]
    assert found
    first = min(report.fields["round"] for report in found)
    assert at < first <= at + PERIOD
    assert all(report.fields["peers"] == [victim] for report in found)
    swarm.run_until(lambda: alike_after_the_same_round(swarm), limit_s=60.0)
    last = max(report.fields["round"] for report in found)
    assert last <= at + PERIOD + HEALED_WITHIN
    compared = [c for c in commits() if c.replica and c.round_id > last]
    assert compared, "replicas are compared to the end"
    assert not any(commit.diverged for commit in compared)


def commits_of(swarm: Swarm[Peer]):
    """What gives the commits of the first shard that a peer holds, as far as its log goes."""

    def held() -> list[Commit]:
        log = swarm.cores[0].rounds.log
        last = swarm.cores[0].rounds.round_id
        rounds = [log.get(at) for at in range(last)]
        return [each[0][0] for each in rounds if each]

    return held


@pytest.mark.parametrize(("n", "f"), [(2, 0), (3, 0), (4, 1), (8, 2)])
def test_peers_that_differ_again_without_a_missed_round_end_the_run(n: int, f: int) -> None:
    """More than f of them: their script does it, as a forward pass that changes weights."""
    always = frozenset(range(200))
    swarm = swarm_of(n, 3, dict.fromkeys(range(n - 1), always), f)
    swarm.run_until(lambda: all(core.over for core in swarm.cores.values()), limit_s=60.0)
    assert {host.halt.exit_code for host in swarm.hosts.values()} == {DIVERGED}


def test_of_no_more_than_f_only_they_leave() -> None:
    swarm = swarm_of(5, 3, {2: frozenset(range(400))}, f=1)
    swarm.run_until(lambda: swarm.cores[2].over, limit_s=60.0)
    assert not any(core.over for peer, core in swarm.cores.items() if peer != 2)
    others = [peer for peer in range(5) if peer != 2]
    before = max(toy(swarm, peer).next_round for peer in others)
    swarm.run_until(
        lambda: all(toy(swarm, peer).next_round > before + 20 for peer in others), limit_s=30.0
    )


@pytest.mark.parametrize("policy", ["heal", "warn"])
def test_the_run_goes_on_if_it_is_to(policy: str) -> None:
    swarm = swarm_of(3, 5, {1: frozenset(range(0, 200, 10))}, on_divergence=policy)
    swarm.run_until(lambda: reached(swarm, 60), limit_s=60.0)
    assert not any(core.over for core in swarm.cores.values())
    assert swarm.reports(0, "replicas_differ")
    assert bool(swarm.reports(1, "restored")) == (policy == "heal")
