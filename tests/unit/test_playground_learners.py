"""Learners of the playground: the three ways agree, and draws depend on their counters alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossip.aggregators.registry import load
from gossip.errors import BadFault, ConfigError, UnknownName
from gossip.ipc import JudgeCommand
from gossip.training.judging import LossJudge
from gossip.training.layout import Layout
from gossip_lab.playground.counters import draw_below, draw_normal, draw_uniform
from gossip_lab.playground.learners import Batches, Cohort, WayName
from gossip_lab.playground.mishaps import read_mishaps
from gossip_lab.playground.networks import make_model
from gossip_lab.playground.reference import ReferenceLoss

FEATURES, CLASSES, N, BATCH = 12, 4, 5, 6


def batches_of(n: int, batch: int = BATCH, features: int = FEATURES) -> Batches:
    draw = torch.Generator().manual_seed(1)
    labels = torch.randint(CLASSES, (50,), generator=draw)
    chosen = torch.randint(50, (n, batch), generator=draw)
    return Batches(torch.rand(50, features, generator=draw), chosen, labels[chosen])


def cohort_of(way: WayName, spec: str = "mlp:7-5") -> Cohort:
    return Cohort(make_model(spec, FEATURES, CLASSES, seed=3), FEATURES, way)


def parameters_of(cohort: Cohort, n: int) -> Tensor:
    noise = torch.randn(n, cohort.d, generator=torch.Generator().manual_seed(2))
    return cohort.initial + 0.1 * noise


@pytest.mark.parametrize("spec", ["mlp:7-5", "mlp", "linear"])
@pytest.mark.parametrize("way", ["products", "vmap"])
def test_all_ways_give_the_gradients_of_autograd(way: WayName, spec: str) -> None:
    loop, other = cohort_of("loop", spec), cohort_of(way, spec)
    parameters, batches = parameters_of(loop, N), batches_of(N)
    model = make_model(spec, FEATURES, CLASSES, seed=3)
    nn.utils.vector_to_parameters(parameters[1], model.parameters())
    images = batches.images[batches.chosen[1]]
    loss = nn.functional.cross_entropy(model(images), batches.labels[1])
    expected = nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))
    gradients = loop.gradients(parameters, batches)
    torch.testing.assert_close(gradients[1], expected)
    torch.testing.assert_close(other.gradients(parameters, batches), gradients)


@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize("spec", ["zeno", "fltrust"])
def test_the_reference_loss_judges_as_in_a_run(spec: str, mix: bool) -> None:
    cohort, batch, rule = cohort_of("products"), batches_of(1, 20), load(spec)
    updates = parameters_of(cohort, 5) - cohort.initial
    updates[0] = 0.0
    model = make_model("mlp:7-5", FEATURES, CLASSES, seed=3)
    layout = Layout(model, torch.optim.SGD(model.parameters()))
    images, labels = batch.images[batch.chosen[0]], batch.labels[0]
    judge = LossJudge(
        model, layout, lambda: nn.functional.cross_entropy(model(images), labels), b""
    )
    rows = nn.functional.pad(updates + cohort.initial * mix, (0, layout.elements - layout.trained))
    expected = judge.explain(rule, JudgeCommand(0, 0, 5, 0, 1, 0, mix), rows.numpy(), 0.3)
    inputs = ReferenceLoss(cohort, cohort.initial, batch, 0.3).inputs(rule.needs, mix=mix)
    found = rule.explain(updates, f=1, **inputs)
    torch.testing.assert_close(found.outlyingness, expected.outlyingness, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.weights, expected.weights, rtol=1e-3, atol=1e-5)
    assert found.weights[1:].max() > 0


@pytest.mark.parametrize("way", ["products", "vmap", "loop"])
def test_local_steps_use_the_parts_of_a_batch_one_after_the_other(way: WayName) -> None:
    cohort = cohort_of(way)
    before, batches = parameters_of(cohort, N), batches_of(N)
    after = before.clone()
    cohort.descend(after, batches, 0.5, steps=2, decay=0.1)
    expected = before.clone()
    for begin in (0, 3):
        part = slice(begin, begin + 3)
        some = Batches(batches.images, batches.chosen[:, part], batches.labels[:, part])
        expected -= 0.5 * (cohort.gradients(expected, some) + 0.1 * expected)
    torch.testing.assert_close(after, expected)
    assert not torch.equal(after, before)


@pytest.mark.parametrize("way", ["products", "vmap"])
def test_a_learner_does_not_depend_on_the_others_in_its_chunk(way: WayName) -> None:
    cohort = cohort_of(way)
    parameters, batches = parameters_of(cohort, 130), batches_of(130)
    together = cohort.gradients(parameters, batches)
    alone = cohort.gradients(
        parameters[70:], Batches(batches.images, batches.chosen[70:], batches.labels[70:])
    )
    torch.testing.assert_close(together[70:], alone)


def test_replicas_in_one_expanded_row_give_the_same_bits_as_copies() -> None:
    cohort = cohort_of("auto")
    assert cohort.way == "products"
    batches = batches_of(N)
    expanded = cohort.gradients(cohort.initial.expand(N, -1), batches)
    copied = cohort.gradients(cohort.initial.repeat(N, 1), batches)
    assert torch.equal(expanded, copied)


def test_evaluations_are_those_of_each_learner_and_0_if_not_finite() -> None:
    cohort = cohort_of("products")
    parameters = parameters_of(cohort, 40)
    parameters[3, 5] = float("nan")
    images, labels = batches_of(1).images, torch.arange(50) % CLASSES
    scores = cohort.logits(parameters[20], images.repeat(6, 1))[-50:]
    found = cohort.evaluate(parameters, images, labels)
    loop = cohort_of("loop").evaluate(parameters[20:22], images, labels)
    assert (found.accuracy[3], found.loss[3]) == (0.0, np.inf)
    assert found.accuracy[20:22].tolist() == loop.accuracy.tolist()
    np.testing.assert_allclose(found.loss[20:22], loop.loss, rtol=1e-5)
    assert 0 < found.accuracy[20] < 1
    assert (scores.argmax(dim=1) == labels).double().mean() == found.accuracy[20]


class _Branching(nn.Module):
    """A module that vmap refuses: its path depends on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.layer(images)
        return output if output.sum() > 0 else 2 * output


def test_a_module_that_vmap_refuses_is_computed_by_the_loop_and_the_reason_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"):
        cohort = Cohort(_Branching(), FEATURES)
    assert cohort.way == "loop"
    assert "because vmap failed: " in caplog.text
    assert cohort.gradients(cohort.initial.expand(N, -1), batches_of(N)).abs().sum() > 0
    with pytest.raises(RuntimeError):
        Cohort(_Branching(), FEATURES, "vmap")


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(FEATURES), nn.Dropout(0.5)])
def test_a_module_with_a_state_or_chance_of_its_own_is_refused(layer: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r"buffers|dropout"):
        Cohort(nn.Sequential(layer, nn.Linear(FEATURES, CLASSES)), FEATURES)


def test_models_come_by_name_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text(
        "import torch\ndef wide(features, classes):\n return torch.nn.Linear(features, classes)"
    )
    assert make_model(f"{file}:wide", 3, 2, seed=0)(torch.zeros(1, 3)).shape == (1, 2)
    assert make_model("small_cnn", 784, 10, seed=0)(torch.zeros(2, 784)).shape == (2, 10)
    with pytest.raises(UnknownName, match="wdie"):
        make_model(f"{file}:wdie", 3, 2, seed=0)
    for spec in ("resnet", "mlp:0", "mlp:a", "linear:3", "small_cnn"):
        with pytest.raises(ConfigError):
            make_model(spec, 3, 2, seed=0)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("def net(): return nn.Linear(3, 2)", r"cannot be called with \(features, classes\)"),
        ("def net(features, classes): return nn.Linear(4, 2)", "fails on samples of 3 numbers"),
        ("def net(features, classes): return nn.Linear(3, 5)", r"shape \(2, 5\) for 2 samples"),
    ],
)
def test_a_model_unfit_for_the_data_is_refused(function: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(f"from torch import nn\n{function}\n")
    with pytest.raises(ConfigError, match=what):
        make_model(f"{tmp_path / 'nets.py'}:net", 3, 2, seed=0)


def test_draws_depend_on_their_counters_alone() -> None:
    peers = np.arange(1000)
    drawn = draw_uniform("batch", 1, peers[:, None], 7, np.arange(3))
    again = draw_uniform("batch", 1, 40, 7, 2)
    assert drawn[40, 2] == again
    assert abs(drawn.mean() - 0.5) < 0.02
    assert len(np.unique(drawn)) == drawn.size
    assert drawn[40, 2] != draw_uniform("batch", 2, 40, 7, 2)
    limits = np.array([1, 5, 9])
    whole = draw_below(limits, "x", 0, peers[:, None])
    assert (whole.min(axis=0) == 0).all()
    assert whole.max(axis=0).tolist() == [0, 4, 8]
    normal = draw_normal("x", 0, peers)
    assert abs(normal.mean()) < 0.1
    assert abs(normal.std() - 1) < 0.1


def test_a_world_plays_the_faults_that_it_can_and_refuses_the_others_by_name() -> None:
    mishaps = read_mishaps(["crash:0-2@5", "slow:3*4", "sign_flip:8,9*10", "label_flip:7"], 10)
    assert [(fault.peer, fault.round) for fault in mishaps.blows] == [(0, 5), (1, 5), (2, 5)]
    assert mishaps.byzantine == {7, 8, 9}
    for words in (["crash:10@5"], ["crash:server@5"], ["partition:0|1@2s+3s"], ["nan:1", "zero:1"]):
        with pytest.raises(BadFault):
            read_mishaps(words, 10)
