"""Local steps that do not count: those of a round that was left, and those that a GradScaler
skipped; and what is left of them in a state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_local_steps import local
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset
from trainer_fakes import (
    FakeNode,
    FakeNodeSwarm,
    backward,
    echo,
    flat_parameters,
    local_steps,
    pack_state,
    prepared_swarm,
    small_model,
    step,
)

from gossip.core import events
from gossip.ipc import messages as control
from gossip.run.checkpoints import Checkpoint
from gossip.training import resuming
from gossip.training.collectives import ANSWERS
from gossip.training.layout import Layout
from gossip.training.local_steps import STATE, settings_of
from gossip.training.own_state import OwnState


def halving(optimizer: torch.optim.Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 0.5**step)


# --- a round that is left -------------------------------------------------------------------------


def test_a_scheduler_goes_back_with_the_steps_of_a_round_that_was_left() -> None:
    model, optimizer = small_model()
    scheduler = halving(optimizer)
    with FakeNodeSwarm(echo, local_steps=3, outer="mean") as swarm:
        peer = swarm.session
        peer.keep(scheduler=scheduler)
        peer.prepare(model, optimizer)

        def steps(number: int) -> None:
            for _ in range(number):
                step(model, optimizer, peer.step)
                scheduler.step()

        steps(3 + 2)
        assert scheduler.last_epoch == 5
        peer._steps.pass_round()  # as a loop that leaves the round does
        assert scheduler.last_epoch == 3
        assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**3
        steps(4)
        step(model, optimizer, peer.step)
        assert peer.step == 11
        # Nobody had an update for the round that went by, so it changed nothing.
        assert scheduler.last_epoch == 7
        assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**7


def test_a_batch_that_is_skipped_at_the_end_of_a_round_undoes_none_of_its_steps() -> None:
    with FakeNodeSwarm(echo, local_steps=4, outer="mean") as swarm:
        peer = swarm.session
        model, optimizer = swarm.prepare()
        for _ in range(3):
            step(model, optimizer, 0)
        peer._steps.pass_round(skipped=True)  # as the loader does behind the fourth batch
        assert peer.step == 4
        peer._steps.pass_round(skipped=True)
    said = [each for each in swarm.nodes[0].heard if isinstance(each, control.Contribute)]
    offers = [(each.samples, each.skipped, each.steps) for each in said]
    assert offers == [(3, False, (3, 4)), (0, True, (1, 1))]


def test_a_rate_that_the_script_has_set_goes_back_with_the_steps_of_a_round_that_was_left() -> None:
    with prepared_swarm(echo, local_steps=3, outer="mean") as (_, model, optimizer):
        step(model, optimizer, 0)
        optimizer.param_groups[0]["lr"] = 0.0625
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_rates_of_a_resumed_peer_are_those_of_the_checkpoint_and_not_of_its_own_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own part may be of a life that was stopped within a round."""
    with FakeNodeSwarm(echo, local_steps=3, outer="mean") as swarm:
        peer = swarm.session
        _, optimizer = swarm.prepare()
        settings = settings_of(optimizer, 6)
        settings["groups"][0]["lr"] = 0.025
        peer._run.model.extra.load({STATE: settings})

        def loads_undone(*_: Any) -> OwnState:
            optimizer.param_groups[0]["lr"] = 0.5
            return OwnState()

        monkeypatch.setattr(resuming, "load_own", loads_undone)
        resuming.load_own_state(peer._run, tmp_path, Checkpoint(6, tmp_path, {}))
        assert optimizer.param_groups[0]["lr"] == 0.025


@pytest.mark.parametrize(("steps", "kept"), [(3, 3), (4, 3)])
def test_a_state_at_the_end_has_what_was_kept_at_the_last_round(steps: int, kept: int) -> None:
    model, optimizer = small_model()
    scheduler = halving(optimizer)
    with FakeNodeSwarm(echo, local_steps=3, outer="mean") as swarm:
        swarm.session.keep(scheduler=scheduler)
        swarm.session.prepare(model, optimizer)
        for seed in range(steps):
            step(model, optimizer, seed)
            scheduler.step()
    state = swarm.session._run.model.extra.now()
    assert state["scheduler"]["last_epoch"] == kept
    assert state[STATE]["groups"][0]["lr"] == 0.1 * 0.5**kept
    assert state[STATE]["step"] == 3


def test_a_state_has_the_answers_of_now_whatever_else_is_of_the_begin_of_the_round() -> None:
    with FakeNodeSwarm(echo, local_steps=3, outer="mean") as swarm:
        peer = swarm.session
        model, optimizer = swarm.prepare()
        step(model, optimizer, 0)
        place = (1, 0, "mean")
        peer._collectives.answers._answers[place] = {0: b"answer"}
        assert peer._run.model.extra.now()[ANSWERS] == [[*place, [[0, b"answer".hex()]]]]


def test_a_sparse_gradient_becomes_a_model_difference() -> None:
    table = torch.nn.Embedding(6, 3)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
    steps = local_steps(Layout(table, optimizer), optimizer.step, 1, "mean")
    before = flat_parameters(table)
    rows = torch.nn.functional.embedding(torch.tensor([1, 4]), table.weight, sparse=True)
    rows.sum().backward()
    assert table.weight.grad.is_sparse
    steps.step()
    moved = before - flat_parameters(table)
    assert not steps.load_update(False).is_useless
    assert not table.weight.grad.is_sparse
    assert torch.equal(table.weight.grad.reshape(-1), moved)


# --- a state of something else --------------------------------------------------------------------


def test_a_state_with_the_settings_of_another_optimizer_changes_nothing() -> None:
    model, optimizer = small_model()
    before = flat_parameters(model)
    other, _ = small_model(seed=1)
    adam = torch.optim.AdamW(other.parameters(), lr=0.5)
    theirs = local_steps(Layout(other, adam), adam.step, 2, "nesterov")
    state = pack_state(other, theirs.outer, {STATE: settings_of(adam, 8)})
    answered: list[events.Restored] = []

    def script(n: FakeNode) -> None:
        n.prepared()
        n.restore(4, state)
        answered.append(n.expect(events.Restored))
        n.end(0)

    with FakeNodeSwarm(script, local_steps=2) as swarm:
        swarm.session.prepare(model, optimizer)
        assert torch.equal(flat_parameters(model), before)
        assert optimizer.param_groups[0]["lr"] == 0.1
    assert "other settings than the local one" in answered[0].error


# --- steps that were skipped ----------------------------------------------------------------------


def overflow(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What a GradScaler does where gradients overflow."""
    backward(model, 0)
    optimizer.found_inf = torch.tensor(1.0)  # type: ignore[attr-defined]
    optimizer.step()


@pytest.mark.parametrize(
    ("skipped", "handed", "samples"),
    [
        ((), [0, 1, 2, 3, 4, 5], 6),
        ((1,), [0, 1, 2, 3, 2, 3], 4),
        ((2,), [0, 1, 2, 3, 4, 5], 4),
        ((0, 1), [0, 1, 0, 1, 0, 1], 2),
        ((0, 1, 2), [0, 1, 0, 1, 0, 1], 0),
    ],
)
def test_the_batches_of_a_skipped_step_come_again_and_do_not_count_as_used(
    skipped: tuple[int, ...], handed: list[int], samples: int
) -> None:
    """A commit counts the first samples of a slice, so those of the last steps are left."""
    model, optimizer = small_model()
    told: list[int] = []

    def script(n: FakeNode) -> None:
        n.sharded()
        n.go(0, ranges=[(0, 6)])
        told.append(n.expect(control.Contribute).samples)
        if samples:
            n.apply(0, 0, n.arena.updates[0])  # type: ignore[union-attr]
        else:
            n.send(control.ApplyCommand(0, -1, 0.0))
        n.expect(control.AppliedReply)
        n.end(1, ranges=[(6, 12)], epoch=1)

    seen: list[int] = []
    with FakeNodeSwarm(script, local_steps=3, outer="mean") as swarm:
        peer = swarm.session
        loader = peer.shard(TensorDataset(torch.arange(6)), batch_size=2)
        peer.prepare(model, optimizer)
        order = loader._order(0).tolist()
        for at, (batch,) in enumerate(loader):
            seen += [order.index(number) for number in batch.tolist()]
            if at in skipped:
                overflow(model, optimizer)
            else:
                step(model, optimizer, at)
        assert peer.step == 3
    assert seen == handed
    assert told == [samples]


def test_good_steps_are_counted_anew_in_each_round() -> None:
    _, steps = local(2)
    steps.step(skipped=True)
    steps.step()
    assert (steps.taken, steps.good) == (2, 1)
    steps.load_update(False)
    assert (steps.taken, steps.good) == (0, 0)


def test_a_round_that_was_ended_early_leaves_the_next_one_whole() -> None:
    _, steps = local(3)
    steps.step()
    steps.ends_early = True
    assert steps.is_round_due
    steps.load_update(False)
    steps.step()
    assert not steps.is_round_due
