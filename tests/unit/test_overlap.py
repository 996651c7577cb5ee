"""Overlap: a peer computes the next update while a round runs, and applies its result one step
later."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from trainer_fakes import (
    FakeNode,
    FakeNodeSwarm,
    backward,
    echo,
    pack_state,
    prepared_swarm,
    same_bits,
    small_model,
    step,
)

from gossip.config import resolve
from gossip.core import events
from gossip.core.ledger.data_cursor import DataCursor
from gossip.core.ledger.prefetch import CursorLookahead
from gossip.errors import ConfigError
from gossip.ipc import messages as control
from gossip.run import fitting
from gossip.training.state import read_packed_state

STEPS = 5


def delayed_steps(steps: int) -> torch.nn.Module:
    """Each gradient is applied behind the backward pass of the next one."""
    model, optimizer = small_model()
    waiting: list[torch.Tensor] = []

    def apply() -> None:
        for parameter, gradient in zip(model.parameters(), waiting, strict=True):
            parameter.grad = gradient
        optimizer.step()

    for seed in range(steps):
        backward(model, seed)
        fresh = [parameter.grad.clone() for parameter in model.parameters()]
        if waiting:
            apply()
        waiting = fresh
    apply()
    return model


def test_a_result_is_applied_behind_the_next_backward_pass() -> None:
    with prepared_swarm(echo, overlap=1) as (swarm, model, optimizer):
        for seed in range(STEPS):
            step(model, optimizer, seed)
            assert swarm.session.step == seed + 1
            assert swarm.session.round == seed, "the last round is in flight"
        swarm.session.close()
        assert swarm.session.round == STEPS
    assert same_bits(model, delayed_steps(STEPS))


def test_the_gradients_of_a_step_stay_the_scripts_own() -> None:
    with prepared_swarm(echo, overlap=1) as (_, model, optimizer):
        step(model, optimizer, 0)
        backward(model, 1)
        own = [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
        kept = [parameter.grad for parameter in model.parameters()]
        assert all(torch.equal(a, b) for a, b in zip(own, kept, strict=True))


def test_the_loop_of_steps_ends_with_every_round_applied() -> None:
    with prepared_swarm(echo, overlap=1) as (swarm, model, optimizer):
        seen = []
        for step in swarm.session.steps(STEPS):
            backward(model, step)
            optimizer.step()
            seen.append(step)
        assert seen == list(range(STEPS))
        assert swarm.session.round == STEPS
        assert same_bits(model, delayed_steps(STEPS))


def test_nothing_is_in_flight_where_a_checkpoint_is_due(tmp_path: Any) -> None:
    with prepared_swarm(echo, overlap=1) as (swarm, model, optimizer):
        behind = []
        for step in swarm.session.steps(6, save=tmp_path / "saved", every=3):
            backward(model, step)
            optimizer.step()
            behind.append(swarm.session.round)
        assert behind == [0, 1, 3, 3, 4, 6]


def test_behind_epochs_without_a_loader_every_round_is_applied() -> None:
    with prepared_swarm(echo, overlap=1) as (swarm, model, optimizer):
        for epoch in swarm.session.epochs(2):
            step(model, optimizer, epoch)
        assert swarm.session.round == 2
        assert same_bits(model, delayed_steps(2))


ONES = np.ones(5 * 7 + 7 + 7 * 3 + 3, np.float32)


@pytest.mark.parametrize("waits", [False, True])
def test_what_was_computed_beside_several_rounds_is_dropped(waits: bool) -> None:
    """The others went on without this peer: its gradient is older than one round."""

    def hurries(node: FakeNode) -> None:
        node.prepared()
        node.go(0)
        node.expect(control.Contribute)
        for slot in range(3):
            node.put(slot, ONES)
        first = 0
        if waits:  # the others go on after the round of this peer is applied
            node.send(control.ApplyCommand(0, 0, 0.0))
            node.expect(control.AppliedReply)
            first = 1
        node.send(*[control.ApplyCommand(at, at, 0.0) for at in range(first, 3)])
        node.go(3)
        for _ in range(first, 3):
            node.expect(control.AppliedReply)
        said = node.expect(control.Contribute)
        assert said.round_id == 3
        node.send(control.ApplyCommand(3, -1, 0.0))
        node.expect(control.AppliedReply)
        node.go(4)
        node.halt()

    with prepared_swarm(hurries, overlap=1) as (swarm, model, optimizer):
        steps = []
        for seed in range(3):
            step(model, optimizer, seed)
            steps.append(swarm.session.step)
    assert steps == [1, 3, 4]
    assert any('"skipped": "overlap"' in line for line in swarm.nodes[0].logs)


class Counter:
    n = 0

    def count(self) -> None:
        self.n += 1

    def state_dict(self) -> dict[str, int]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.n = state["n"]


def test_calls_of_each_step_are_in_the_state_and_stay_behind_a_dropped_step() -> None:
    states = []

    def hurries(node: FakeNode) -> None:
        node.prepared()
        node.go(0)
        node.expect(control.Contribute)
        node.apply(0, 0, ONES)
        node.go(1)
        node.expect(control.AppliedReply)
        node.expect(control.Contribute)
        node.send(events.TakeSnapshot())
        for slot in range(3):
            node.put(slot, ONES)
        node.send(*[control.ApplyCommand(at, at % 3, 0.0) for at in range(1, 4)])
        node.go(4)
        while not isinstance(said := node.next(), control.Contribute):
            if isinstance(said, control.Snapshot):
                data = os.pread(node.fds.pop(0), said.nbytes, 0)
                states.append(read_packed_state(data)["extra"]["counter"])
        node.send(control.ApplyCommand(4, -1, 0.0))
        node.go(5)
        node.expect(control.AppliedReply)
        node.halt()

    with prepared_swarm(hurries, overlap=1) as (swarm, model, optimizer):
        counter = Counter()
        swarm.session.keep(counter=counter)
        swarm.session.each_step(counter.count)
        for seed in range(4):  # the third was computed beside several rounds
            step(model, optimizer, seed)
    assert states == [{"n": 1}]
    assert counter.n == 4


def test_a_node_that_dies_with_an_update_in_flight_has_a_successor_that_gets_it() -> None:
    def dies(node: FakeNode) -> None:
        node.prepared()
        node.go(0)
        node.expect(control.Contribute)

    with prepared_swarm(dies, echo, overlap=1) as (_, model, optimizer):
        for seed in range(STEPS):
            step(model, optimizer, seed)
    assert same_bits(model, delayed_steps(STEPS))


def test_what_was_computed_beside_a_round_is_dropped_where_a_state_of_others_comes() -> None:
    other, other_optimizer = small_model(3)
    state = pack_state(other, other_optimizer, {})

    def replaces(node: FakeNode) -> None:
        node.prepared()
        node.go(0)
        node.expect(control.Contribute)
        node.restore(4, bytes(state))
        node.expect(events.Restored)
        node.go(4)
        said = node.expect(control.Contribute)
        assert said.round_id == 4
        node.apply(4, 0, node.arena.updates[said.slot])
        node.expect(control.AppliedReply)
        node.go(5)
        node.halt()

    with prepared_swarm(replaces, overlap=1) as (swarm, model, optimizer):
        for seed in range(2):  # the second is of parameters that are gone
            step(model, optimizer, seed)
        assert swarm.session.step == 4
        assert same_bits(model, other)
        step(model, optimizer, 2)
        assert swarm.session.step == 5


# --- samples --------------------------------------------------------------------------------------


Slice = tuple[int, int]


def deals(*rounds: tuple[Slice, Slice | None]) -> Callable[[FakeNode], None]:
    """A node that gives out these slices, and says with each what it expects of the next round."""

    def go(node: FakeNode, at: int) -> None:
        has, expected = rounds[at]
        coming = () if expected is None else ((0, (expected,)),)
        node.send(
            control.StartRoundCommand(at, at % 4, True, 0, (has,), False, 1, 1, coming=coming)
        )

    def node(n: FakeNode) -> None:
        n.prepared()
        n.go(0)
        assert n.expect(events.DataConfigured).ahead == 1
        for at in range(len(rounds)):
            go(n, at)
            said = n.expect(control.Contribute)
            n.applied(at, at % 4, n.arena.updates[said.slot])
        n.end(len(rounds), ranges=[(0, 1)], epoch=1)

    return node


def read_all(*rounds: tuple[Slice, Slice | None]) -> tuple[FakeNodeSwarm, list[int], list[int]]:
    """What a loop over one epoch reads, and where its scheduler was behind each step."""
    model, optimizer = small_model()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    data = DataLoader(
        TensorDataset(torch.randn(24, 5), torch.arange(24)), batch_size=4, shuffle=True
    )
    read, rates = [], []
    with FakeNodeSwarm(deals(*rounds), overlap=1) as swarm:
        swarm.session.prepare(model, optimizer)
        swarm.session.keep(scheduler=scheduler)
        for x, _ in swarm.session.shard(data):
            read.append(len(x))
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
            scheduler.step()
            rates.append(scheduler.last_epoch)
    return swarm, read, rates


def offered(swarm: FakeNodeSwarm) -> list[tuple[int, int]]:
    heard = swarm.nodes[0].heard
    return [(said.round_id, said.samples) for said in heard if isinstance(said, control.Contribute)]


def test_a_right_guess_is_read_once_and_offered() -> None:
    swarm, read, steps = read_all(((0, 4), (4, 7)), ((4, 7), (7, 12)), ((7, 12), None))
    assert read == [4, 3, 5]
    assert offered(swarm) == [(0, 4), (1, 3), (2, 5)]
    assert steps == [1, 2, 3]


def test_a_wrong_guess_costs_its_batch_and_no_sample() -> None:
    swarm, read, steps = read_all(((0, 4), (4, 7)), ((4, 6), (6, 12)), ((6, 12), None))
    assert read == [4, 3, 2, 6], "the batch of the guess, and then that of the round"
    assert offered(swarm) == [(0, 4), (1, 2), (2, 6)]
    assert steps == [1, 2, 2, 3], "the scheduler's step behind the dropped one is undone"
    assert any('"skipped": "overlap"' in line for line in swarm.nodes[0].logs)


def test_who_was_missing_last_is_not_expected_in_the_rounds_to_come() -> None:
    cursor = DataCursor(3, 60, 4)
    sharers, absent = (0, 1, 2), frozenset({2})
    lookahead = CursorLookahead()
    lookahead.reach(1)
    guesses = []
    for _ in range(3):
        slices = cursor.assign(sharers)
        if guesses:
            assert guesses[-1] == slices[0]
        ((_, ranges),) = lookahead.predict_rounds(cursor, sharers, 0, absent)
        guesses.append(ranges)
        cursor.commit(sharers, {0: 4, 1: 4})


# --- local steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", ["mean", "nesterov:lr=0.7,momentum=0.9"])
def test_of_a_swarm_of_one_local_steps_learn_the_same_with_overlap_and_without(outer: str) -> None:
    """Its own difference is the aggregate, so nothing is replaced."""
    found = []
    for overlap in (0, 1):
        model, optimizer = small_model()
        with FakeNodeSwarm(echo, overlap=overlap, local_steps=3, outer=outer) as swarm:
            swarm.session.prepare(model, optimizer)
            rounds = []
            for step in swarm.session.steps(12):
                rounds.append(swarm.session.round)
                backward(model, step)
                optimizer.step()
            found.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
        late = [round_id for round_id in (0, 1, 2) for _ in range(3)]
        assert rounds == ([0, 0, 0, *late] if overlap else [*late, 3, 3, 3])
    assert torch.allclose(*found, atol=1e-6)


def test_local_steps_go_on_behind_what_the_swarm_made_of_them() -> None:
    """Another aggregate than the own difference takes its place, when it is applied."""

    def doubles(node: FakeNode) -> None:
        node.prepared()
        node.go(0)
        for at in range(2):
            said = node.expect(control.Contribute)
            node.apply(at, at, 2.0 * node.arena.updates[said.slot])
            node.expect(control.AppliedReply)
            node.go(at + 1, at + 1)
        node.halt()

    model, optimizer = small_model()
    begin = [parameter.detach().clone() for parameter in model.parameters()]
    with FakeNodeSwarm(doubles, overlap=1, local_steps=1, outer="mean") as swarm:
        swarm.session.prepare(model, optimizer)
        ends = []
        for seed in range(2):
            before = [parameter.detach().clone() for parameter in model.parameters()]
            backward(model, seed)
            for parameter in model.parameters():
                parameter.grad.fill_(1.0)
            optimizer.step()  # 0.1 of it, and then with momentum 0.19
            ends.append([a - b for a, b in zip(before, model.parameters(), strict=True)])
        swarm.session.close()
    # first: the own step; then the doubled one takes its place, with the second on top
    for at, parameter in enumerate(begin):
        assert torch.allclose(ends[0][at], torch.full_like(parameter, 0.1), atol=1e-6)
        assert torch.allclose(ends[1][at], torch.full_like(parameter, 0.29), atol=1e-6)
    for parameter, first in zip(model.parameters(), begin, strict=True):
        assert torch.allclose(first - parameter, torch.full_like(first, 0.58), atol=1e-6)


# --- what does not go together --------------------------------------------------------------------


def test_rounds_that_nobody_can_compute_beside_are_refused() -> None:
    with pytest.raises(ConfigError, match="no common result"):
        fitting.check(resolve({"peers": 8, "overlap": 1, "topology": "random-k"}).config)
    judged = resolve({"peers": 8, "overlap": 1, "aggregator": "zeno"})
    with pytest.raises(ConfigError, match="requests the loss"):
        fitting.check_rule(judged)


def test_with_local_steps_nobody_ends_a_round_early() -> None:
    values = {"run": "00" * 8, "f": 0, "slices": "speed", "overlap": 1}
    alone = resolve({**values}).config.settings()
    local = resolve({**values, "local_steps": 10}).config.settings()
    assert (alone.slices, local.slices) == ("speed", "equal")
