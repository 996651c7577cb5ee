"""The exact engine of the playground: real cores with peers that learn."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gossip.core import Ledger, events
from gossip.errors import ConfigError, ReplicasDiverged
from gossip.topologies import Roster
from gossip_lab.playground import World, compare
from gossip_lab.playground.learning_trainer import LearningTrainer, RuleRunner, SharedParts
from gossip_lab.playground.moments import Moment
from gossip_lab.playground.parts import Parts
from gossip_lab.playground.promises import UpdateBook, payload_of
from gossip_lab.playground.recorder import Recorder
from gossip_lab.playground.states import ModelState, StateTable
from gossip_lab.playground.tasks import Task
from gossip_lab.playground.world import play_moments

ROUNDS = 6


def moments_of(world: World, rounds: int = ROUNDS) -> list[Moment]:
    return list(itertools.islice(play_moments("exact", world.build()), rounds))


def accuracy_of(world: World, moment: Moment) -> float:
    return float(world.build().task.evaluate(moment.parameters).accuracy.mean())


# --- the same bits in both engines ----------------------------------------------------------------


@pytest.mark.parametrize(("aggregator", "f", "local_steps"), [("mean", 0, 1), ("krum", 1, 5)])
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
    fast = play_moments("fast", replace(parts, task=other))
    found = compare.compare(play_moments("exact", parts), fast, parts, ROUNDS)
    assert found.first_difference == 3
    assert "from round 3 on" in str(found)


def test_the_ledger_of_a_round_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    applied, apply = list[int](), Ledger.apply

    def counted(ledger: Ledger, commits: Any) -> Any:
        applied.append(commits[0].round_id)
        return apply(ledger, commits)

    monkeypatch.setattr(Ledger, "apply", counted)
    moments_of(World(peers=5, model="linear"), 4)
    assert applied == sorted(set(applied)) != []


def test_a_check_cuts_the_world() -> None:
    assert World(peers=100).check(1, peers=4).exact.bytes_sent < 100_000
    with pytest.raises(ConfigError, match="0 rounds"):
        World(peers=4).check(0)


# --- one call for all -----------------------------------------------------------------------------


def counted_updates(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of peers of each call of ``Task.compute_updates``."""
    sizes: list[int] = []
    honest = Task.compute_updates

    def counted(task: Task, parameters: Any, peers: Any, *rest: Any) -> torch.Tensor:
        sizes.append(len(peers))
        return honest(task, parameters, peers, *rest)

    monkeypatch.setattr(Task, "compute_updates", counted)
    return sizes


@pytest.mark.parametrize("topology", ["rolling", "random-k:k=3"])
def test_the_updates_of_a_round_are_computed_in_one_call(
    topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = counted_updates(monkeypatch)
    moments_of(World(peers=8, topology=topology))
    assert sizes == [8] * ROUNDS


@pytest.mark.parametrize("topology", ["rolling", "random-k:k=2"])
def test_the_time_of_a_round_is_that_of_half_of_the_peers(
    topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: dict[int, list[float]] = {}
    record = Recorder.record_state

    def noted(recorder: Any, peer: int, state: ModelState, effect: events.Apply) -> None:
        times.setdefault(effect.round_id, []).append(recorder.swarm.now)
        record(recorder, peer, state, effect)

    monkeypatch.setattr(Recorder, "record_state", noted)
    world = World(peers=6, topology=topology, links="wan", faults=("slow:1*3",))
    for moment in moments_of(world, 5):
        assert moment.virtual_s == sorted(times[moment.rounds - 1])[2]


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


def sources_of(world: World, round_id: int) -> list[list[int]]:
    """Return for each peer the rows of its rule: its own one, and those that it receives."""
    parts, everybody = world.build(), tuple(range(world.peers))
    plan = parts.topology(Roster(everybody, b""), round_id, world.seed)
    return [sorted({peer, *plan.sources(peer)}) for peer in everybody]


@pytest.mark.parametrize("aggregator", ["mean", "self_centered_clipping"])
def test_a_gossip_round_mixes_and_then_steps(aggregator: str) -> None:
    world = World(peers=4, topology="random-k:k=2", aggregator=aggregator, mix_every=1, mixing=0.5)
    first, second = moments_of(world, 2)
    parts = world.build()
    updates = parts.task.compute_updates(first.parameters, np.arange(4), 1)
    for peer, near in enumerate(sources_of(world, 1)):
        here = first.parameters[peer]
        apart, rows = first.parameters[near] - here, updates[near]
        mixed = here + 0.5 * parts.rule.explain(apart, f=0, center=0 * here).aggregate
        assert not torch.equal(mixed, here)
        found = parts.rule.explain(rows, f=0, round_id=1, center=updates[peer].clone())
        expected = mixed - world.lr * found.aggregate
        assert torch.equal(second.parameters[peer], expected)
    assert second.bytes_sent == 2 * 4 * 2 * 2 * 4 * parts.task.cohort.d


def test_an_attacker_of_gossip_rounds_uses_its_true_update_itself() -> None:
    world = World(peers=4, topology="random-k:k=2", faults=("sign_flip:1*10",))
    parts, (moment,) = world.build(), moments_of(world, 1)
    updates = honest_updates(parts)
    for peer, near in enumerate(sources_of(world, 0)):
        rows = [updates[other] * (-10 if other == 1 != peer else 1) for other in near]
        aggregate = parts.rule.explain(torch.stack(rows), f=0).aggregate
        expected = parts.task.cohort.initial - world.lr * aggregate
        assert torch.equal(moment.parameters[peer], expected)


FAILING = """
from gossip.aggregators.base import rule

@rule
def failing(updates, *, round_id):
    if round_id == 2:
        raise ValueError("no")
    return updates.mean(dim=0)
"""


@pytest.mark.parametrize("topology", ["rolling", "random-k:k=2"])
def test_a_round_without_an_aggregate_is_lost(topology: str, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(FAILING)
    world = World(peers=4, topology=topology, aggregator=f"{tmp_path / 'rules.py'}:failing")
    found = moments_of(world, 4)
    assert [each.lost for each in found] == [False, False, True, False]
    if topology == "rolling":
        assert found[2].digest() == found[1].digest() != found[3].digest()


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
    assert not found[2].present[3]
    assert found[-1].present.all()


def test_a_peer_is_present_once_it_has_the_state() -> None:
    found = moments_of(World(peers=5, links="wan", faults=("restart:3@2+0.01s",)), 12)
    used = np.diff([0, *(each.samples for each in found)]) // 16
    there = [bool(each.present[3]) for each in found]
    back = there.index(True, 2)
    assert 2 < back < 10
    assert there == [True] * 2 + [False] * (back - 2) + [True] * (12 - back)
    assert used[back + 1 :].tolist() == [5] * (11 - back)


def test_a_replica_that_returns_with_other_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
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
    ("fault", "least_s", "most_s"), [("slow:1*4", 1.1, 1.4), ("hang:1@2+0.5s", 0.6, 1.4)]
)
def test_faults_take_their_time(fault: str, least_s: float, most_s: float) -> None:
    undisturbed = moments_of(World(peers=4))[-1].virtual_s
    assert 0.3 < undisturbed < 0.4
    assert least_s < moments_of(World(peers=4, faults=(fault,)))[-1].virtual_s < most_s


def test_a_peer_crashes_at_a_time() -> None:
    found = moments_of(World(peers=4, faults=("crash:1@0.1s",)))
    assert [bool(each.present[1]) for each in found] == [each.virtual_s < 0.1 for each in found]
    assert not found[-1].present[1]


@pytest.mark.parametrize("topology", ["rolling", "random-k:k=3"])
def test_peers_come_and_go(topology: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "peer,from_s,to_s\n0,0,\n1,0,\n2,0,1.2123456789\n2,1.6,\n3,0,\n4,0.95,\n5,0,2.4\n5,2.6,\n"
    )
    world = World(
        peers=6, topology=topology, availability=str(trace), faults=("crash:5@35", "crash:4@0.1s")
    )
    found = moments_of(world, 60)
    there = np.array([each.present for each in found])
    assert there[:, [0, 1, 3]].all()
    assert [int(np.diff(there[:, peer]).sum()) for peer in (2, 4, 5)] == [2, 1, 1]
    assert found[-1].present.tolist() == [True] * 5 + [False]
    assert found[-1].virtual_s < 4.0
    used = np.diff([each.samples for each in found]) // world.batch
    assert set(used.tolist()) == {5, 6}


def test_a_world_without_a_peer_at_its_start_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("peer,from_s,to_s\n0,1,\n1,1,\n")
    with pytest.raises(ConfigError, match="no peer is available"):
        moments_of(World(peers=2, availability=str(trace)))


@pytest.mark.parametrize("faults", [("crash:0-3@2",), ("restart:0-3@2+0.5s",)])
def test_a_world_ends_where_nobody_is_left_with_its_state(faults: tuple[str, ...]) -> None:
    played = play_moments("exact", World(peers=4, faults=faults).build())
    with pytest.raises(ConfigError, match="round 2 does not end: 0 of 4"):
        list(itertools.islice(played, 4))


# --- states, promises, the trainer ----------------------------------------------------------------


def test_equal_states_are_one_object_and_others_are_not() -> None:
    task = World(peers=2, local_steps=2).build().task
    table = StateTable(task)
    steps = [events.Apply(0, (payload_of(torch.full((task.cohort.d,), 0.1 * k)),)) for k in (1, 2)]
    a, b, again = (table.apply(table.initial, step) for step in (*steps, steps[0]))
    assert a is again is not b
    assert table.apply(b, steps[0]) is not table.apply(a, steps[0])
    assert table.unpack(a.pack()) is a
    with pytest.raises(ConfigError, match="3 bytes"):
        table.unpack(b"abc")


def test_another_state_of_a_round_has_another_update() -> None:
    parts = World(peers=2, topology="ring").build()
    table, book = StateTable(parts.task), UpdateBook(parts)
    other = table.apply(table.initial, events.Apply(0, (payload_of(table.initial.parameters),)))
    first, second = (book.promise(1, 3, state) for state in (table.initial, other))
    assert book.promise(1, 3, other) is second is not first
    one, another = (book.payload(each).data for each in (first, second))
    assert not np.array_equal(one, another)


def test_a_round_that_begins_again_replaces_the_update_in_computation() -> None:
    parts = World(peers=2).build()
    shared = SharedParts(
        StateTable(parts.task),
        UpdateBook(parts),
        RuleRunner(parts.rule, centered=False),
        parts.task,
        *(0, lambda peer, round_id: 0.05, lambda *recorded: None),
    )
    trainer = LearningTrainer(0, shared)
    (_, old), (_, new) = (trainer.on_effect(events.StartRound(k, None), 0.0)[0] for k in (0, 1))
    assert [trainer.is_still_valid(each) for each in (old, new)] == [False, True]
    assert trainer.on_effect(events.TakeSnapshot(), 0.0) == []
    assert trainer.put_off(old) == ()
    assert trainer.put_off(new) == [events.TakeSnapshot()]


# --- attacks --------------------------------------------------------------------------------------


def first_aggregate(world: World) -> torch.Tensor:
    """Return the aggregate of round 0."""
    moved: torch.Tensor = world.build().task.cohort.initial - moments_of(world, 1)[0].parameters[0]
    return moved / world.lr


def honest_updates(parts: Parts, flipped: list[bool] | None = None) -> torch.Tensor:
    here = parts.task.cohort.initial.expand(parts.peers, -1)
    mask = None if flipped is None else np.array(flipped)
    return parts.task.compute_updates(here, np.arange(parts.peers), 0, mask)


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


def test_updates_that_are_not_finite_lose_no_round() -> None:
    found = moments_of(World(peers=5, faults=("nan:4",)))
    assert not any(each.lost for each in found)
    assert bool(torch.isfinite(found[-1].parameters).all())
    assert np.diff([each.samples for each in found]).tolist() == [4 * 16] * (ROUNDS - 1)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"topology": "random-k:k=2", "faults": ("dissensus:3",)}, "each receiver"),
        ({"topology": "ring", "faults": ("alie:2,4",)}, "rolling rounds only"),
        ({"topology": "ring", "optimizer": "adamw"}, "AdamW"),
    ],
)
def test_what_only_the_fast_engine_plays_is_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        play_moments("exact", World(peers=6, **fields).build())
