"""The exact engine of the playground: real cores with peers that learn."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gossip.errors import ConfigError, ReplicasDiverged
from gossip_lab.playground import World, compare
from gossip_lab.playground.exact import ExactEngine
from gossip_lab.playground.fast import FastEngine
from gossip_lab.playground.moments import Moment
from gossip_lab.playground.parts import Parts
from gossip_lab.playground.states import ModelState, StateTable
from gossip_lab.playground.tasks import Task

ROUNDS = 6


def moments_of(world: World, rounds: int = ROUNDS) -> list[Moment]:
    return list(itertools.islice(ExactEngine(world.build()).moments(), rounds))


def accuracy_of(world: World, moment: Moment) -> float:
    return float(world.build().task.accuracies(moment.parameters).mean())


# --- the same bits in both engines ----------------------------------------------------------------


@pytest.mark.parametrize("local_steps", [1, 5])
@pytest.mark.parametrize(("aggregator", "f"), [("mean", 0), ("trimmed_mean", 2), ("krum", 1)])
def test_both_engines_make_the_same_bits(aggregator: str, f: int, local_steps: int) -> None:
    world = World(peers=8, aggregator=aggregator, f=f, local_steps=local_steps)
    found = world.check(ROUNDS)
    assert found.first_difference is None
    assert found.exact.accuracy == found.fast.accuracy
    assert f"equal in {ROUNDS} rounds" in str(found)


def test_links_and_compute_times_change_no_bits() -> None:
    near = World(peers=6)
    far = replace(near, links="wan", compute="uniform:0.001:0.002")
    assert [each.digest() for each in moments_of(near)] == [
        each.digest() for each in moments_of(far)
    ]


class OneOtherBatch(Task):
    """Peer 2 draws the batch of another round in round 3."""

    def draw_batches(self, peers: Any, round_ids: Any) -> torch.Tensor:
        rounds = np.broadcast_to(round_ids, peers.shape)
        return super().draw_batches(peers, np.where((peers == 2) & (rounds == 3), 99, rounds))


def test_a_check_finds_one_other_batch_in_its_round() -> None:
    parts = World(peers=5).build()
    task = parts.task
    other = OneOtherBatch(
        *(task.cohort, task.data, task.shares, task.batch, task.local_steps, task.lr),
        *(task.outer, task.seed),
    )
    fast = FastEngine(replace(parts, task=other))
    found = compare.compare(ExactEngine(parts), fast, parts, ROUNDS)
    assert found.first_difference == 3
    assert "from round 3 on" in str(found)


def test_a_check_cuts_the_world() -> None:
    assert World(peers=100).check(1, peers=4).exact.bytes_sent < 100_000
    with pytest.raises(ConfigError, match="0 rounds"):
        World(peers=4).check(0)


# --- one call for all -----------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["rolling", "random-k:k=3"])
def test_the_updates_of_a_round_are_computed_in_one_call(
    topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    honest = Task.compute_updates

    def counted(task: Task, parameters: Any, peers: Any, *rest: Any) -> torch.Tensor:
        sizes.append(len(peers))
        return honest(task, parameters, peers, *rest)

    monkeypatch.setattr(Task, "compute_updates", counted)
    moments_of(World(peers=8, topology=topology))
    assert sizes == [8] * ROUNDS


def test_virtual_time_does_not_depend_on_values() -> None:
    slow, fast = (moments_of(World(peers=5, lr=lr)) for lr in (0.01, 0.5))
    assert [each.virtual_s for each in slow] == [each.virtual_s for each in fast]
    assert slow[-1].digest() != fast[-1].digest()


# --- gossip rounds --------------------------------------------------------------------------------


def test_peers_learn_in_gossip_rounds() -> None:
    world = World(peers=6, topology="random-k:k=3", local_steps=5)
    first, *_, last = moments_of(world, 20)
    assert accuracy_of(world, first) < 0.5 < 0.8 < accuracy_of(world, last)
    rows = {row.numpy().tobytes() for row in last.parameters}
    assert len(rows) == 6  # each peer has its own


def test_a_gossip_round_mixes_and_then_steps() -> None:
    # All in one: with k = n - 1 each peer gets all updates, and in round 0 all parameters.
    world = World(peers=4, topology="random-k:k=3", mix_every=1, mixing=0.5)
    first, second = moments_of(world, 2)
    parts = world.build()
    rows = [row.clone() for row in first.parameters]
    updates = parts.task.compute_updates(torch.stack(rows), np.arange(4), 1)
    for peer, here in enumerate(rows):
        apart = torch.stack([other - here for other in rows])
        mixed = here + 0.5 * parts.rule.explain(apart, f=0).aggregate
        expected = mixed - world.lr * parts.rule.explain(updates, f=0).aggregate
        assert torch.equal(second.parameters[peer], expected)
    assert second.bytes_sent == 2 * 4 * 3 * 2 * 4 * parts.task.cohort.d


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["rolling", "random-k:k=3"])
def test_the_others_survive_a_crash(topology: str) -> None:
    world = World(peers=5, topology=topology, faults=("crash:3@2",))
    found = moments_of(world)
    assert [bool(each.present[3]) for each in found] == [True, True, *[False] * 4]
    assert all(each.present[[0, 1, 2, 4]].all() for each in found)
    used = np.diff([0, *(each.samples for each in found)]) // world.batch
    assert used.tolist() == [5, 5, 4, 4, 4, 4]
    if topology != "rolling":
        assert torch.equal(found[1].parameters[3], found[-1].parameters[3])


def test_a_restarted_peer_returns_with_the_state_of_the_swarm() -> None:
    world = World(peers=5, local_steps=2, faults=("restart:3@2+0.1s",))
    found = moments_of(world, 12)
    used = np.diff([0, *(each.samples for each in found)]) // (world.batch * 2)
    assert used[1] == 5 > used[3]
    assert used[-1] == 5
    assert found[-1].present.all()


def test_a_replica_that_returns_with_another_state_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = StateTable.unpack

    def one_bit_off(table: StateTable, packed: bytes) -> ModelState:
        return honest(table, bytes([packed[0] ^ 1, *packed[1:]]))

    monkeypatch.setattr(StateTable, "unpack", one_bit_off)
    with pytest.raises(ReplicasDiverged, match="peer 3"):
        moments_of(World(peers=5, faults=("restart:3@2+0.1s",)), 12)


def test_a_restarted_peer_returns_to_gossip_rounds() -> None:
    world = World(peers=5, topology="random-k:k=3", faults=("restart:3@2+0.1s",))
    found = moments_of(world, 12)
    assert not found[2].present[3]
    assert found[-1].present.all()
    initial = world.build().task.cohort.initial
    apart = (found[-1].parameters - found[-1].parameters[0]).norm(dim=1)
    assert apart[3] < 0.2 * (found[-1].parameters[0] - initial).norm()


@pytest.mark.parametrize(
    ("fault", "least_s", "most_s"),
    [("slow:1*4", 1.1, 1.4), ("hang:1@2+0.5s", 0.6, 1.4), ("crash:1@0.1s", 0.3, 0.6)],
)
def test_faults_take_their_time(fault: str, least_s: float, most_s: float) -> None:
    undisturbed = moments_of(World(peers=4))[-1].virtual_s
    assert 0.3 < undisturbed < 0.4
    assert least_s < moments_of(World(peers=4, faults=(fault,)))[-1].virtual_s < most_s


# --- attacks --------------------------------------------------------------------------------------


def first_aggregate(world: World) -> torch.Tensor:
    """Return the aggregate of round 0."""
    moved: torch.Tensor = world.build().task.cohort.initial - moments_of(world, 1)[0].parameters[0]
    return moved / world.lr


def honest_updates(parts: Parts, flipped: list[bool] | None = None) -> torch.Tensor:
    here = parts.task.cohort.initial.expand(parts.peers, -1)
    mask = None if flipped is None else np.array(flipped)
    return parts.task.compute_updates(here, np.arange(parts.peers), 0, mask)


def test_an_attack_changes_the_updates_of_its_peers_alone() -> None:
    world = World(peers=5, faults=("sign_flip:1,3*10",))
    updates = honest_updates(world.build())
    updates[[1, 3]] *= -10
    torch.testing.assert_close(first_aggregate(world), updates.mean(dim=0), atol=1e-6, rtol=1e-4)


def test_colluding_peers_know_the_honest_updates_of_their_round() -> None:
    from gossip.aggregators import attacks

    world = World(peers=6, faults=("alie:2,4",))
    updates = honest_updates(world.build())
    honest = updates[[0, 1, 3, 5]]
    updates[[2, 4]] = attacks.make("alie").collude(honest, 2, own=updates[[2, 4]])
    torch.testing.assert_close(first_aggregate(world), updates.mean(dim=0), atol=1e-6, rtol=1e-4)


def test_peers_with_flipped_labels_learn_something_else() -> None:
    world = World(peers=4, faults=("label_flip:2",))
    updates = honest_updates(world.build(), [False, False, True, False])
    torch.testing.assert_close(first_aggregate(world), updates.mean(dim=0), atol=1e-6, rtol=1e-4)
    assert not torch.equal(updates[2], honest_updates(world.build())[2])


def test_attackers_get_into_quarantine() -> None:
    world = World(peers=7, aggregator="trimmed_mean", f=2, faults=("sign_flip:5,6*10",))
    first, *_, last = moments_of(world, 20)
    assert first.quarantined.tolist() == [0] * 7
    assert last.quarantined.tolist() == [0, 0, 0, 0, 0, 5, 5]


def test_updates_that_are_not_finite_lose_no_round() -> None:
    found = moments_of(World(peers=5, faults=("nan:4",)))
    assert not any(each.lost for each in found)
    assert bool(torch.isfinite(found[-1].parameters).all())
    assert np.diff([each.samples for each in found]).tolist() == [4 * 16] * (ROUNDS - 1)


def test_an_attack_on_single_receivers_is_refused() -> None:
    with pytest.raises(ConfigError, match="each receiver"):
        ExactEngine(World(peers=4, topology="random-k:k=2", faults=("dissensus:3",)).build())
