"""An update whose round becomes a collective operation of other peers: the parameters are as they
were, so it is offered to the next round. Nothing of it is lost, and nothing counts twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fragment_setups import EACH_STEP, IN_FLIGHT, deep_model, state_of_others
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset
from trainer_fakes import (
    FakeNode,
    FakeNodeSwarm,
    echo,
    flat_parameters,
    prepared_swarm,
    small_model,
    step,
)

from gossip.core import events
from gossip.ipc import messages as control
from gossip.training import UpdateEncoder
from gossip.training.collectives import pack_object, packed
from gossip.training.layout import Layout
from gossip.training.session import Session
from gossip.vectors import WireFormat, load_encoding

Told = list[tuple[control.Contribute, np.ndarray]]
Offers = list[tuple[int, int]]
GIVEN = packed((13, 0, "mean"), pack_object({"a": 1.0}), 4096)
"""By another peer, at a place of its script."""


def is_over(n: FakeNode, round_id: int) -> None:
    """It was a collective operation of others."""
    n.send(control.ApplyCommand(round_id, -1, 0.0, collected=((1, GIVEN),), is_step=False))
    n.expect(control.AppliedReply)


def interrupted(*operations: int, told: Told, steps: int = 4) -> Callable[[FakeNode], None]:
    """A swarm of one, in which others make collective operations of these rounds. ``told``: each
    answer, with what was in its slot then."""

    def node(n: FakeNode) -> None:
        n.prepared()
        done = collectives = 0
        n.go(0)
        while done < steps:
            round_id = done + collectives
            said = n.expect(control.Contribute)
            assert said.round_id == round_id
            told.append((said, n.arena.updates[said.slot].copy()))
            if round_id in operations:
                is_over(n, round_id)
                collectives += 1
            else:
                if said.samples:
                    n.apply(round_id, round_id % 4, n.arena.updates[said.slot])
                else:
                    n.send(control.ApplyCommand(round_id, -1, 0.0))
                n.expect(control.AppliedReply)
                done += 1
            following = done + collectives
            n.go(following, following % 4, collectives=collectives)
        n.halt()

    return node


def offered(told: Told) -> Offers:
    return [(said.round_id, said.samples) for said, _ in told]


def noted_states(peer: Session) -> list[dict[str, Any]]:
    """What is beside the model in the states that it gives from now on."""
    states: list[dict[str, Any]] = []
    extra = peer._run.model.extra
    now = extra.now

    def noted() -> dict[str, Any]:
        states.append(now())
        return states[-1]

    extra.now = noted  # type: ignore[method-assign]
    return states


def halving(optimizer: torch.optim.Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda at: 0.5**at)


@pytest.mark.parametrize("slices", ["speed", "equal"])
@pytest.mark.parametrize("operations", [(2,), (1, 2, 4), (0,)])
def test_local_steps_whose_round_is_an_operation_of_others_count_in_the_next_round(
    operations: tuple[int, ...], slices: str
) -> None:
    """The scheduler, the number of the step and the model are where they would be without it."""
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()
    scheduler = halving(optimizer)
    told: Told = []
    script = interrupted(*operations, told=told)
    with FakeNodeSwarm(script, local_steps=4, outer="mean", slices=slices) as swarm:
        peer = swarm.session
        peer.keep(scheduler=scheduler)
        peer.prepare(model, optimizer)
        for at in range(16):
            assert peer.step == at
            step(model, optimizer, at)
            scheduler.step()
        assert (peer.step, peer.round) == (16, 4 + len(operations))
        assert scheduler.last_epoch == 16
    with FakeNodeSwarm(echo, local_steps=4, outer="mean") as swarm:
        other = halving(twin_optimizer)
        swarm.session.prepare(twin, twin_optimizer)
        for at in range(16):
            step(twin, twin_optimizer, at)
            other.step()
    assert torch.equal(flat_parameters(model), flat_parameters(twin))
    assert [said.steps for said, _ in told] == [(4, 4)] * (4 + len(operations))
    for round_id in operations:
        assert np.array_equal(told[round_id][1], told[round_id + 1][1])


def test_a_single_step_is_offered_again_and_not_made_again() -> None:
    model, optimizer = small_model()
    scheduler = halving(optimizer)
    told: Told = []
    seen = []
    with FakeNodeSwarm(interrupted(1, told=told)) as swarm:
        peer = swarm.session
        peer.keep(scheduler=scheduler)
        peer.prepare(model, optimizer)
        for at in peer.steps(4):
            seen.append(at)
            step(model, optimizer, at)
            scheduler.step()
        assert scheduler.last_epoch == peer.step == 4
    assert seen == [0, 1, 2, 3]
    assert [each for each in offered(told) if each[0] < 5] == [(at, 1) for at in range(5)]
    assert told[2][0].lasted_us > 0, "it was computed before its round began"
    assert told[1][0].lasted_us == 0


def test_a_round_that_is_passed_is_passed_where_it_is_a_step() -> None:
    told: Told = []
    seen = []
    with prepared_swarm(interrupted(1, told=told, steps=3)) as (swarm, model, optimizer):
        for at in swarm.session.steps(3):
            seen.append(at)
            if at != 1:
                step(model, optimizer, at)
    assert seen == [0, 1, 2]
    assert offered(told) == [(0, 1), (1, 0), (2, 0), (3, 1)]


# --- samples --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranges", [[(0, 4)], [(0, 2), (8, 10)], [(4, 8)]])
def test_samples_that_others_have_now_are_not_offered_again(ranges: list[tuple[int, int]]) -> None:
    """Somebody has come or gone meanwhile. The steps were taken, and count as such."""
    model, optimizer = small_model()
    before = flat_parameters(model)
    scheduler = halving(optimizer)
    told: list[control.Contribute] = []

    def script(n: FakeNode) -> None:
        n.sharded()
        n.go(0, ranges=[(0, 4)])
        told.append(n.expect(control.Contribute))
        is_over(n, 0)
        n.go(1, 1, ranges=ranges, collectives=1)
        told.append(n.expect(control.Contribute))
        n.lost(1)
        n.end(2, ranges=[(16, 20)], epoch=1, collectives=1)

    with FakeNodeSwarm(script, local_steps=2, outer="mean") as swarm:
        peer = swarm.session
        peer.keep(scheduler=scheduler)
        loader = peer.shard(TensorDataset(torch.arange(16)), batch_size=2)
        peer.prepare(model, optimizer)
        for at, _ in enumerate(loader):
            step(model, optimizer, at)
            scheduler.step()
        assert scheduler.last_epoch == peer.step == 2
    same = ranges == [(0, 4)]
    assert [each.samples for each in told] == [4, 4 if same else 0]
    assert any('"skipped": "slice"' in line for line in swarm.nodes[0].logs) is not same
    assert torch.equal(flat_parameters(model), before), "no result came"


# --- what comes between ---------------------------------------------------------------------------


def test_who_is_late_for_the_operation_and_the_next_has_one_round_behind() -> None:
    model, optimizer = small_model()
    scheduler = halving(optimizer)
    rounds: list[int] = []

    def script(n: FakeNode) -> None:
        n.prepared()
        n.go(0)
        rounds.append(n.expect(control.Contribute).round_id)
        n.send(
            control.ApplyCommand(0, -1, 0.0, collected=((1, GIVEN),), is_step=False),
            control.ApplyCommand(1, -1, 0.0, collectives=1),
        )
        for _ in range(2):
            n.expect(control.AppliedReply)
        n.go(2, 1, collectives=1)
        rounds.append(n.expect(control.Contribute).round_id)
        n.send(control.ApplyCommand(2, -1, 0.0, collectives=1))
        n.expect(control.AppliedReply)
        n.end(3, 2, collectives=1)

    with FakeNodeSwarm(script, local_steps=3, outer="mean") as swarm:
        peer = swarm.session
        peer.keep(scheduler=scheduler)
        peer.prepare(model, optimizer)
        for at in range(6):
            assert peer.step == at
            step(model, optimizer, at)
            scheduler.step()
        assert peer.step == scheduler.last_epoch == 6
    assert rounds == [0, 2]


def test_a_node_that_dies_behind_the_operation_has_a_successor_that_gets_the_update() -> None:
    seen: list[np.ndarray] = []

    def dies(n: FakeNode) -> None:
        said = n.first_update()
        seen.append(n.arena.updates[said.slot].copy())  # type: ignore[union-attr]
        is_over(n, 0)

    def succeeds(n: FakeNode) -> None:
        told = n.prepared()
        assert (told.round_id, told.collectives) == (1, 1)
        said = n.offered(1, 2, collectives=1)
        assert said.steps == (2, 2)
        seen.append(n.arena.updates[said.slot].copy())  # type: ignore[union-attr]
        n.apply(1, 1, n.arena.updates[said.slot])  # type: ignore[union-attr]
        n.expect(control.AppliedReply)
        n.end(2, collectives=1)

    with prepared_swarm(dies, succeeds, local_steps=2, outer="mean") as (swarm, model, optimizer):
        for at in range(2):
            step(model, optimizer, at)
        assert swarm.session.step == 2
    before, after = seen
    assert np.array_equal(before, after)


@pytest.mark.parametrize("round_id", [1, 5])
def test_a_state_of_others_behind_the_operation_ends_what_was_offered(round_id: int) -> None:
    model, optimizer = deep_model(momentum=0.0)
    told: Told = []
    theirs, their_optimizer = deep_model(momentum=0.0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1)
    following = 2 * (round_id - 1)
    state = state_of_others(theirs, their_optimizer, following)

    def script(n: FakeNode) -> None:
        said = n.first_update()
        told.append((said, n.arena.updates[0].copy()))  # type: ignore[union-attr]
        is_over(n, 0)
        n.restored(round_id, state)
        n.end(round_id, 1, collectives=1)

    with FakeNodeSwarm(script, local_steps=2, outer="mean") as swarm:
        swarm.session.prepare(model, optimizer)
        for at in range(2):
            step(model, optimizer, at)
        assert swarm.session.step == following
        assert torch.equal(flat_parameters(model), flat_parameters(theirs))
    assert len(told) == 1


# --- what is made of an update --------------------------------------------------------------------


def test_the_momentum_of_a_sender_has_an_update_once() -> None:
    memories = []
    for script in (interrupted(0, 2, told=[]), interrupted(told=[])):
        model, optimizer = small_model()
        with FakeNodeSwarm(script, local_steps=2, outer="mean", sender="momentum:0.9") as swarm:
            swarm.session.prepare(model, optimizer)
            for at in range(8):
                step(model, optimizer, at)
            memories.append(swarm.session._run.model.sender_memory)
    ours, theirs = [memory[0] for memory in memories if memory is not None]
    assert ours is not None
    assert theirs is not None
    assert torch.equal(ours, theirs)


SPECS = ("topk:0.1", "powersgd:1", "powersgd:1,feedback=off", "int8")


@pytest.mark.parametrize("spec", SPECS)
def test_an_update_is_written_anew_for_the_round_that_it_is_offered_to(spec: str) -> None:
    """As it would have been written for that in the first place: what an encoding draws, and so
    what others decode, is of the round."""
    wire = WireFormat(load_encoding(spec), 1, (40, 56), 96, 4, ((8, 11), (8,)))
    gradient = np.random.default_rng(5).standard_normal(96).astype(np.float32)

    def written(*rounds: int) -> tuple[np.ndarray, np.ndarray, UpdateEncoder]:
        encoder, memory = UpdateEncoder(wire, 2), np.zeros(sum(wire.update_bytes), np.uint8)
        if wire.encoding.feedback:
            encoder.load(torch.full((2 * 96,), 0.25))
        update = gradient.copy()
        encoder.encode(update, memory, rounds[0], fragment=1)
        for round_id in rounds[1:]:
            encoder.encode_again(update, memory, round_id)
        encoder.settle(rounds[-1], (True, True))
        return update, memory, encoder

    update, _, encoder = written(3, 4, 5)
    at_once, _, theirs = written(5)
    assert np.allclose(update, at_once, atol=1e-5)
    owed, theirs_owed = encoder.saved(), theirs.saved()
    assert (owed is None) is (theirs_owed is None) is (not wire.encoding.feedback)
    if owed is not None and theirs_owed is not None:
        assert torch.allclose(owed, theirs_owed, atol=1e-5)


# --- with overlap, and in fragments ---------------------------------------------------------------


@pytest.mark.parametrize("options", [{"local_steps": 2, "outer": "mean"}, {}, IN_FLIGHT])
def test_with_overlap_what_is_in_flight_and_computed_beside_counts(options: dict[str, Any]) -> None:
    every = options.get("local_steps", 1) // options.get("fragments", 1) or 1
    models = []
    for operations in ((1, 2), ()):
        model, optimizer = deep_model()
        told: Told = []
        script = interrupted(*operations, told=told, steps=6)
        with FakeNodeSwarm(script, **{"overlap": 1, **options}) as swarm:
            peer = swarm.session
            peer.prepare(model, optimizer)
            scheduler = halving(optimizer)
            for at in range(6 * every):
                assert peer.step == at
                step(model, optimizer, at)
                scheduler.step()
            peer._rounds.drain()
            assert peer.step == 6 * every
        assert not any("skipped" in line for line in swarm.nodes[0].logs)
        assert len(told) == 6 + len(operations)
        models.append(flat_parameters(model))
        if operations:
            assert told[1][0].rates == told[2][0].rates == told[3][0].rates, "as of its step"
    assert torch.equal(*models)


def test_a_state_that_is_copied_while_an_update_is_offered_again_is_that_before_its_step() -> None:
    """With overlap what the script does beside it is of the next step."""
    model, optimizer = small_model()
    scheduler = halving(optimizer)

    def script(n: FakeNode) -> None:
        n.first_update()
        is_over(n, 0)
        n.offered(1, 1, collectives=1)
        n.send(events.TakeSnapshot())
        said = n.expect(control.Snapshot)
        assert said.round_id == 1
        n.apply(1, 1, n.arena.updates[1])  # type: ignore[union-attr]
        n.expect(control.AppliedReply)
        n.end(2, 2, collectives=1)

    with FakeNodeSwarm(script, overlap=1, local_steps=2, outer="mean") as swarm:
        peer = swarm.session
        peer.keep(scheduler=scheduler)
        peer.prepare(model, optimizer)
        states = noted_states(peer)
        for at in range(2):
            step(model, optimizer, at)
            scheduler.step()
        step(model, optimizer, 2)
        scheduler.step()
        peer._rounds.drain()
    assert [state["scheduler"]["last_epoch"] for state in states] == [0]


@pytest.mark.parametrize("options", [EACH_STEP, {**IN_FLIGHT, "local_steps": 2}])
def test_fragments_whose_samples_others_have_now_keep_their_steps_for_the_next_exchange(
    options: dict[str, Any],
) -> None:
    model, optimizer = deep_model(momentum=0.0)
    twin, twin_optimizer = deep_model(momentum=0.0)

    def script(n: FakeNode) -> None:
        n.sharded()
        n.offered(0, ranges=[(0, 2)])
        is_over(n, 0)
        assert n.offered(1, 1, ranges=[(4, 6)], collectives=1).samples == 0
        n.send(control.ApplyCommand(1, -1, 0.0, collectives=1))
        n.expect(control.AppliedReply)
        assert n.offered(2, 2, ranges=[(16, 18)], collectives=1).samples == 2
        n.send(control.ApplyCommand(2, -1, 0.0, collectives=1))
        n.expect(control.AppliedReply)
        n.end(3, 3, ranges=[(20, 22)], epoch=1, collectives=1)

    own = []
    with FakeNodeSwarm(script, **options) as swarm:
        peer = swarm.session
        offered_first = Layout(model, optimizer).cut(2)[0].parameters
        loader = peer.shard(TensorDataset(torch.arange(64)), batch_size=2)
        peer.prepare(model, optimizer)
        for _ in loader:
            step(model, optimizer, 0)
            own = [p.detach().clone() for p in offered_first]
            if peer.step == 2:
                break
    step(twin, twin_optimizer, 0)
    step(twin, twin_optimizer, 0)
    theirs = Layout(twin, twin_optimizer).cut(2)[0].parameters
    assert all(map(torch.allclose, own, theirs))


# --- what is given to an operation ----------------------------------------------------------------


def test_a_value_is_given_to_one_round_and_its_answer_is_there_though_the_run_ends_then() -> None:
    def script(n: FakeNode) -> None:
        said = n.first_update()
        theirs = packed((-1, 0, "mean"), pack_object({"a": 3.0}), 4096)
        collected = ((0, said.collective), (1, theirs))
        n.send(control.ApplyCommand(0, -1, 0.0, collected=collected, is_step=False))
        n.send(events.Halt("finished", 0))
        n.expect(control.AppliedReply)
        n.expect(control.Close)

    with FakeNodeSwarm(script) as swarm:
        swarm.prepare()
        assert swarm.session.mean(a=1.0)["a"] == 2.0


def test_an_update_of_parameters_that_a_state_has_replaced_is_not_offered_again() -> None:
    """It was of the model before; the state came when the operation had left the update waiting."""
    model, optimizer = small_model()
    theirs, their_optimizer = small_model(3)
    said: list[object] = []

    def script(n: FakeNode) -> None:
        n.first_update()
        is_over(n, 0)
        n.restored(1, state_of_others(theirs, their_optimizer, 0), collectives=1)
        n.go(1, 1, collectives=1)
        said.append(n.next())
        n.send(events.Halt("finished", 0))

    with FakeNodeSwarm(script, overlap=1) as swarm:
        peer = swarm.session
        peer.prepare(model, optimizer)
        step(model, optimizer, 0)
        exchange = peer._run.exchange
        peer._node.serve_while(lambda: not peer._run.applied.restores)
        assert exchange.in_flight == 0
        assert not peer._rounds._is_of_use()
        swarm.session.close()
    assert isinstance(said[0], control.Close)
