"""Stages of a pipeline computed by direct calls, without any peer."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from pipeline_models import WIDTH, Block, char_batch, char_layers, char_loss
from torch import Tensor, nn

from gossip.errors import ConfigError, UnsupportedModel
from gossip_pipelines.planning import layers_of, measure_layers, model_of, walk_without_data
from gossip_pipelines.stages import StageExecutor


def stages_of(layers: list[nn.Module], cuts: tuple[int, ...], seed: int = 0) -> list[StageExecutor]:
    bounds = (0, *cuts, len(layers))
    return [
        StageExecutor(layers[begin:end], begin, seed, char_loss if end == len(layers) else None)
        for begin, end in pairwise(bounds)
    ]


def pieces(x: Tensor, y: Tensor, sizes: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(x.split(sizes), y.split(sizes), strict=True)


def run_step(
    stages: list[StageExecutor], step: int, batch: tuple[Tensor, Tensor], sizes: tuple[int, ...]
) -> float:
    """One step of GPipe order, which leaves the gradients; returns the loss."""
    for number, (inputs, targets) in enumerate(pieces(*batch, sizes)):
        for stage in stages:
            inputs = stage.forward(step, number, inputs, targets)
    for number in range(len(sizes)):
        gradient: Tensor | None = None
        for stage in reversed(stages):
            gradient = stage.backward(number, gradient)
    loss = stages[-1].loss
    assert loss is not None
    for stage in stages:
        assert (stage.samples, stage.done) == (sum(sizes), tuple(range(len(sizes))))
    return loss


def take_mean(layers: list[nn.Module], samples: int) -> None:
    for layer in layers:
        for parameter in layer.parameters():
            assert parameter.grad is not None
            parameter.grad /= samples


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2), (3, 1, 4)])
def test_three_stages_train_as_one_process_on_the_whole_batch(sizes: tuple[int, ...]) -> None:
    layers = char_layers()
    alone = nn.Sequential(*copy.deepcopy(layers))
    own = torch.optim.AdamW(alone.parameters(), lr=3e-3)
    stages = stages_of(layers, (2, 4))
    ours = torch.optim.AdamW(nn.Sequential(*layers).parameters(), lr=3e-3)
    losses = []
    for step in range(30):
        x, y = char_batch(step, 8)
        own.zero_grad()
        expected = char_loss(alone(x), y)
        expected.backward()
        losses.append(run_step(stages, step, (x, y), sizes))
        take_mean(layers, 8)
        assert losses[-1] == pytest.approx(expected.item(), abs=1e-6)
        own.step()
        ours.step()
        for stage in stages:
            stage.reset()
    assert losses[-1] < losses[0] - 0.2


def gradients(layers: list[nn.Module]) -> list[Tensor]:
    return [
        parameter.grad.clone()
        for layer in layers
        for parameter in layer.parameters()
        if parameter.grad is not None
    ]


def test_dropout_is_the_same_wherever_the_model_is_cut() -> None:
    whole, cut = char_layers(dropout=0.3), char_layers(dropout=0.3)
    batch = char_batch(0, 8)
    first = run_step(stages_of(whole, ()), 7, batch, (4, 4))
    assert run_step(stages_of(cut, (1, 3)), 7, batch, (4, 4)) == first
    for one, other in zip(gradients(whole), gradients(cut), strict=True):
        assert torch.equal(one, other)


def test_dropout_is_drawn_anew_for_each_step_and_micro_batch() -> None:
    block, inputs = Block(0.3), torch.ones(2, 3, WIDTH)
    stage, of_another_run = StageExecutor([block], 1, 0), StageExecutor([block], 1, 1)
    state = torch.get_rng_state()
    drawn = [stage.forward(step, number, inputs) for step, number in [(0, 0), (0, 1), (1, 0)]]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(stage.forward(0, 0, inputs), drawn[0])
    assert not torch.equal(of_another_run.forward(0, 0, inputs), drawn[0])
    assert not torch.equal(StageExecutor([block], 2, 0).forward(0, 0, inputs), drawn[0])
    assert torch.equal(torch.get_rng_state(), state)  # the user's own draws are not touched


def test_members_that_share_the_micro_batches_make_up_the_whole_gradient() -> None:
    layers = char_layers()
    others = copy.deepcopy(layers)
    x, y = char_batch(0, 8)
    run_step(stages_of(layers, ()), 0, (x, y), (2, 6))
    whole = gradients(layers)
    parts = []
    for rows in (slice(0, 2), slice(2, 8)):
        for layer in others:
            layer.zero_grad()
        batch = x[rows], y[rows]
        run_step(stages_of(others, (3,)), 0, batch, (len(batch[0]),))
        parts.append(gradients(others))
    for of_all, first, second in zip(whole, *parts, strict=True):
        torch.testing.assert_close(of_all, first + second, rtol=1e-4, atol=1e-5)


def test_a_second_forward_pass_replaces_the_first() -> None:
    layers = char_layers(1)
    stages = stages_of(layers, ())
    x, y = char_batch(0, 4)
    stages[0].forward(0, 0, x, y)
    run_step(stages, 0, (x, y), (4,))
    once = gradients(layers)
    stages[0].reset()
    run_step(stages, 0, (x, y), (4,))
    assert all(torch.equal(one, other) for one, other in zip(once, gradients(layers), strict=True))


def test_a_reset_stage_has_no_gradient() -> None:
    layers = char_layers(1)
    (stage,) = stages_of(layers, ())
    stage.forward(0, 0, *char_batch(0, 4))
    stage.backward(0)
    stage.forward(0, 1, *char_batch(1, 4))
    assert (stage.done, len(stage._kept), stage.samples) == ((0,), 1, 4)
    stage.drop(1)
    stage.drop(2)  # there is none
    assert (stage.done, len(stage._kept), stage.samples) == ((0,), 0, 4)
    assert gradients(layers)
    stage.reset()
    assert (stage.done, stage._kept, stage.samples, stage.loss) == ((), {}, 0, None)
    assert gradients(layers) == []


class Counting(nn.Module):
    """Counts its batches in a buffer, in place or by another tensor."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.seen += 1
        else:
            self.seen = self.seen + 1
        return x


def test_layers_that_keep_statistics_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="1 in layer 3 is a BatchNorm1d"):
        StageExecutor([nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))], 3, 0)
    StageExecutor([nn.BatchNorm1d(2, track_running_stats=False)], 3, 0)
    for in_place in (True, False):
        stage = StageExecutor([nn.Linear(2, 2), Counting(in_place)], 3, 0)
        with pytest.raises(UnsupportedModel, match="layer 4 changes its buffer seen"):
            stage.forward(0, 0, torch.ones(1, 2))


def test_a_loss_that_is_no_number_is_refused() -> None:
    stage = StageExecutor([nn.Linear(2, 1)], 0, 0, lambda outputs, targets: outputs - targets)
    with pytest.raises(ConfigError, match="not a tensor with one number"):
        stage.forward(0, 0, torch.ones(3, 2), torch.ones(3, 1))


def test_layers_that_share_a_parameter_are_refused_by_name() -> None:
    layers = char_layers(1)
    layers[2][1].weight = layers[0].letter.weight  # type: ignore[index,union-attr]
    with pytest.raises(
        ConfigError, match=re.escape("here: layers 0 and 2 share the parameter 1.weight")
    ):
        layers_of((layers, char_batch(0, 1)[0]), "here")


def test_a_walk_without_data_finds_what_a_profile_finds() -> None:
    layers, samples = char_layers(2), char_batch(0, 3)[0]
    walked = walk_without_data(layers, samples)
    times = measure_layers(*layers_of((layers, samples), "here"), (1, 3), 1)
    assert [each.signature for each in walked] == [each.signature for each in times.layers]
    assert model_of([each.signature for each in walked]) != model_of([walked[0].signature])
    assert walked[1].shape == (12, WIDTH)
    assert all(parameter.device.type == "cpu" for parameter in layers[0].parameters())


def test_a_walk_without_data_names_the_layer_that_fails() -> None:
    with pytest.raises(ConfigError, match="layer 1 Linear fails on 3 samples"):
        walk_without_data([nn.Linear(2, 4), nn.Linear(3, 1)], torch.ones(3, 2))


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_an_audit_finds_what_its_member_has_computed_to_the_last_bit(stage: int) -> None:
    layers = char_layers(dropout=0.1)
    member, auditor = (stages_of(copy.deepcopy(layers), (2, 4), seed=7)[stage] for _ in range(2))
    x, targets = char_batch(0, 4)
    torch.manual_seed(3)
    inputs = x if stage == 0 else torch.randn(4, x.shape[1], WIDTH)
    gradient = None if stage == 2 else torch.randn(4, x.shape[1], WIDTH)
    auditor.forward(5, 0, inputs, targets)  # its own, kept meanwhile
    member.forward(5, 1, inputs, targets)
    given = member.forward(5, 2, inputs, targets)
    back = member.backward(2, gradient)
    found = auditor.forward(5, 2, inputs, targets, audit=True)
    found_back = auditor.audit_backward(gradient)
    assert torch.equal(found, given)
    assert (found_back is None) == (back is None) == (stage == 0)
    if back is not None:
        assert found_back is not None
        assert torch.equal(found_back, back)
    grads = [p.grad for layer in auditor._layers for p in layer.parameters()]
    assert all(grad is None for grad in grads)
    assert (auditor.done, auditor.samples, auditor.loss) == ((), 0, None)
    auditor.backward(0, gradient)
    assert auditor.done == (0,)
