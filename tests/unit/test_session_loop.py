"""What users write around a step: accumulation, gradient scalers, clipping, several optimizers,
parameters that come and go."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from trainer_fakes import (
    FakeNode,
    FakeNodeSwarm,
    apply_alone,
    backward,
    echo,
    flat_parameters,
    prepared_swarm,
    same_bits,
    small_model,
    step,
)

from gossip.core import events, is_further
from gossip.errors import ConfigError, UnsupportedModel
from gossip.ipc import messages as control
from gossip.training.batches import FetchOrder, pieces_of
from gossip.training.exchange import PASSED_MAX
from gossip.training.layout import PRESENT


def contributions(swarm: FakeNodeSwarm) -> list[control.Contribute]:
    return [message for message in swarm.nodes[0].heard if isinstance(message, control.Contribute)]


def data(samples: int = 24, batch: int = 2) -> DataLoader:
    torch.manual_seed(1)
    return DataLoader(
        TensorDataset(torch.randn(samples, 5), torch.arange(samples)),
        batch_size=batch,
        shuffle=True,
    )


def slices(*ranges: tuple[int, int]) -> Any:
    """A node that deals out these slices, one a round, and gives every update back."""

    def node(n: FakeNode) -> None:
        n.sharded()
        for at, pair in enumerate(ranges):
            n.go(at, slot=at % 4, ranges=[pair])
            said = n.next()
            if isinstance(said, control.Close):
                n.send(events.Halt(said.reason, 0))
                return
            assert isinstance(said, control.Contribute)
            if said.samples:
                n.apply(at, at % 4, n.arena.updates[said.slot])
            else:
                n.send(control.ApplyCommand(at, -1, 0.0))
            n.expect(control.AppliedReply)
        n.end(len(ranges), ranges=[(0, 1)], epoch=1)

    return node


# --- accumulation ---------------------------------------------------------------------------------


def test_several_batches_make_one_step_and_are_all_counted_with_it():
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()
    loader = data()
    x_all = loader.dataset.tensors[0]
    with FakeNodeSwarm(slices((0, 8), (8, 16), (16, 24))) as swarm:
        swarm.session.prepare(model, optimizer)
        sharded = swarm.session.shard(loader, accumulate=4)
        assert len(sharded) == 12
        seen, of_round = [], []
        for i, (x, y) in enumerate(sharded):
            last = (i + 1) % 4 == 0
            seen.append(y.tolist())
            of_round += y.tolist()
            if last:
                (model(x).square().mean() / 4).backward()
                optimizer.step()
                optimizer.zero_grad()
                twin(x_all[of_round]).square().mean().backward()
                twin_optimizer.step()
                twin_optimizer.zero_grad()
                of_round = []
            else:
                with swarm.session.no_sync():
                    (model(x).square().mean() / 4).backward()
        assert sorted(index for batch in seen for index in batch) == list(range(24))
        assert {len(batch) for batch in seen} == {2}
    assert [said for said in swarm.nodes[0].heard if isinstance(said, events.DataConfigured)] == [
        events.DataConfigured(24, 8)
    ]
    assert [said.samples for said in contributions(swarm)] == [8, 8, 8]
    assert torch.allclose(flat_parameters(model), flat_parameters(twin), atol=1e-6)


@pytest.mark.parametrize(
    ("ranges", "pieces"),
    [
        ([(0, 8)], [[(0, 2)], [(2, 4)], [(4, 6)], [(6, 8)]]),
        ([(0, 3), (5, 6), (7, 10)], [[(0, 2)], [(2, 3), (5, 6)], [(7, 9)], [(9, 10)]]),
        ([(0, 5)], [[(0, 2)], [(2, 3)], [(3, 4)], [(4, 5)]]),
        ([(0, 2), (9, 10)], [[(0, 2), (9, 10)]] * 4),
        ([(4, 5)], [[(4, 5)]] * 4),
    ],
)
def test_a_short_slice_comes_in_as_many_batches(ranges, pieces):
    """So that a loop which counts batches stays in step, and the mean of the batches' means is
    that of the slice."""
    assert pieces_of(tuple(ranges), 4) == [tuple(piece) for piece in pieces]
    assert pieces_of(tuple(ranges), 1) == [tuple(ranges)]


@pytest.mark.parametrize(
    ("samples", "accumulate", "sizes", "batch"),
    [
        *[
            (1, 1, [2], 2),
            (2, 1, [2], 2),
            (5, 4, [5] * 4, 2),
            (8, 4, [2] * 4, 2),
            (1, 4, [2] * 4, 2),
        ],
        *[(1, 1, [1], 1), (3, 4, [3] * 4, 1)],
    ],
)
def test_batchnorm_gets_a_single_sample_only_if_a_batch_has_one(samples, accumulate, sizes, batch):
    """It cannot train on one of one value, and the last slices of an epoch may be that short."""
    model = torch.nn.Sequential(torch.nn.Unflatten(1, (1, 5)), torch.nn.BatchNorm1d(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with FakeNodeSwarm(slices((3, 3 + samples))) as swarm:
        swarm.session.prepare(model, optimizer)
        for x, y in swarm.session.shard(data(batch=batch), accumulate=accumulate):
            seen.append(y)
            model(x).square().mean().backward()
            if len(seen) == accumulate:
                optimizer.step()
    assert [len(batch) for batch in seen] == sizes
    assert len(set(torch.cat(seen).tolist())) == samples
    assert [said.samples for said in contributions(swarm)] == [samples]


def test_a_short_slice_is_counted_as_what_it_is():
    with prepared_swarm(slices((0, 8), (8, 11))) as (swarm, model, optimizer):
        for i, (x, _) in enumerate(swarm.session.shard(data(), accumulate=4)):
            (model(x).square().mean() / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    assert [said.samples for said in contributions(swarm)] == [8, 3]


def test_a_step_before_the_last_batch_of_its_round_is_refused():
    with prepared_swarm(slices((0, 8))) as (swarm, model, optimizer):
        batches = iter(swarm.session.shard(data(), accumulate=4))
        for count in range(1, 4):
            next(batches)
            backward(model, 0)
            with pytest.raises(ConfigError, match=f"after {count} of 4 batches"):
                optimizer.step()
        next(batches)
        optimizer.step()


def test_a_step_inside_no_sync_is_refused():
    with prepared_swarm(echo) as (swarm, model, optimizer):
        backward(model, 0)
        with pytest.raises(ConfigError, match=r"inside peer\.no_sync"), swarm.session.no_sync():
            optimizer.step()
        assert not contributions(swarm)
        optimizer.step()
    assert len(contributions(swarm)) == 1


def test_accumulating_over_rounds_is_refused_because_those_samples_would_be_used_again():
    with FakeNodeSwarm(slices((0, 2), (2, 4))) as swarm:
        model, _ = swarm.prepare()
        batches = iter(swarm.session.shard(data()))
        next(batches)
        with swarm.session.no_sync():
            backward(model, 0)
        with pytest.raises(ConfigError, match="accumulated over more than the 1 batch") as caught:
            next(batches)
        assert "accumulate=k" in str(caught.value.hint)
        assert not contributions(swarm)


def skips_a_batch(propagate: bool, clear: bool) -> list[str]:
    with prepared_swarm(slices((0, 2), (2, 4), (4, 6))) as (swarm, model, optimizer):
        batches = iter(swarm.session.shard(data()))
        next(batches)
        backward(model, 0)
        optimizer.step()  # whose result stays in .grad
        next(batches)
        if propagate:
            backward(model, 1)
        if clear:
            optimizer.zero_grad()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            next(batches)
        step(model, optimizer, 2)
    assert [said.samples for said in contributions(swarm)] == [2, 0, 2]
    return [str(each.message) for each in told]


def test_a_batch_may_be_skipped_and_one_whose_gradient_is_kept_is_warned_about():
    assert skips_a_batch(propagate=False, clear=False) == []
    assert skips_a_batch(propagate=True, clear=True) == []
    (told,) = skips_a_batch(propagate=True, clear=False)
    assert "accumulate=k" in told


def one_ahead(batches):
    held = None
    for batch in batches:
        if held is not None:
            yield held
        held = batch
    yield held


class OnTheWay:
    """Prepares the next batch, as a CUDA prefetcher does, before it returns the one before."""

    def __init__(self, batches):
        self.batches = iter(batches)
        self.preload()

    def preload(self):
        batch = next(self.batches, None)
        self.held = None if batch is None else (batch[0] * 2.0, batch[1])

    def __iter__(self):
        while (batch := self.held) is not None:
            self.preload()
            yield batch


@pytest.mark.filterwarnings("ignore:no optimizer.step")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("fetch", [one_ahead, OnTheWay])
def test_a_loop_that_fetches_ahead_is_refused_before_a_gradient_is_counted(fetch, accumulate):
    with prepared_swarm(slices((0, 4), (4, 8), (8, 12))) as (swarm, model, optimizer):
        sharded = swarm.session.shard(data(batch=4 // accumulate), accumulate=accumulate)

        def train() -> None:
            for at, (x, _) in enumerate(fetch(sharded)):
                model(x).square().mean().backward()
                if (at + 1) % accumulate == 0:
                    optimizer.step()
                    optimizer.zero_grad()

        with pytest.raises(ConfigError, match="prefetching") as raised:
            train()
        assert "num_workers" in raised.value.hint
        swarm.session.close()
        assert [said.samples for said in contributions(swarm)] == [0]


@pytest.mark.filterwarnings("ignore:no optimizer.step")
@pytest.mark.parametrize("moment", ["before backward", "before step"])
def test_a_batch_that_is_fetched_within_the_step_before_is_refused(moment):
    with prepared_swarm(slices((0, 4), (4, 8), (8, 12))) as (swarm, model, optimizer):
        batches = iter(swarm.session.shard(data(batch=4)))
        x, _ = next(batches)
        loss = model(x).square().mean()
        if moment == "before backward":
            x, _ = next(batches)
        loss.backward()
        if moment == "before step":
            x, _ = next(batches)
        with pytest.raises(ConfigError, match="prefetching"):
            optimizer.step()
        swarm.session.close()
        assert [said.samples for said in contributions(swarm)] == [0]


@pytest.mark.parametrize("skipped", [[0], [0, 1], [1], [2], [0, 2]])
def test_a_batch_that_is_left_out_is_not_taken_for_prefetching(skipped):
    """Not even when the script keeps it."""
    with prepared_swarm(slices((0, 4), (4, 8), (8, 12), (12, 16))) as (swarm, model, optimizer):
        kept = []
        for at, (x, _) in enumerate(swarm.session.shard(data(batch=4))):
            if at in skipped:
                kept.append(x)
                continue
            # inputs are changed on their way, once the order is known
            model(x if skipped[0] == 0 else 2 * x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        swarm.session.close()
        expected = [0 if at in skipped else 4 for at in range(4)]
        assert [said.samples for said in contributions(swarm)] == expected


def test_what_two_batches_have_in_common_does_not_tell_which_the_model_was_given():
    order, model = FetchOrder(), torch.nn.Identity()
    order.model = model
    mask, first, second = torch.ones(2), torch.zeros(2), torch.full((2,), 2.0)
    for batch in ({"x": first, "mask": mask}, {"x": second, "mask": mask.clone()}):
        order.hand_out(batch)
        if batch["x"] is first:
            order.pass_over()
    model(mask.clone())
    with pytest.raises(ConfigError, match="prefetching"):
        order.check_step()


def test_a_batch_of_nothing_may_be_left_out_whatever_the_model_is_given():
    order = FetchOrder()
    order.model = torch.nn.Identity()
    order.hand_out(None)
    order.pass_over()
    order.hand_out(torch.zeros(2))
    order.check_step()


@pytest.mark.parametrize("accumulate", [0, -1, 2.0])
def test_a_number_of_batches_is_a_number(accumulate):
    with (
        FakeNodeSwarm(lambda n: n.halt()) as swarm,
        pytest.raises(ConfigError, match="accumulate is"),
    ):
        swarm.session.shard(data(), accumulate=accumulate)


# --- GradScaler -----------------------------------------------------------------------------------


def scaled(
    model: torch.nn.Module, scaler: torch.amp.GradScaler, seed: int, bad: bool = False
) -> None:
    model.zero_grad()
    torch.manual_seed(seed)
    loss = model(torch.randn(4, 5)).square().mean()
    scaler.scale(loss * float("inf") if bad else loss).backward()


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler_does_what_it_does_without_us(kind, fused, clip):
    """Bit for bit, whether the optimizer unscales by itself (fused), or the user has done it to
    clip, or the scaler does."""
    (model, _), (twin, _) = small_model(), small_model()
    optimizer, twin_optimizer = (kind(m.parameters(), lr=0.1, fused=fused) for m in (model, twin))
    # a fused optimizer divides by the scale, which is the same for a power of two
    first_scale = 1024.0 if fused else 1000.0
    scaler, twin_scaler = (
        torch.amp.GradScaler("cpu", init_scale=first_scale, growth_interval=3) for _ in range(2)
    )
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, optimizer)
        for seed in range(8):
            for m, o, s in ((model, optimizer, scaler), (twin, twin_optimizer, twin_scaler)):
                scaled(m, s, seed, bad=seed in (0, 4))
                if clip:
                    s.unscale_(o)
                    torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1)
                s.step(o)
                s.update()
            assert same_bits(model, twin)
            assert scaler.get_scale() == twin_scaler.get_scale()
            assert (scaler.get_scale() < first_scale) == (seed in (0, 1, 2, 4, 5, 6))


def test_an_overflow_contributes_nothing_and_is_told():
    model, optimizer = small_model()
    before = flat_parameters(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, optimizer)
        scaled(model, scaler, 0, bad=True)
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(flat_parameters(model), before)
        assert swarm.session.round == 1, "it takes part: nobody waits for it"
        assert scaler.get_scale() == 512.0
        scaled(model, scaler, 1)
        scaler.step(optimizer)
        scaler.update()
    assert [said.samples for said in contributions(swarm)] == [0, 1]
    assert [json.loads(line) for line in swarm.nodes[0].logs] == [
        {"round": 0, "skipped": "overflow"}
    ]


def test_the_samples_of_a_batch_that_overflowed_go_back():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with prepared_swarm(slices((0, 2), (2, 4))) as (swarm, model, optimizer):
        for at, _ in enumerate(swarm.session.shard(data())):
            scaled(model, scaler, at, bad=at == 0)
            scaler.step(optimizer)
            scaler.update()
    assert [said.samples for said in contributions(swarm)] == [0, 2]


def test_what_the_swarm_made_of_a_round_is_applied_by_a_peer_that_overflowed():
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()
    result = np.random.default_rng(0).standard_normal(66).astype(np.float32)

    def node(n: FakeNode) -> None:
        n.prepared()
        assert n.offered(0).samples == 0
        n.applied(0, 1, result)
        n.end(1)

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
        scaled(model, scaler, 0, bad=True)
        scaler.step(optimizer)
        scaler.update()
    apply_alone(twin, twin_optimizer, result)
    assert same_bits(model, twin)


# --- clipping -------------------------------------------------------------------------------------


def test_clipping_between_backward_and_step_is_of_the_own_gradient_and_a_hook_clips_the_aggregate():
    model, optimizer = small_model()
    sent: list[float] = []

    def node(n: FakeNode) -> None:
        n.first_update()
        sent.append(float(np.linalg.norm(n.arena.updates[0][:66])))
        n.applied(0, 1, np.full(66, 10.0, np.float32))
        n.apply(1, 2, np.full(66, 10.0, np.float32))  # a round without us
        n.expect(control.AppliedReply)
        n.end(2)

    def clip(*_: object) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    optimizer.param_groups[0].update(lr=1.0, momentum=0.0)
    before = flat_parameters(model)
    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
        optimizer.register_step_pre_hook(clip)
        backward(model, 0)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        while swarm.session.round < 2:
            swarm.session._node.serve(lambda: swarm.session.round == 2)
        assert sent == [pytest.approx(0.25, rel=1e-3)]
        assert float((flat_parameters(model) - before).norm()) == pytest.approx(1.0, rel=1e-3), (
            "0.5 in each of two rounds"
        )


# --- several optimizers ---------------------------------------------------------------------------


def two_optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9),
        torch.optim.AdamW(
            [{"params": [model[2].weight]}, {"params": [model[2].bias], "lr": 0.5}], lr=0.01
        ),
    ]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_optimizers_do_in_a_swarm_of_one_what_they_do_alone(order):
    (model, _), (twin, _) = small_model(), small_model()
    both, alone = two_optimizers(model), two_optimizers(twin)
    with FakeNodeSwarm(echo) as swarm:
        assert swarm.session.prepare(model, both)[1] is both
        for seed in range(6):
            backward(model, seed)
            backward(twin, seed)
            for at in order:
                both[at].step()
                alone[at].step()
            assert same_bits(model, twin)
        assert (swarm.session.step, swarm.session.round) == (6, 12), "a round for each"


def test_of_two_optimizers_that_both_use_a_scaler_the_one_that_overflows_contributes_nothing():
    model, _ = small_model()
    both = two_optimizers(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, both)
        for at in range(2):
            scaled(model, scaler, at)
            if at == 0:
                model[0].bias.grad[0] = float("inf")  # the first one's alone
            for optimizer in both:
                scaler.step(optimizer)
            scaler.update()
    assert [said.samples for said in contributions(swarm)] == [0, 1, 1, 1]
    assert [said.skipped for said in contributions(swarm)] == [True, False, False, False]


def test_a_loss_that_is_taken_between_the_steps_of_two_optimizers_sees_the_first_one():
    """As of two networks that play against each other: the second's loss goes through the first."""
    (model, _), (twin, _) = small_model(), small_model()
    both, alone = two_optimizers(model), two_optimizers(twin)
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, both)
        for seed in range(4):
            for net, optimizers in ((model, both), (twin, alone)):
                backward(net, seed)
                optimizers[0].step()
                with torch.no_grad():  # as the critic of a WGAN
                    net[0].weight.clamp_(-0.1, 0.1)
                optimizers[1].zero_grad()
                net(torch.ones(2, 5)).square().mean().backward()
                optimizers[1].step()
            assert same_bits(model, twin)


def test_optimizers_that_step_together_share_a_round():
    (model, _), (twin, _) = small_model(), small_model()
    both, alone = two_optimizers(model), two_optimizers(twin)
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, both, together=True)
        for seed in range(4):
            for net, optimizers in ((model, both), (twin, alone)):
                backward(net, seed)
                for at in (1, 0):
                    optimizers[at].step()
                    optimizers[at].zero_grad()
            assert same_bits(model, twin)
        assert swarm.session.round == swarm.session.step == 4
        backward(model, 4)
        both[0].step()
        with pytest.raises(UnsupportedModel, match="optimizer 1 did not step"):
            swarm.session._loop.next_round()


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_each_of_two_optimizers_may_be_zeroed_right_after_its_own_step(order, to_none):
    (model, _), (twin, _) = small_model(), small_model()
    both, alone = two_optimizers(model), two_optimizers(twin)
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, both)
        for seed in range(5):
            generator = torch.Generator().manual_seed(seed)
            batch = torch.randn(4, 5, generator=generator)
            for net, optimizers in ((model, both), (twin, alone)):
                net(batch).square().sum().backward()
                for at in order:
                    optimizers[at].step()
                    optimizers[at].zero_grad(set_to_none=to_none)
            assert same_bits(model, twin)
            for one, other in zip(model.parameters(), twin.parameters(), strict=True):
                assert (one.grad is None) == (other.grad is None) == to_none
                assert to_none or not one.grad.any()
        assert swarm.session.step == 5


def test_optimizers_that_step_in_hooks_of_the_backward_pass_do_what_they_do_alone():
    (model, _), (twin, _) = small_model(), small_model()
    made = [[torch.optim.SGD([p], lr=0.1) for p in net.parameters()] for net in (model, twin)]
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, made[0])
        for net, optimizers in zip((model, twin), made, strict=True):
            for parameter, optimizer in zip(net.parameters(), optimizers, strict=True):

                def step(_: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
                    optimizer.step()
                    optimizer.zero_grad()

                parameter.register_post_accumulate_grad_hook(step)
        for seed in range(5):
            batch = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed))
            for net in (model, twin):
                net(batch).square().sum().backward()
            assert same_bits(model, twin)
        assert swarm.session.round == 5


def test_an_optimizer_steps_more_often_than_the_other():
    """Three steps of a critic, and then one of the generator."""
    (model, _), (twin, _) = small_model(), small_model()
    both, alone = two_optimizers(model), two_optimizers(twin)
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, both)
        for seed in range(6):
            backward(model, seed)
            backward(twin, seed)
            others = [p.grad.clone() for p in model[2].parameters()]
            both[0].step()
            alone[0].step()
            for parameter, before in zip(model[2].parameters(), others, strict=True):
                assert torch.equal(parameter.grad, before)
            if seed % 3 == 2:
                both[1].step()
                alone[1].step()
            assert same_bits(model, twin)
        assert (swarm.session.step, swarm.session.round) == (6, 8)


def test_who_is_elsewhere_in_its_loop_waits_for_a_step_of_its_own_kind():
    """Its first optimizer steps when those of the others are at their second one. That step changes
    what its script may still propagate a loss through."""
    model, _ = small_model()
    both = two_optimizers(model)
    offered: list[control.Contribute] = []

    def node(n: FakeNode) -> None:
        first = n.first_update()
        offered.append(first)
        own = n.arena.updates[0].copy()
        others = own.copy()
        others[-4:] = 0.0, 0.0, PRESENT, PRESENT
        for round_id, update in enumerate((others, own, others)):
            kind = offered[-1].kind + 3 * (round_id == 0)
            n.put(round_id, update)
            is_step = not is_further(kind)
            n.send(control.ApplyCommand(round_id, round_id, 0.0, is_step=is_step, kind=kind))
            n.expect(control.AppliedReply)
            n.go(round_id + 1, 0, collectives=1 + round_id // 2)
            if round_id < 2:
                offered.append(n.expect(control.Contribute))
        n.halt()

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, both)
        loss = model(torch.ones(2, 5)).square().mean()
        loss.backward(retain_graph=True)
        both[0].step()
        assert (swarm.session.step, swarm.session.round) == (1, 2)
        both[1].zero_grad()
        torch.autograd.grad(loss, model[2].bias)
        model[2].bias.grad = torch.ones_like(model[2].bias)
        both[1].step()
        assert (swarm.session.step, swarm.session.round) == (1, 3)
    kinds = [said.kind - offered[0].kind for said in offered]
    assert (kinds[:2], is_further(offered[2].kind)) == ([0, 0], True)
    assert [said.samples for said in offered] == [1, 0, 0], "nothing of weights that were overtaken"


def test_a_step_that_others_make_first_or_further_is_the_same_step():
    """Where one script leaves out the step of its first optimizer, its second one is the first."""
    model, _ = small_model()
    both = two_optimizers(model)

    def node(n: FakeNode) -> None:
        first = n.first_update()
        n.put(0, n.arena.updates[0].copy())
        n.send(control.ApplyCommand(0, 0, 0.0, is_step=False, kind=first.kind + 1))
        n.expect(control.AppliedReply)
        n.end(1, 0, collectives=1)

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, both)
        backward(model, 0)
        both[0].step()
        assert (swarm.session.step, swarm.session.round, swarm.session.stepped) == (0, 1, False)


def test_who_waits_for_a_step_that_nobody_makes_goes_on(caplog):
    model, _ = small_model()
    both = two_optimizers(model)

    def node(n: FakeNode) -> None:
        n.prepared()
        n.go(0)
        for round_id in range(PASSED_MAX + 1):
            kind = n.expect(control.Contribute).kind + 3
            n.send(control.ApplyCommand(round_id, -1, 0.0, is_step=False, kind=kind))
            n.expect(control.AppliedReply)
            n.go(round_id + 1, 0, collectives=round_id + 1)
        n.halt()

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, both)
        backward(model, 0)
        both[0].step()
        assert swarm.session.round == PASSED_MAX + 1
    assert "same script" in caplog.text


def test_a_gradient_of_weights_that_a_late_peer_has_left_behind_is_not_offered():
    """Rounds that it has missed come before its second optimizer's step."""
    model, _ = small_model()
    both = two_optimizers(model)
    offered: list[int] = []

    def node(n: FakeNode) -> None:
        first = n.first_update()
        n.put(0, n.arena.updates[0].copy())
        n.send(control.ApplyCommand(0, 0, 0.0, kind=first.kind))
        n.send(control.ApplyCommand(1, 0, 0.0, kind=first.kind))
        n.expect(control.AppliedReply)
        n.expect(control.AppliedReply)
        said = n.offered(2, 0)
        offered.append(said.samples)
        n.send(control.ApplyCommand(2, -1, 0.0, is_step=False, kind=said.kind))
        n.expect(control.AppliedReply)
        n.end(3, 0, collectives=1)

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, both)
        backward(model, 0)
        both[0].step()
        swarm.session._run.model.steps += 1  # as a round that was applied since
        both[1].step()
    assert offered == [0]


def test_hooks_of_other_layers_make_the_same_kind_of_step():
    """Stochastic depth: each peer leaves out other layers."""
    model, _ = small_model()
    made = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, made)
        for parameter, optimizer in zip(model.parameters(), made, strict=True):
            parameter.register_post_accumulate_grad_hook(lambda _, o=optimizer: o.step())
        for part in (model, model[0], model):
            part(torch.ones(4, 5)).square().sum().backward()
        assert [said.kind for said in contributions(swarm)] == [0, 0, 0]


def test_a_backward_pass_that_raises_leaves_nothing_behind():
    model, _ = small_model()
    made = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("out of memory")

    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, made)
        for parameter, optimizer in zip(model.parameters(), made, strict=True):
            parameter.register_post_accumulate_grad_hook(lambda _, o=optimizer: o.step())
        batch = torch.ones(4, 5)
        with pytest.raises(RuntimeError, match="out of memory"):
            model[2](model[1](Fails.apply(model[0](batch)))).square().sum().backward()
        assert swarm.session.round == 0
        model(batch).square().sum().backward()
        model[0](batch).square().sum().backward()
        assert swarm.session.round == 2


def test_a_parameter_in_two_optimizers_is_refused():
    model, _ = small_model()
    both = [sgd(model), torch.optim.SGD(model[0].parameters(), lr=0.1)]
    says = pytest.raises(UnsupportedModel, match="2 parameters are in two optimizers")
    with FakeNodeSwarm(lambda n: n.halt()) as swarm, says:
        swarm.session.prepare(model, both)


def test_what_follows_the_steps_of_one_optimizer_runs_behind_each_of_those():
    model, _ = small_model()
    both = two_optimizers(model)
    ran: list[str] = []
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, both)
        swarm.session.each_step(lambda: ran.append("run"))
        swarm.session.each_step(lambda: ran.append("second"), after=both[1])
        for seed in range(4):
            backward(model, seed)
            both[0].step()
            if seed % 2:
                both[1].step()
        with pytest.raises(ConfigError):
            swarm.session.each_step(lambda: None, after=sgd(model))
    assert ran == ["run", "run", "second"] * 2


def test_a_gradient_that_is_zeroed_by_way_of_its_data_was_there_when_the_step_was_asked_for():
    (model, _), (twin, _) = small_model(), small_model()
    both, alone = two_optimizers(model), two_optimizers(twin)
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, both)
        for net, optimizers in ((model, both), (twin, alone)):
            backward(net, 0)
            optimizers[0].step()
            for parameter in net[0].parameters():
                parameter.grad.data.zero_()
            optimizers[1].step()
        assert same_bits(model, twin)


def test_weights_that_are_changed_before_a_step_that_is_yet_to_come_are_refused():
    model, _ = small_model()
    both = two_optimizers(model)
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, both, together=True)
        backward(model, 0)
        both[0].step()
        for parameter in model[0].parameters():
            parameter.data.clamp_(-0.01, 0.01)
        with pytest.raises(ConfigError):
            both[1].step()


@pytest.mark.parametrize(
    "options", [{"overlap": 1}, {"topology": "random_k"}, {"sender": "momentum"}]
)
def test_a_second_round_for_a_batch_is_refused_where_it_cannot_be(options):
    model, _ = small_model()
    both = two_optimizers(model)
    with FakeNodeSwarm(echo, **options) as swarm:
        swarm.session.prepare(model, both)
        backward(model, 0)
        both[0].step()
        with pytest.raises(UnsupportedModel, match="several optimizers"):
            both[1].step()


def test_the_state_of_two_optimizers_is_handed_over_and_a_wrong_one_changes_neither():
    from trainer_fakes import pack_state, unpack_state

    from gossip.training.several import as_one
    from gossip.training.state import StateMismatch

    (model, _), (other, _) = small_model(), small_model(seed=3)
    both, theirs = two_optimizers(model), two_optimizers(other)
    for seed in range(3):
        backward(other, seed)
        for optimizer in theirs:
            optimizer.step()
    packed = pack_state(other, as_one(theirs), {})

    wrong = as_one([both[0], torch.optim.SGD(model[2].parameters(), lr=0.1)])
    with pytest.raises(StateMismatch):
        unpack_state(packed, model, wrong)
    assert not both[0].state

    unpack_state(packed, model, as_one(both))
    assert pack_state(model, as_one(both), {}) == packed
    for seed in range(3, 6):
        for m, optimizers in ((model, both), (other, theirs)):
            backward(m, seed)
            for optimizer in optimizers:
                optimizer.step()
        assert same_bits(model, other)


def test_what_is_no_list_of_optimizers_is_refused():
    model, optimizer = small_model()
    with FakeNodeSwarm(lambda n: n.halt()) as swarm:
        for wrong, words in (
            ([], "no optimizer"),
            ([optimizer, "sgd"], "got str"),
            ([optimizer, optimizer], "same optimizer twice"),
        ):
            with pytest.raises(ConfigError, match=words):
                swarm.session.prepare(model, wrong)


# --- parameters -----------------------------------------------------------------------------------


def decaying(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)


def test_parameters_that_are_frozen_after_prepare_stay_where_they_are_and_may_be_trained_again():
    (model, _), (twin, _) = small_model(), small_model()
    optimizer, twin_optimizer = decaying(model), decaying(twin)
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, optimizer)
        for seed in range(9):
            for m, o in ((model, optimizer), (twin, twin_optimizer)):
                m[0].requires_grad_(not 3 <= seed < 6)
                before = m[0].weight.detach().clone()
                step(m, o, seed)
                assert torch.equal(m[0].weight, before) == (3 <= seed < 6)
            assert same_bits(model, twin)


def test_a_parameter_without_a_gradient_in_some_steps_is_left_alone_in_those():
    (model, _), (twin, _) = small_model(), small_model()
    optimizer, twin_optimizer = decaying(model), decaying(twin)
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, optimizer)
        for seed in range(6):
            for m, o in ((model, optimizer), (twin, twin_optimizer)):
                backward(m, seed)
                if seed % 2:
                    m[2].bias.grad = None
                if seed == 3:
                    m[0].weight.grad.zero_()  # that is a gradient: momentum goes on
                o.step()
            assert same_bits(model, twin)


def test_training_what_was_frozen_at_prepare_is_refused_at_the_step():
    model, _ = small_model()
    model[0].requires_grad_(False)
    optimizer = decaying(model)
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, optimizer)
        step(model, optimizer, 0)
        model[0].requires_grad_(True)
        backward(model, 1)
        with pytest.raises(UnsupportedModel, match="was frozen when the model was prepared"):
            optimizer.step()


def test_a_closure_is_evaluated_without_a_warning_and_may_return_a_number():
    model, optimizer = small_model()

    def closures() -> Iterator[Any]:
        for kind in (lambda loss: loss, lambda loss: float(loss.detach()), lambda _: None):

            def closure(kind: Any = kind) -> Any:
                optimizer.zero_grad()
                loss = model(torch.ones(2, 5)).square().mean()
                loss.backward()
                return kind(loss)

            yield closure

    with FakeNodeSwarm(echo) as swarm, warnings.catch_warnings():
        warnings.simplefilter("error")
        swarm.session.prepare(model, optimizer)
        for closure in closures():
            optimizer.step(closure)
    told = [said.loss for said in contributions(swarm)]
    assert told[0] > told[1] > 0
    assert told[2] is None


# --- models ---------------------------------------------------------------------------------------


class Wrapped(torch.nn.DataParallel):
    """Which does not look for a GPU."""

    def __init__(self, module: torch.nn.Module) -> None:
        torch.nn.Module.__init__(self)
        self.module = module


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def sparse_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Embedding(5, 3, sparse=True), torch.nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("make", "optimizer", "words", "hint"),
    [
        (
            lambda: Wrapped(torch.nn.Linear(2, 2)),
            sgd,
            "wrapped in Wrapped",
            "gossip replaces the wrapper",
        ),
        (
            lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.SyncBatchNorm(2)),
            sgd,
            "1 is a SyncBatchNorm",
            "BatchNorm",
        ),
        (sparse_model, sgd, r"gradient of 0\.weight is sparse", "sparse=False"),
        (
            sparse_model,
            lambda m: torch.optim.SparseAdam(m[:1].parameters()),
            "SparseAdam",
            "use Adam",
        ),
        (lambda: torch.nn.LazyLinear(3), sgd, "weight has no shape yet", "one batch"),
    ],
)
def test_a_model_that_cannot_be_exchanged_is_refused_at_prepare(make, optimizer, words, hint):
    model = make()
    made = optimizer(model)
    with FakeNodeSwarm(lambda n: n.halt()) as swarm:
        with pytest.raises(UnsupportedModel, match=words) as caught:
            swarm.session.prepare(model, made)
        assert hint in str(caught.value.hint)


def test_a_sparse_embedding_that_is_not_trained_is_no_obstacle_and_a_list_of_models_is():
    model = sparse_model()
    model[0].requires_grad_(False)
    with FakeNodeSwarm(echo) as swarm:
        with pytest.raises(ConfigError, match="got list") as caught:
            swarm.session.prepare([model, model], sgd(model))
        assert "ModuleList" in str(caught.value.hint)
        swarm.session.prepare(model, sgd(model))


def test_peers_that_compile_train_with_peers_that_do_not():
    """Same names, so the same layout and a state that fits:
    nothing is compiled before the model is called."""
    said = []
    for compiled in (False, True):
        model, optimizer = small_model()
        given = torch.compile(model) if compiled else model

        def node(n: FakeNode) -> None:
            said.append(n.prepared())
            n.end(0)

        with FakeNodeSwarm(node) as swarm:
            assert swarm.session.prepare(given, optimizer)[0] is given
    assert (said[0].layout, said[0].state) == (said[1].layout, said[1].state)


def test_two_models_that_play_against_each_other_are_one_list_of_modules():
    torch.manual_seed(0)
    one, other = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
    before = one.weight.detach().clone(), other.weight.detach().clone()
    both = [sgd(one), torch.optim.Adam(other.parameters())]
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(torch.nn.ModuleList([one, other]), both)
        for at, optimizer in enumerate(both):
            loss = other(one(torch.ones(4, 2))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                optimizer.step()
            moved = not torch.equal(one.weight, before[0]), not torch.equal(other.weight, before[1])
            assert moved == (True, at == 1)


def test_a_run_that_ends_while_a_step_is_passed_ends_the_loop_and_not_the_script():
    def node(n: FakeNode) -> None:
        n.first_update()
        n.send(events.Halt("the others have completed the training", 0))

    with FakeNodeSwarm(node) as swarm:
        swarm.prepare()
        assert list(swarm.session.steps(5)) == [0], "no optimizer.step() in the body"
        assert swarm.session.finished


def test_a_container_that_nobody_calls_is_watched_in_what_it_holds():
    """The models of a GAN in a ModuleList; its first batch is left out."""
    order, parts = FetchOrder(), torch.nn.ModuleList([torch.nn.Identity(), torch.nn.Identity()])
    order.model = torch.nn.ModuleDict({"parts": parts})
    passed, used = torch.ones(2), torch.zeros(2)
    for given, refused in ((used, False), (passed, True)):
        order.hand_out(passed)
        order.pass_over()
        order.hand_out(used)
        parts[0](torch.full((2,), 5.0))  # noise, which is in no batch
        if refused:
            with pytest.raises(ConfigError, match="prefetching"):
                parts[1](given)
        else:
            parts[1](given)
            order.check_step()


def test_an_optimizer_that_is_made_anew_within_a_loop_of_steps_is_refused():
    with prepared_swarm(echo, peers=2) as (swarm, model, optimizer):
        steps = swarm.session.steps(4)
        next(steps)
        optimizer = torch.optim.AdamW(model.parameters())
        step(model, optimizer, 0)
        with pytest.raises(ConfigError, match="AdamW steps the parameters of"):
            next(steps)


@pytest.mark.parametrize("loop", ["steps", "epochs"])
def test_a_signal_in_the_wait_for_a_round_is_no_end_of_the_run(loop: str) -> None:
    """As it was: a node that leaves ends as after the last round, so the loop ended in silence."""
    with FakeNodeSwarm(echo) as swarm:
        session, (model, optimizer) = swarm.session, small_model()
        session.prepare(model, optimizer)
        session.shard(DataLoader(TensorDataset(torch.zeros(8, 5))))

        def wait_go() -> None:
            session._leaving.stop()

        session._run.exchange.wait_go = wait_go  # type: ignore[assignment,method-assign]
        with pytest.raises(SystemExit) as ended:
            list(getattr(session, loop)(5))
        assert ended.value.code == 143
        assert session._node.halted.exit_code == 0
