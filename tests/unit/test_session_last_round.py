"""The script has had all its rounds: its parameters are final when enough others hold the same, or
when theirs are here."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor, ones
from torch.nn import Parameter
from trainer_fakes import (
    FakeNode,
    FakeNodeSwarm,
    backward,
    flat_parameters,
    pack_state,
    prepared_swarm,
    small_model,
    step,
)

from gossip.core import events
from gossip.ipc import messages as control
from gossip.training import digest_tensors

ELEMENTS = 5 * 7 + 7 + 7 * 3 + 3
LAST = np.full(ELEMENTS, 0.5, dtype=np.float32)


def to_the_end(node: FakeNode) -> None:
    """One round, which is the last."""
    node.prepared()
    node.go(0)
    node.expect(control.Contribute)
    node.apply(0, 0, LAST)
    node.expect(control.AppliedReply)
    node.go(1)


def others_state() -> tuple[bytes, Tensor]:
    model, optimizer = small_model(seed=7)
    return pack_state(model, optimizer, {}), flat_parameters(model)


def corrected(node: FakeNode) -> None:
    to_the_end(node)
    assert node.expect(events.ConfirmState) == events.ConfirmState(1)
    node.restore(1, others_state()[0])
    assert node.expect(events.Restored) == events.Restored(1, "")
    node.go(1)
    node.send(events.StateConfirmed(1, True))
    node.halt()


def test_a_script_with_counted_rounds_sees_parameters_after_its_last_step() -> None:
    with prepared_swarm(corrected, f=1, rounds=1) as (swarm, model, optimizer):
        step(model, optimizer, 0)
        assert flat_parameters(model).equal(others_state()[1])
        assert swarm.session.finished
        assert swarm.session.confirmed is True


def test_a_script_that_counts_its_passes_sees_them_behind_its_loop() -> None:
    with prepared_swarm(corrected, f=1) as (swarm, model, optimizer):
        for _ in swarm.session.epochs(1):
            step(model, optimizer, 0)
        assert flat_parameters(model).equal(others_state()[1])


def test_who_counts_by_itself_has_them_when_it_has_closed_and_so_has_its_last_word() -> None:
    with prepared_swarm(corrected, f=1) as (swarm, model, optimizer):
        step(model, optimizer, 0)
        swarm.session.close()
        assert flat_parameters(model).equal(others_state()[1])
        [goodbye] = [said for said in swarm.nodes[0].heard if isinstance(said, control.Close)]
        assert swarm.session.confirmed
        assert goodbye.digest == digest_tensors(model.parameters())


def test_the_last_word_is_also_of_parameters_that_no_optimizer_has() -> None:
    def node(n: FakeNode) -> None:
        to_the_end(n)
        n.expect(events.ConfirmState)
        n.send(events.StateConfirmed(1, True))
        n.halt()

    with FakeNodeSwarm(node, f=1) as swarm:
        model, optimizer = small_model()
        model.of_no_optimizer = Parameter(ones(2))
        model, optimizer = swarm.session.prepare(model, optimizer)
        step(model, optimizer, 0)
        swarm.session.close()
        [goodbye] = [said for said in swarm.nodes[0].heard if isinstance(said, control.Close)]
        assert goodbye.digest == digest_tensors(model.parameters())


def test_a_copy_is_given_meanwhile_to_one_that_needs_it() -> None:
    def node(n: FakeNode) -> None:
        to_the_end(n)
        n.expect(events.ConfirmState)
        n.send(events.TakeSnapshot())
        assert n.expect(control.Snapshot).round_id == 1
        n.send(events.StateConfirmed(1, True))
        n.halt()

    with prepared_swarm(node, f=1) as (_, model, optimizer):
        step(model, optimizer, 0)


@pytest.mark.parametrize("agreed", [True, False])
def test_what_is_known_is_not_asked_again_and_what_is_not_is(agreed: bool) -> None:
    def node(n: FakeNode) -> None:
        to_the_end(n)
        n.expect(events.ConfirmState)
        n.send(events.StateConfirmed(1, agreed))
        if not agreed:
            n.expect(events.ConfirmState)
            n.send(events.StateConfirmed(1, False))
        n.halt()

    with prepared_swarm(node, f=1, rounds=1) as (swarm, model, optimizer):
        backward(model, 0)
        assert swarm.session.confirmed is None
        optimizer.step()
        assert swarm.session.confirmed is agreed
    assert swarm.session.confirmed is agreed


@pytest.mark.parametrize(("f", "topology"), [(0, "rolling"), (1, "random-k")])
def test_nobody_is_asked_where_no_liar_is_expected(f: int, topology: str) -> None:
    def node(n: FakeNode) -> None:
        to_the_end(n)
        n.halt()

    with prepared_swarm(node, f=f, topology=topology, rounds=1) as (swarm, model, optimizer):
        step(model, optimizer, 0)
    assert swarm.session.confirmed is None


def test_a_signal_ends_the_wait_of_one_that_closes() -> None:
    def node(n: FakeNode) -> None:
        to_the_end(n)
        n.expect(events.ConfirmState)
        swarm.termination.since = 0.0
        assert n.halt().reason == "finished"

    with FakeNodeSwarm(node, f=1) as swarm:
        model, optimizer = swarm.prepare()
        step(model, optimizer, 0)


def test_a_node_that_dies_meanwhile_keeps_nobody() -> None:
    def node(n: FakeNode) -> None:
        to_the_end(n)
        n.expect(events.ConfirmState)

    with prepared_swarm(node, f=1) as (swarm, model, optimizer):
        step(model, optimizer, 0)
    assert swarm.session.confirmed is False
