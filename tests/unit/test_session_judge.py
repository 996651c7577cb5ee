"""Rules that need the loss, run in the trainer: right answers, and no trace in the model."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from trainer_fakes import FakeNode, FakeNodeSwarm, flat_parameters

from gossip.aggregators.registry import load
from gossip.errors import ConfigError
from gossip.ipc import messages as control
from gossip.ipc.arena import allocate, map_rows
from gossip.training.judging import LossJudge
from gossip.training.layout import Layout


def network() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """With everything that a forward pass could leave a trace in."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Dropout(0.3), torch.nn.Linear(7, 3)
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Data:
    """A judge that draws with all three generators, and remembers what it was asked."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.batches: list[tuple[float, float, float]] = []

    def __call__(self) -> torch.Tensor:
        x = torch.randn(16, 5)
        self.batches.append((float(x[0, 0]), float(np.random.rand()), random.random()))
        self.model.train()
        return self.model(x).square().mean()


def everything(model: torch.nn.Module) -> list:
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    generators = [
        torch.get_rng_state(),
        torch.tensor(np.random.get_state()[1].astype(np.int64)),
        torch.tensor(random.getstate()[1]),
    ]
    modes = torch.tensor([module.training for module in model.modules()])
    return [*[t.clone() for t in model.state_dict().values()], *grads, *generators, modes]


def same(one: list, other: list) -> bool:
    return len(one) == len(other) and all(
        a is b is None or torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def bench() -> tuple[torch.nn.Module, Data, LossJudge, Layout]:
    model, optimizer = network()
    layout = Layout(model, optimizer)
    judge = Data(model)
    return model, judge, LossJudge(model, layout, judge, b"seed"), layout


def in_rows(layout: Layout, *updates: torch.Tensor) -> torch.Tensor:
    """As they travel: with a place for what is said of each parameter."""
    return torch.nn.functional.pad(torch.stack(updates), (0, layout.elements - layout.trained))


def question(
    rows: int, own: int = -1, mix: bool = False, f: int = 1, round_id: int = 0
) -> control.JudgeCommand:
    return control.JudgeCommand(1, round_id, rows, 0, f, own, mix)


@pytest.mark.parametrize("rule", ["zeno", "zeno_pp", "median"])
def test_judging_leaves_no_trace(rule):
    model, _, on_bench, layout = bench()
    model.eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before = everything(model)
    rows = torch.randn(5, layout.elements).numpy()
    before = everything(model)
    on_bench.explain(load(rule), question(4), rows, 0.1)
    assert same(before, everything(model))


def test_a_judge_that_raises_leaves_no_trace_either():
    model, judge, _, layout = bench()

    def raises() -> torch.Tensor:
        judge()
        raise RuntimeError("of the user")

    before = everything(model)
    with pytest.raises(RuntimeError, match="of the user"):
        LossJudge(model, layout, raises, b"").explain(
            load("zeno"), question(2), np.ones((3, layout.elements), np.float32), 0.1
        )
    assert same(before, everything(model))


def test_all_updates_of_a_question_are_rated_on_one_mini_batch_and_the_next_on_another():
    _, judge, on_bench, layout = bench()
    rows = np.ones((6, layout.elements), np.float32)
    on_bench.explain(load("zeno"), question(5), rows, 0.1)
    assert len(judge.batches) == 6
    assert len(set(judge.batches)) == 1
    on_bench.explain(load("zeno"), question(5), rows, 0.1)
    assert len(set(judge.batches)) == 2


def test_two_peers_judge_on_different_data():
    model, _, _, layout = bench()
    drawn = []
    for seed in (b"0/1", b"0/2"):
        judge = Data(model)
        LossJudge(model, layout, judge, seed).explain(
            load("zeno"), question(1, f=0), np.ones((2, layout.elements), np.float32), 0.1
        )
        drawn.append(judge.batches[0])
    assert drawn[0] != drawn[1]


def test_evaluate_is_the_loss_at_x_minus_the_step():
    model, _, on_bench, layout = bench()
    model.eval()
    seen = []

    def look() -> torch.Tensor:
        seen.append(flat_parameters(model))
        return (flat_parameters(model) ** 2).sum()

    on_bench = LossJudge(model, layout, look, b"")
    rows = torch.randn(3, layout.elements)
    x = flat_parameters(model)
    on_bench.explain(load("zeno"), question(2), rows.numpy(), 0.25)
    assert torch.equal(seen[0], x)
    assert torch.allclose(seen[1], x - 0.25 * rows[0, : len(x)])
    assert torch.allclose(seen[2], x - 0.25 * rows[1, : len(x)])


def test_parameters_that_are_mixed_are_rated_as_moves_towards_them():
    model, _, _, layout = bench()
    seen = []

    def look() -> torch.Tensor:
        seen.append(flat_parameters(model))
        return (flat_parameters(model) ** 2).sum()

    x = flat_parameters(model)
    rows = in_rows(layout, x * 0.5, x, x * 3, torch.zeros_like(x))
    verdict = LossJudge(model, layout, look, b"").explain(
        load("zeno"), question(3, own=1, mix=True), rows.numpy(), 0.25
    )
    assert torch.allclose(seen[1], x * 0.5, atol=1e-6)
    assert torch.allclose(seen[3], x * 3, atol=1e-6)
    assert verdict.weights.tolist() == [0.5, 0.5, 0.0]  # going to 3 x triples the norm
    assert torch.allclose(verdict.aggregate[: len(x)], -0.25 * x, atol=1e-6)


def test_a_rule_that_needs_the_gradient_gets_that_of_the_judges_loss():
    model, _, _, layout = bench()

    def loss() -> torch.Tensor:
        return sum((p**2).sum() for p in model.parameters()) / 2

    x = flat_parameters(model)
    rows = in_rows(layout, x, -x, 2 * x, torch.zeros_like(x))
    verdict = LossJudge(model, layout, loss, b"").explain(
        load("zeno_pp"), question(3), rows.numpy(), 0.1
    )
    assert verdict.weights.tolist() == [0.5, 0.0, 0.5]  # x agrees with the gradient x, -x does not
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    "loss", [lambda: 1.0, lambda: torch.zeros(2), lambda: torch.zeros(1, dtype=torch.int64)]
)
def test_what_is_no_loss_is_named(loss):
    model, _, _, layout = bench()
    with pytest.raises(ConfigError, match="not a loss"):
        LossJudge(model, layout, loss, b"").explain(
            load("zeno"), question(2), np.ones((3, layout.elements), np.float32), 0.1
        )


# --- over the channel -----------------------------------------------------------------------------


def test_zeno_finds_the_liar_over_the_channel_and_leaves_the_parameters_bit_identical():
    model, optimizer = network()
    judge = Data(model)
    answers: list[control.JudgeReply] = []

    def node(n: FakeNode) -> None:
        elements = n.prepared().elements
        fd = allocate(4 * 5 * elements)
        rows = map_rows(fd, 5, elements)
        n.offered(0)
        rows[:3] = n.arena.updates[0]
        rows[3] = -10 * n.arena.updates[0]
        for ticket, capacity in ((7, 5), (8, 0)):
            n.send(
                control.JudgeCommand(ticket, 0, 4, capacity, 1, -1, False),
                fds=[fd] if capacity else [],
            )
            answers.append(n.expect(control.JudgeReply))
            assert np.allclose(rows[4], n.arena.updates[0])
        n.lost(0)
        n.end(1)

    with FakeNodeSwarm(node, aggregator="zeno", peers=4) as swarm:
        swarm.session.prepare(model, optimizer, judge=judge)
        torch.manual_seed(3)
        model.zero_grad()
        model(torch.randn(64, 5)).square().mean().backward()
        before = [t.clone() for t in model.state_dict().values()]
        optimizer.step()
        assert all(
            torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True)
        )
    assert [a.ticket for a in answers] == [7, 8]
    assert all(
        a.reason == "" and a.weights == pytest.approx((1 / 3, 1 / 3, 1 / 3, 0)) for a in answers
    )
    assert all(a.outlyingness[3] > 2 for a in answers)


def test_a_rule_that_cannot_answers_with_the_reason():
    model, optimizer = network()

    def node(n: FakeNode) -> None:
        elements = n.prepared().elements
        n.offered(0)
        n.send(control.JudgeCommand(1, 0, 1, 3, 2, -1, False), fds=[allocate(4 * 3 * elements)])
        assert "zeno needs 3 updates" in n.expect(control.JudgeReply).reason
        n.lost(0)
        n.end(1)

    with FakeNodeSwarm(node, aggregator="zeno", peers=4) as swarm:
        swarm.session.prepare(model, optimizer, judge=Data(model))
        model(torch.randn(8, 5)).sum().backward()
        optimizer.step()


def test_a_rule_that_needs_the_loss_is_refused_without_a_judge():
    model, optimizer = network()
    with (
        FakeNodeSwarm(lambda n: n.halt(), aggregator="zeno", peers=4) as swarm,
        pytest.raises(ConfigError, match="zeno needs the loss"),
    ):
        swarm.session.prepare(model, optimizer)
