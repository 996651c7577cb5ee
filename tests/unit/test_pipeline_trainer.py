"""A trainer of a pipeline's stage, beside a node that plays from a script."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pipeline_models import LENGTH, WIDTH, char_batch, char_layers, char_loss
from torch import Tensor, nn
from trainer_fakes import FakeNode, FakeNodeSwarm, allocate_bytes, echo

from gossip.config import RunConfig
from gossip.core import events
from gossip.errors import ConfigError
from gossip.faults import NegatedActivations
from gossip.inject import FaultyTrainer
from gossip.ipc import map_bytes, messages as control
from gossip.training.steps import PlainSteps
from gossip_pipelines.planning import model_of, walk_without_data
from gossip_pipelines.stages import StageExecutor
from gossip_pipelines.stages.passes import Boundary, StageWork

SAMPLES = 2
SHAPE = (SAMPLES, LENGTH, WIDTH)


def plan_for(layers: list[nn.Module], cuts: tuple[int, ...], peers: int) -> dict[str, Any]:
    """Micro-batches of 2 samples, 3 a step; the first stages have a peer each, the last the
    others."""
    walked = walk_without_data(layers, char_batch(0, 1)[0])
    bounds = (0, *cuts, len(layers))
    members = [(at,) for at in range(len(cuts))] + [tuple(range(len(cuts), peers))]
    return {
        "model": model_of([each.signature for each in walked]),
        "micro_batches": 3,
        "samples": SAMPLES,
        "names": tuple(f"lab{at}" for at in range(peers)),
        "stages": [
            {"layers": (bounds[at], bounds[at + 1] - 1), "peers": each}
            for at, each in enumerate(members)
        ],
    }


class Stage:
    """The session of one peer of a plan, whose node plays ``script``."""

    def __init__(self, peer: int, script: Callable[[FakeNode], None], **changed: Any) -> None:
        layers = char_layers()
        self.plan = plan_for(layers, (2, 4), 3) | changed
        self.swarm = FakeNodeSwarm(script, peers=3, peer=peer, pipeline=self.plan)
        self.layers = layers

    def __enter__(self) -> Stage:
        self.swarm.__enter__()
        self.pipe = self.swarm.session.pipeline(
            self.layers, char_batch(0, 1)[0], loss=char_loss, optimizer=sgd
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.swarm.__exit__()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def run_pass(
    node: FakeNode, number: int, backward: bool, given: Tensor | None, round_id: int = 0
) -> tuple[control.PassReply, Tensor | None]:
    data = b"" if given is None else given.contiguous().numpy().tobytes()
    command = control.PassCommand(round_id, number, 5, backward, len(data))
    node.send(command, fds=[allocate_bytes(data)] if data else [])
    reply = node.expect(control.PassReply)
    assert (reply.round_id, reply.micro_batch, reply.attempt) == (round_id, number, 5)
    assert reply.backward is backward
    if not reply.nbytes:
        return reply, None
    memory = map_bytes(node.fds.pop(0), reply.nbytes)
    return reply, torch.frombuffer(memory, dtype=torch.float32).view(SHAPE)


def collect(node: FakeNode, slot: int, numbers: tuple[int, ...], round_id: int = 0) -> Tensor:
    node.send(control.CollectCommand(round_id, slot, numbers))
    said = node.expect(control.Contribute)
    assert (said.round_id, said.slot, said.micro_batches) == (round_id, slot, numbers)
    assert said.samples == SAMPLES * len(numbers)
    return torch.from_numpy(node.arena.updates[slot].copy())


def expected_gradient(layers: list[nn.Module], rows: slice) -> Tensor:
    """Of the stage in the middle, from the whole model."""
    whole = nn.Sequential(*copy.deepcopy(layers))
    x, y = char_batch(0, 6)
    char_loss(whole(x[rows]), y[rows]).backward()
    return torch.cat([p.grad.reshape(-1) for p in whole[2:4].parameters() if p.grad is not None])


def test_a_stage_in_the_middle_computes_what_its_node_asks_for() -> None:
    whole = char_layers()
    (x, _), (first, middle, last) = (
        char_batch(0, 6),
        (nn.Sequential(*whole[:2]), nn.Sequential(*whole[2:4]), nn.Sequential(*whole[4:])),
    )
    handed = first(x).detach()
    rows = [slice(2 * at, 2 * at + 2) for at in range(3)]
    heard: list[Any] = []

    def gradient_of(number: int) -> Tensor:
        """Of the middle's output, times the samples, as the last stage gives it."""
        output = middle(handed[rows[number]]).detach().requires_grad_()
        targets = char_batch(0, 6)[1][rows[number]]
        (SAMPLES * char_loss(last(output), targets)).backward()
        assert output.grad is not None
        return output.grad

    def script(node: FakeNode) -> None:
        said = node.prepared()
        assert said.activation_bytes == (4 * handed[:2].numel(), 4 * handed[:2].numel())
        node.go(0)
        for number in (0, 1):
            _, output = run_pass(node, number, False, handed[rows[number]])
            assert output is not None
            assert torch.equal(output, middle(handed[rows[number]]))
            run_pass(node, number, True, gradient_of(number))
        heard.append(collect(node, 1, (0, 1)))
        run_pass(node, 2, False, handed[rows[2]])
        node.send(events.DropForward(0, 2))
        run_pass(node, 2, False, handed[rows[2]])
        reply, gradient = run_pass(node, 2, True, gradient_of(2))
        assert (reply.samples, reply.loss) == (SAMPLES, None)
        assert gradient is not None
        heard.append(collect(node, 2, (0, 1, 2)))
        node.send(events.ResetSum(0))
        run_pass(node, 1, False, handed[rows[1]])
        run_pass(node, 1, True, gradient_of(1))
        heard.append(collect(node, 3, (1,)))
        node.apply(0, 0, heard[1].numpy())
        node.expect(control.AppliedReply)
        # one of the round before, which is over
        node.send(control.PassCommand(0, 1, 5, False, 0))
        node.go(1)
        assert node.expect(control.PassReply).nbytes == 0
        node.halt()

    with Stage(1, script) as stage:
        assert [layer.weight.device.type for layer in (stage.layers[0].letter,)] == ["meta"]
        assert stage.pipe.step(None, None) is None
        assert stage.swarm.session.step == 1
        assert list(stage.pipe.model) == ["2", "3"]
        found = [p.detach() for p in stage.pipe.model.parameters()]
    for update, part in zip(heard, (slice(0, 4), slice(0, 6), slice(2, 4)), strict=True):
        expected = expected_gradient(whole, part)
        torch.testing.assert_close(update[: len(expected)], expected, rtol=1e-4, atol=1e-6)
    step = expected_gradient(whole, slice(0, 6)).neg() * 0.1
    before = torch.cat([p.detach().reshape(-1) for p in middle.parameters()])
    after = torch.cat([p.reshape(-1) for p in found])
    torch.testing.assert_close(after, before + step, rtol=1e-4, atol=1e-6)


def test_the_last_stage_reads_the_targets_and_knows_the_loss() -> None:
    whole = nn.Sequential(*char_layers())
    x, y = char_batch(0, 6)
    handed = whole[:4](x).detach()

    def script(node: FakeNode) -> None:
        assert node.prepared().activation_bytes == (4 * handed[:2].numel(), 0)
        node.go(0)
        for number in (0, 2):
            reply, output = run_pass(node, number, False, handed[2 * number : 2 * number + 2])
            assert output is None
            reply, gradient = run_pass(node, number, True, None)
            assert gradient is not None
            assert reply.loss is not None
        node.put(0, collect(node, 1, (0, 2)).numpy())
        node.send(control.ApplyCommand(0, 0, 0.0))
        node.expect(control.AppliedReply)
        node.go(1)
        node.halt()

    with Stage(2, script) as stage:
        rows = [0, 1, 4, 5]
        expected = char_loss(whole(x[rows]), y[rows]).item()
        assert stage.pipe.step(None, y) == pytest.approx(expected, abs=1e-6)
        assert stage.pipe.is_last
        assert not stage.pipe.is_first


def test_a_node_that_dies_in_the_middle_gets_the_round_anew() -> None:
    handed = nn.Sequential(*char_layers()[:2])(char_batch(0, 6)[0]).detach()

    def first(node: FakeNode) -> None:
        node.prepared()
        node.go(0)
        run_pass(node, 0, False, handed[:2])
        run_pass(node, 0, True, torch.ones(SHAPE))

    def second(node: FakeNode) -> None:
        node.prepared()
        node.go(0)
        run_pass(node, 1, False, handed[2:4])
        run_pass(node, 1, True, torch.ones(SHAPE))
        node.apply(0, 0, collect(node, 1, (1,)).numpy())
        node.expect(control.AppliedReply)
        node.go(1)
        node.halt()

    stage = Stage(1, first)
    stage.swarm._scripts.append(second)
    with stage:
        stage.pipe.step(None, None)
        assert stage.swarm.session.step == 1


def nothing(node: FakeNode) -> None:
    node.halt()


def refused(match: str, peer: int = 1, layers: Any = None, **changed: Any) -> None:
    layers = layers or char_layers()
    plan = plan_for(char_layers(), (2, 4), 3) | changed
    swarm = FakeNodeSwarm(nothing, peers=3, peer=peer, pipeline=plan)
    with swarm, pytest.raises(ConfigError, match=match):
        swarm.session.pipeline(layers, char_batch(0, 1)[0], loss=char_loss, optimizer=sgd)


def test_a_plan_for_another_model_is_refused_before_the_first_step() -> None:
    refused("the plan is for the model 0123456789abcdef", model="0123456789abcdef")
    refused("the plan has the layers 0 to 5, and peer.pipeline was given 4", layers=char_layers(2))
    changed = char_layers()
    changed[1].net[0] = nn.Linear(WIDTH, 4 * WIDTH, bias=False)  # type: ignore[index]
    refused("the plan is for the model", layers=changed)


def test_what_a_stage_cannot_train_is_refused_before_the_first_step() -> None:
    tied = char_layers()
    tied[-1][1].weight = tied[0].letter.weight  # type: ignore[index,union-attr]
    refused("peer.pipeline: layers 0 and 5 share the parameter 1.weight", layers=tied)
    refused("peer.pipeline: the layers are dict", layers={"a": nn.Linear(1, 1)})
    normed = [*char_layers(), nn.BatchNorm1d(LENGTH)]
    walked = walk_without_data(normed, char_batch(0, 2)[0])
    plan = plan_for(normed, (2, 4), 3)
    assert plan["model"] == model_of([each.signature for each in walked])
    refused("layer 6 is a BatchNorm1d", peer=2, layers=normed, **plan)


def test_a_script_that_trains_data_parallel_is_refused_in_a_run_with_a_plan() -> None:
    plan = plan_for(char_layers(), (2, 4), 3)
    model = nn.Sequential(*char_layers())
    swarm = FakeNodeSwarm(nothing, peers=3, peer=1, pipeline=plan)
    with swarm, pytest.raises(ConfigError, match=r"has a plan, and the script calls peer\.prepare"):
        swarm.session.prepare(model, sgd(model.parameters()))


def test_a_step_of_another_size_is_refused() -> None:
    def script(node: FakeNode) -> None:
        node.prepared()
        node.go(0)
        node.halt()

    x, y = char_batch(0, 5)
    with Stage(0, script) as stage:
        with pytest.raises(ConfigError, match=r"the inputs of a step are 5 samples, .* steps of 6"):
            stage.pipe.step(x, y)
        with pytest.raises(ConfigError, match="the inputs of a step are no tensor"):
            stage.pipe.step(None, y)
        with pytest.raises(ConfigError, match=r"optimizer\.step"):
            stage.pipe.optimizer.step()
        with pytest.raises(ConfigError, match="shard: a pipeline does not support that"):
            stage.swarm.session.shard([1, 2], batch_size=1)
        with pytest.raises(ConfigError, match="mean: a pipeline does not support that"):
            stage.swarm.session.mean(loss=1.0)


def test_a_script_without_plan_is_refused_or_computes_all_layers_alone() -> None:
    swarm, samples = FakeNodeSwarm(nothing, peers=2), char_batch(0, 1)[0]
    with swarm, pytest.raises(ConfigError, match="was called in a run without a plan"):
        swarm.session.pipeline(char_layers(), samples, loss=char_loss, optimizer=sgd)
    layers = char_layers()
    alone = nn.Sequential(*copy.deepcopy(layers))
    made = sgd(alone.parameters())
    with FakeNodeSwarm(echo) as swarm:
        pipe = swarm.session.pipeline(layers, samples, loss=char_loss, optimizer=sgd)
        for step in range(3):
            x, y = char_batch(step, 4)
            expected = char_loss(alone(x), y)
            assert pipe.step(x, y) == pytest.approx(expected.item(), abs=1e-5)
            made.zero_grad()
            expected.backward()
            made.step()
    assert (pipe.stages, pipe.is_first, pipe.is_last) == (1, True, True)


def test_what_is_sent_as_bf16_is_half_as_large_and_rounded_once() -> None:
    torch.manual_seed(0)
    layer, x, gradient = nn.Linear(4, 4), torch.randn(2, 4), torch.randn(2, 4)
    boundary = Boundary((2, 4), torch.float32, torch.bfloat16)
    work = StageWork(
        StageExecutor([layer], 0, 5), torch.device("cpu"), boundary, boundary, PlainSteps()
    )
    assert work.activation_bytes == (16, 16)
    results = []
    for backward, sent in ((False, x), (True, gradient)):
        memory = bytearray(sent.bfloat16().view(torch.int16).numpy().tobytes())
        reply, fd = work.run(control.PassCommand(0, 0, 0, backward, 16), memoryview(memory))
        assert (reply.nbytes, fd is None) == (16, False)
        assert fd is not None
        handed = torch.frombuffer(map_bytes(fd, reply.nbytes), dtype=torch.bfloat16)
        results.append(handed.view(2, 4).clone())
        os.close(fd)
    taken = x.bfloat16().float().requires_grad_()
    outputs = layer(taken)
    outputs.backward(gradient.bfloat16().float())
    assert torch.equal(results[0], outputs.bfloat16())
    assert torch.equal(results[1], taken.grad.bfloat16())


def test_a_member_that_lies_hands_on_the_opposite_of_what_it_computes_with() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    boundary = Boundary((2, 4), torch.float32, torch.float32)
    lies = RunConfig(peers=3, faults=("negated_activations:1*0.5", "scaled_gradients:1"))
    found: list[list[Tensor]] = []
    for steps in (PlainSteps(), FaultyTrainer(lies, 1, None)):
        executor = StageExecutor([layer], 0, 5)
        work = StageWork(executor, torch.device("cpu"), boundary, boundary, steps)
        results = []
        for number in range(8):
            for backward in (False, True):
                command = control.PassCommand(0, number, 0, backward, 32)
                reply, fd = work.run(command, memoryview(bytearray(x.numpy().tobytes())))
                assert fd is not None
                memory = map_bytes(fd, reply.nbytes)
                results.append(torch.frombuffer(memory, dtype=torch.float32).view(2, 4))
                os.close(fd)
        found.append(results)
    truths, told = found
    signs = {
        number: bool(torch.equal(told[2 * number], -truths[2 * number])) for number in range(8)
    }
    lie = NegatedActivations((1,), 0.5)
    assert signs == {number: lie.strikes(1, 0, number) for number in range(8)}
    assert set(signs.values()) == {False, True}
    for truth, lied in zip(truths[1::2], told[1::2], strict=True):
        torch.testing.assert_close(lied, 100 * truth)
