"""Fragments: which part of a model a round of local steps is on, and what becomes of the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from fragment_setups import EACH_STEP, deep_model, state_of_others
from trainer_fakes import (
    FakeNode,
    FakeNodeSwarm,
    backward,
    echo,
    flat_parameters,
    local_steps,
    prepared_swarm,
    small_model,
    step,
)

from gossip.config import RunConfig, resolve
from gossip.core import events
from gossip.errors import ConfigError, UnsupportedModel
from gossip.faults import plan as fault_plans
from gossip.inject.update_attacks import UpdateAttack
from gossip.ipc import messages as control
from gossip.run import fitting
from gossip.run.checkpoints import Checkpoint
from gossip.training.feedback import UpdateEncoder
from gossip.training.layout import PRESENT, Layout
from gossip.training.local_steps import LocalSteps
from gossip.training.own_state import Loaded, OwnState, load_own, plan_own, write_own
from gossip.training.resuming import check_rounds
from gossip.training.state import StateMismatch
from gossip.vectors import WireFormat, cut_layers, fragment_of, load_encoding

NESTEROV = "nesterov:lr=0.7,momentum=0.9"


# --- the cut --------------------------------------------------------------------------------------


def test_layers_of_one_size_are_dealt_out_in_turn() -> None:
    assert cut_layers([10] * 7, 3) == ((0, 3, 6), (1, 4), (2, 5))


@pytest.mark.parametrize("fragments", [1, 2, 3, 5])
def test_fragments_are_about_equally_large_and_have_each_layer_once(fragments: int) -> None:
    draw = np.random.default_rng(fragments)
    for _ in range(50):
        sizes = draw.integers(0, 1000, size=int(draw.integers(fragments, 30))).tolist()
        dealt = cut_layers(sizes, fragments)
        assert sorted(layer for each in dealt for layer in each) == list(range(len(sizes)))
        assert all(dealt)
        largest = max(sum(sizes[layer] for layer in each) for each in dealt)
        assert largest <= max(max(sizes), 4 / 3 * (sum(sizes) / fragments + max(sizes)))


def test_a_collective_operation_costs_no_fragment_its_turn() -> None:
    """Rounds 1, 3, 5 and 7 are no steps: each of two fragments has its turn all the same."""
    collectives, turns = 0, []
    for round_id in range(8):
        if round_id % 2:
            collectives += 1
        else:
            turns.append(fragment_of(round_id, collectives, 2))
    assert turns == [0, 1, 0, 1]


# --- the layout -----------------------------------------------------------------------------------


def test_updates_of_all_fragments_are_of_one_length_and_zero_behind_their_numbers() -> None:
    model, optimizer = small_model()
    whole = Layout(model, optimizer)
    large, small = whole.cut(2)
    assert [part.names for part in (large, small)] == [
        ("0.weight", "0.bias"),
        ("2.weight", "2.bias"),
    ]
    assert (large.elements, large.trained, large.marks) == (44, 42, 2)
    assert (small.elements, small.trained, small.marks) == (44, 42, 2)
    backward(model, 0)
    update = torch.full((44,), 7.0)
    assert small.flatten_gradients(update)
    own = torch.cat([p.grad.reshape(-1) for p in small.parameters])  # type: ignore[union-attr]
    assert torch.equal(update[: len(own)], own)
    assert (update[len(own) : 42] == 0).all()
    assert (update[42:] == PRESENT).all()


@pytest.mark.parametrize("way", ["scatter_gradients", "point_gradients"])
def test_a_result_moves_the_parameters_of_its_fragment_alone(way: str) -> None:
    model, optimizer = small_model()
    first, second = Layout(model, optimizer).cut(2)
    backward(model, 0)
    result = torch.arange(44, dtype=torch.float32) + 1
    getattr(second, way)(result)
    assert all(parameter.grad is None for parameter in first.parameters)
    flat = torch.cat([p.grad.reshape(-1) for p in second.parameters])  # type: ignore[union-attr]
    assert torch.equal(flat, result[: len(flat)])


def test_a_parameter_without_a_gradient_is_marked_in_its_fragment() -> None:
    model, optimizer = small_model()
    first, _ = Layout(model, optimizer).cut(2)
    backward(model, 0)
    first.parameters[0].grad = None
    update = torch.empty(44)
    first.flatten_gradients(update)
    assert update[42:].tolist() == [0.0, PRESENT]


def test_more_fragments_than_layers_are_refused() -> None:
    model, optimizer = small_model()
    layout = Layout(model, optimizer)
    assert layout.cut(1) == (layout,)
    with pytest.raises(UnsupportedModel, match="3 fragments, and the model has 2 layers") as raised:
        layout.cut(3)
    assert raised.value.hint == "--fragments 2 or fewer; --local-steps must be a multiple of it"


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"local_steps": 30, "fragments": 4}, "not a whole number"),
        ({"fragments": 2}, "not a whole number"),
        ({"local_steps": 4, "fragments": 2, "topology": "random-k"}, "mix all"),
        ({"local_steps": 4, "fragments": 2, "encoding": "powersgd:4"}, "powersgd:4"),
        (
            {"local_steps": 4, "fragments": 2, "aggregator": "centered_clipping"},
            "starts from the last result",
        ),
        ({"local_steps": 4, "fragments": 2, "aggregator": "zeno"}, "the loss of the whole model"),
    ],
)
def test_what_does_not_go_with_fragments_is_refused(options: dict[str, object], said: str) -> None:
    def checked() -> None:
        resolved = resolve({"peers": 4, **options})
        fitting.check(resolved.config)
        fitting.check_rule(resolved)

    with pytest.raises(ConfigError, match=said):
        checked()


def test_a_round_is_on_so_many_steps_fewer() -> None:
    config = RunConfig(local_steps=12, fragments=4)
    assert config.steps_per_round == 3


def test_a_checkpoint_of_other_fragments_is_not_resumed_from(tmp_path: Path) -> None:
    saved = {"local_steps": 4, "outer": NESTEROV}
    for fragments in (1, 2):
        config = RunConfig(local_steps=4, fragments=fragments)
        check_rounds(Checkpoint(8, tmp_path, {**saved, "fragments": fragments}), config)
    with pytest.raises(ConfigError, match="fragments = 1, and this run has 2") as raised:
        check_rounds(Checkpoint(8, tmp_path, saved), RunConfig(local_steps=4, fragments=2))
    assert raised.value.hint == "resume with --fragments 1"


# --- a session ------------------------------------------------------------------------------------


@dataclass
class ByHand:
    """Streaming DiLoCo of one peer, in plain torch: a fragment a round. ``late``: its result comes
    with the next round, and the peer keeps the share ``mixing`` of its own parameters."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    fragments: int
    mixing: float = 0.0
    late: bool = False

    def __post_init__(self) -> None:
        self.anchors = [p.detach().clone() for p in self.model.parameters()]
        self.memory = [torch.zeros_like(anchor) for anchor in self.anchors]
        chosen = Layout(self.model, self.optimizer).cut(self.fragments)
        self.parts = [{id(parameter) for parameter in part.parameters} for part in chosen]
        self.sent: dict[int, torch.Tensor] = {}

    def round(self, number: int) -> None:
        before, part = self.sent, self.parts[number % self.fragments]
        self.sent = {
            at: self.anchors[at] - parameter.detach()
            for at, parameter in enumerate(self.model.parameters())
            if id(parameter) in part
        }
        self.apply(before if self.late else self.sent)

    def apply(self, differences: dict[int, torch.Tensor]) -> None:
        parameters = list(self.model.parameters())
        for at, difference in differences.items():
            self.memory[at] = 0.9 * self.memory[at] + difference
            self.anchors[at] -= 0.7 * (difference + 0.9 * self.memory[at])
            own = self.mixing * parameters[at].detach()
            parameters[at].data.copy_(own + (1.0 - self.mixing) * self.anchors[at])

    @property
    def shared(self) -> torch.Tensor:
        return torch.cat([anchor.reshape(-1) for anchor in self.anchors])


@pytest.mark.parametrize(("fragments", "overlap"), [(1, 0), (2, 0), (4, 0), (2, 1), (4, 1)])
def test_one_peer_trains_as_streaming_diloco_does_by_hand(fragments: int, overlap: int) -> None:
    """With overlap a result comes a round later, and is mixed in."""
    model, optimizer = deep_model()
    twin = ByHand(*deep_model(), fragments, mixing=0.5 * overlap, late=overlap > 0)
    options = {"local_steps": 4, "overlap": overlap, "fragments": fragments, "outer": NESTEROV}
    with FakeNodeSwarm(echo, **options) as swarm:
        swarm.session.prepare(model, optimizer)
        for seed in range(24):
            assert swarm.session.step == seed
            step(model, optimizer, seed)
            step(twin.model, twin.optimizer, seed)
            if (seed + 1) % (4 // fragments) == 0:
                twin.round((seed + 1) // (4 // fragments) - 1)
            assert torch.allclose(flat_parameters(model), flat_parameters(twin.model), atol=1e-5)
        assert swarm.session.round == 6 * fragments - overlap, "one is in flight"
    if overlap:
        twin.apply(twin.sent)
    assert torch.allclose(flat_parameters(model), twin.shared, atol=1e-5), (
        "the end: the shared ones, with every round"
    )


def test_with_overlap_a_collective_operation_mixes_in_what_was_in_flight() -> None:
    def script(n: FakeNode) -> None:
        n.prepared()
        n.offered(0, slot=0)
        n.applied(0, 1, n.arena.updates[0])
        said = n.offered(1, slot=1)
        collected = ((0, said.collective),)
        n.send(control.ApplyCommand(1, -1, 0.0, collected=collected, is_step=False))
        n.expect(control.AppliedReply)
        n.end(2)

    model, optimizer = deep_model()
    twin = ByHand(*deep_model(), 2, mixing=0.5, late=True)
    with FakeNodeSwarm(script, local_steps=4, overlap=1, fragments=2, outer=NESTEROV) as swarm:
        swarm.session.prepare(model, optimizer)
        for seed in range(3):
            step(model, optimizer, seed)
            step(twin.model, twin.optimizer, seed)
            if seed == 1:
                twin.round(0)
        assert swarm.session.mean(loss=1.0)["loss"] == 1.0, "in the middle of a round"
        twin.apply(twin.sent)
        assert torch.allclose(flat_parameters(model), flat_parameters(twin.model), atol=1e-6)


def test_with_overlap_steps_that_are_dropped_leave_those_before_them() -> None:
    """The others went on without this peer: the steps beside that are undone, and what was learnt
    before them stays, but for the fragments of the rounds."""

    def hurries(n: FakeNode) -> None:
        n.first_update()
        # a round that it offered to, and one that it did not
        n.send(control.ApplyCommand(0, -1, 0.0), control.ApplyCommand(1, -1, 0.0))
        n.go(2)
        for _ in range(2):
            n.expect(control.AppliedReply)
        n.halt()

    model, optimizer = deep_model()
    sent = [p.detach().clone() for p in model.parameters()]
    own = []
    with FakeNodeSwarm(hurries, local_steps=4, overlap=1, fragments=4, outer="mean") as swarm:
        swarm.session.prepare(model, optimizer)
        fragments = Layout(model, optimizer).cut(4)
        for seed in range(2):
            step(model, optimizer, seed)
            own.append([p.detach().clone() for p in model.parameters()])
    assert any('"skipped": "overlap"' in line for line in swarm.nodes[0].logs)
    offered = {id(p) for p in fragments[0].parameters}
    for parameter, shared, first, then in zip(model.parameters(), sent, *own, strict=True):
        if id(parameter) in offered:
            assert torch.allclose(then, 0.5 * (shared + first)), "the round was lost"
        else:
            assert torch.equal(then, first)
            assert not torch.equal(then, shared)


def test_a_round_is_sent_with_its_fragment_and_leaves_the_others_where_they_were() -> None:
    model, optimizer = small_model()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    sent = []

    def script(n: FakeNode) -> None:
        said = n.prepared()
        assert (said.elements, said.marks) == (44, 2)
        for round_id in range(2):
            n.offered(round_id, slot=1)
            sent.append(n.arena.updates[1].copy())  # type: ignore[union-attr]
            n.put(1, 0.0 * sent[-1][:42])
            n.send(control.ApplyCommand(round_id, 1, 0.0))
            n.expect(control.AppliedReply)
        n.end(2)

    with FakeNodeSwarm(script, **EACH_STEP) as swarm:
        swarm.session.prepare(model, optimizer)
        step(model, optimizer, 0)
        assert torch.equal(model[0].weight, before["0.weight"]), "all gave nothing: back again"
        moved = model[2].weight.detach().clone()
        assert not torch.equal(moved, before["2.weight"]), "its own steps stay"
        step(model, optimizer, 1)
        assert torch.equal(model[2].weight, before["2.weight"])
        assert not torch.equal(model[0].weight, before["0.weight"])
    first, second = sent
    assert (second[24:42] == 0).all(), "a fragment of 24 numbers"
    assert first[24:42].any()


def test_a_lost_round_costs_the_steps_of_its_fragment_alone() -> None:
    model, optimizer = small_model()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}

    def script(n: FakeNode) -> None:
        n.first_update()
        n.lost(0)
        n.end(1)

    with FakeNodeSwarm(script, **EACH_STEP) as swarm:
        swarm.session.prepare(model, optimizer)
        step(model, optimizer, 0)
        assert torch.equal(model[0].weight, before["0.weight"])
        assert not torch.equal(model[2].weight, before["2.weight"])


def test_a_result_is_of_the_fragment_that_its_round_says_and_not_of_the_one_in_turn_here() -> None:
    """Behind a state that was taken over, rounds are applied before this peer is told how many
    were no steps."""
    model, optimizer = small_model()

    def script(n: FakeNode) -> None:
        n.prepared()
        n.put(1, np.ones(42, np.float32))
        n.send(control.ApplyCommand(0, 1, 0.0))
        n.put(2, np.ones(42, np.float32))
        n.send(control.ApplyCommand(2, 2, 0.0, collectives=1))
        for _ in range(2):
            n.expect(control.AppliedReply)
        n.end(3)

    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    with FakeNodeSwarm(script, **EACH_STEP) as swarm:
        swarm.session.prepare(model, optimizer)
        swarm.session._loop.next_round()
        for name, value in model.named_parameters():
            assert torch.allclose(value, before[name] - 1.0), name


def test_shared_parameters_are_what_a_joining_peer_is_given() -> None:
    model, optimizer = small_model()
    before = flat_parameters(model)
    states = []

    def script(n: FakeNode) -> None:
        n.prepared()
        n.offered(0, slot=1)
        n.applied(0, 1, np.zeros(42, np.float32))
        n.offered(1, slot=1)
        n.send(events.TakeSnapshot())
        said = n.expect(control.Snapshot)
        states.append((said.round_id, n.arena is not None and flat_parameters(model)))
        n.applied(1, 1, np.zeros(42, np.float32))
        n.end(2)

    with FakeNodeSwarm(script, **EACH_STEP) as swarm:
        swarm.session.prepare(model, optimizer)
        step(model, optimizer, 0)
        assert not torch.equal(flat_parameters(model), before)
        step(model, optimizer, 1)
    ((round_id, there),) = states
    assert round_id == 1
    assert torch.equal(there, before)


def test_who_takes_over_a_state_has_none_of_its_own_steps_on_it() -> None:
    model, optimizer = small_model()
    other, other_optimizer = small_model(seed=5)
    state = state_of_others(other, other_optimizer, 8)

    def script(n: FakeNode) -> None:
        n.first_update()
        n.restored(8, state)
        n.end(8)

    with FakeNodeSwarm(script, **EACH_STEP) as swarm:
        swarm.session.prepare(model, optimizer)
        step(model, optimizer, 0)
        assert torch.equal(flat_parameters(model), flat_parameters(other))


def test_the_memory_of_a_sender_is_of_one_fragment() -> None:
    """Momentum 0.5 from zeros: the first update of each fragment is half of its difference."""
    sent = []

    def script(n: FakeNode) -> None:
        n.prepared()
        for round_id in range(3):
            n.offered(round_id, slot=1)
            sent.append(n.arena.updates[1].copy())  # type: ignore[union-attr]
            n.applied(round_id, 1, np.zeros(42, np.float32))
        n.end(3)

    options = {**EACH_STEP, "sender": "momentum:0.5"}
    with prepared_swarm(script, **options) as (swarm, model, optimizer):
        differences = []
        for seed in range(3):
            step(model, optimizer, seed)
        differences = swarm.session._run.model.sender_memory
        assert len(differences) == 2
        assert np.array_equal(differences[1].numpy(), sent[1][:42])  # type: ignore[union-attr]
        assert np.array_equal(differences[0].numpy(), sent[2][:42])  # type: ignore[union-attr]
    assert (sent[2][24:42] != 0).any(), "the first fragment, and not the shorter one"


def test_what_an_encoding_owes_is_of_one_fragment() -> None:
    wire = WireFormat(load_encoding("topk:0.5"), 0, (6,), 4, 2)
    encoder, memory = UpdateEncoder(wire, fragments=2), np.empty(wire.update_bytes[0], np.uint8)

    def offered(round_id: int, *numbers: float) -> list[float]:
        update = np.array([*numbers, PRESENT, PRESENT], np.float32)
        encoder.encode(update, memory, round_id, round_id % 2)
        encoder.settle(round_id, (True,))
        return update[:4].tolist()

    assert offered(0, 4.0, 3.0, 1.0, 0.5) == [4.0, 3.0, 0.0, 0.0]
    assert offered(1, 0.0, 8.0, 9.0, 2.0) == [0.0, 8.0, 9.0, 0.0]
    assert encoder.residual.tolist() == [0.0, 0.0, 1.0, 0.5, 0.0, 0.0, 0.0, 2.0]
    assert offered(2, 0.0, 0.0, 0.0, 0.0) == [0.0, 0.0, 1.0, 0.5], "what the first one is owed"
    assert offered(3, 0.0, 0.0, 0.0, 0.0) == [0.0, 0.0, 0.0, 2.0]
    saved, other = encoder.saved(), UpdateEncoder(wire, fragments=3)
    with pytest.raises(StateMismatch, match="12 numbers"):
        other.load(saved)


def test_an_attack_remembers_what_was_told_of_the_same_fragment() -> None:
    """A stale update is an earlier one of the same part of the model, also where a round between
    was a collective operation."""
    attack = UpdateAttack(fault_plans.parse(("stale:0*1",)), 0, seed=1)
    attack.fragments = 2
    told = []
    for round_id, collectives in ((0, 0), (1, 0), (3, 1), (4, 1)):
        attack.begins(collectives)
        truth = np.full(3, round_id, np.float32)
        told.append(attack.tamper_with(truth, round_id, "update")[0])
    assert told == [0.0, 1.0, 0.0, 1.0]


# --- own parameters -------------------------------------------------------------------------------


def apart() -> tuple[torch.nn.Module, torch.optim.Optimizer, LocalSteps, tuple[Layout, ...]]:
    """A peer that has exchanged its first fragment, and has steps of its own on the second."""
    model, optimizer = small_model()
    layout = Layout(model, optimizer)
    steps = local_steps(layout, optimizer.step, 1, "mean", 2)
    parts = layout.cut(2)
    backward(model, 0)
    steps.step()
    steps.load_update(False)
    steps.mark_exchanged(parts[0].parameters)
    steps.resume_after_round()
    return model, optimizer, steps, parts


def test_steps_of_a_round_are_undone_and_those_before_it_stay() -> None:
    model, _, steps, _ = apart()
    own = flat_parameters(model)
    backward(model, 1)
    steps.step()
    assert not torch.equal(flat_parameters(model), own)
    assert steps.undo_steps() == 1
    assert torch.equal(flat_parameters(model), own)


def test_own_steps_are_on_top_of_what_a_round_has_made_of_the_shared_parameters() -> None:
    model, _, steps, _ = apart()
    own = flat_parameters(model)
    with steps.at_anchor():
        assert not torch.equal(flat_parameters(model), own)
        with steps.at_anchor():  # as a save within a wait
            pass
        assert not torch.equal(flat_parameters(model), own)
    assert torch.equal(flat_parameters(model), own), "nothing was applied: bit for bit"
    with steps.at_anchor(), torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.allclose(flat_parameters(model), own + 1.0, atol=1e-6)
    backward(model, 1)
    steps.step()
    with steps.at_anchor(), torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert steps.undo_steps() == 1
    assert torch.allclose(flat_parameters(model), own + 2.0, atol=1e-6)


def test_own_parameters_are_saved_and_are_there_again(tmp_path: Path) -> None:
    model, optimizer, steps, _ = apart()
    own = flat_parameters(model)
    document = plan_own(model, OwnState(optimizer=optimizer, parameters=steps.own_parameters))
    data = bytearray(document.nbytes)
    document.write(memoryview(data))
    write_own(tmp_path, 3, 8, memoryview(data)[: document.length], keep=1)
    steps.return_to_anchor()
    shared = flat_parameters(model)
    assert not torch.equal(shared, own)
    assert torch.equal(torch.cat([p.reshape(-1) for p in steps.own_parameters]), own), "to save yet"

    again, again_optimizer = small_model(seed=9)
    later = local_steps(Layout(again, again_optimizer), again_optimizer.step, 1, "mean", 2)
    with torch.no_grad():
        for to, of in zip(again.parameters(), model.parameters(), strict=True):
            to.copy_(of)
    loaded = load_own(tmp_path, 3, 8, Loaded(again, again_optimizer, again_optimizer))
    assert loaded.why == ""
    later.load_own(loaded.parameters)
    assert torch.equal(flat_parameters(again), shared), "it joins with what all share"
    later.resume_after_round()
    assert torch.equal(flat_parameters(again), own)
    with pytest.raises(StateMismatch, match="belong to another model"):
        later.load_own(loaded.parameters[1:])
