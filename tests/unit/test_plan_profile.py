"""Measuring layers: what a layer of known time and size is found to be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from gossip.errors import ConfigError
from gossip.launch.cli import app
from gossip.testing import TimedLayer
from gossip_pipelines.plan.profiling import doubt
from gossip_pipelines.planning import (
    CostLine,
    fit_line,
    layers_of,
    measure_layers,
    r_squared,
    read_profile,
)


def test_a_line_goes_through_exact_points() -> None:
    line = fit_line([4, 8, 32], [0.14, 0.18, 0.42])
    assert line.fixed_s == pytest.approx(0.1)
    assert line.each_s == pytest.approx(0.01)
    assert r_squared([line.at(n) for n in (4, 8, 32)], [0.14, 0.18, 0.42]) == pytest.approx(1.0)


def test_no_part_of_a_line_is_below_zero() -> None:
    assert fit_line([1, 2], [2.0, 1.0]) == CostLine(1.5, 0.0)
    assert fit_line([1, 2], [0.5, 2.0]) == CostLine(0.0, pytest.approx(0.9))


def test_r_squared_is_one_less_what_is_not_explained() -> None:
    assert r_squared([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 1.0
    assert r_squared([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]) == 0.0
    assert r_squared([3.0, 2.0, 1.0], [1.0, 2.0, 3.0]) == -3.0


def test_a_timed_layer_takes_its_time_and_computes_nothing() -> None:
    """It sleeps, so it takes at least its time, however busy the machine is."""
    layer = TimedLayer(0.001, 0.002, backward=3.0, parameters=10, speed=2.0)
    inputs = torch.randn(4, 3, requires_grad=True)
    (layers,) = [measure_layers([layer], inputs.detach(), (2, 8), 3).layers]
    assert layers[0].parameter_bytes == 40
    assert layers[0].output_bytes == 12
    for samples in (2, 8):
        took_s = (0.001 + 0.002 * samples) / 2
        assert layers[0].forward.at(samples) >= 0.999 * took_s
        assert layers[0].backward.at(samples) >= 0.999 * 3 * took_s
    outputs = layer(inputs)
    assert torch.equal(outputs, inputs)
    outputs.sum().backward()
    assert inputs.grad is not None
    assert torch.equal(inputs.grad, torch.ones(4, 3))
    assert not layer.weight.grad.any()


def test_sizes_are_those_of_a_sample() -> None:
    layers = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)]
    found = measure_layers(layers, torch.randn(3, 8), (2, 16), 1).layers
    assert [layer.parameter_bytes for layer in found] == [4 * 9 * 16, 0, 4 * 17 * 4]
    assert [layer.output_bytes for layer in found] == [64, 64, 16]
    # a linear layer keeps its inputs, a rectifier its outputs
    assert [layer.kept_bytes for layer in found] == [32, 64, 64]
    assert [layer.name for layer in found] == ["0 Linear", "1 ReLU", "2 Linear"]


def test_whole_numbers_are_samples_too() -> None:
    layers = [nn.Embedding(50, 8), nn.Linear(8, 8)]
    found = measure_layers(layers, torch.zeros(1, 5, dtype=torch.long), (1, 8), 1).layers
    assert [layer.output_bytes for layer in found] == [160, 160]


def test_layers_that_are_known_are_not_timed() -> None:
    layers = [TimedLayer(0.001), TimedLayer(0.002)]
    first = measure_layers(layers, torch.zeros(1, 2), (1, 4), 1)
    known = {layer.signature: layer for layer in first.layers[:1]}
    again = measure_layers(layers, torch.zeros(1, 2), (1, 4), 1, known)
    assert (first.timed, again.timed) == (2, 1)
    assert again.layers[0] == first.layers[0]


def test_a_signature_is_of_the_layer_not_of_the_device() -> None:
    def signature(layer: nn.Module, width: int = 2) -> str:
        return measure_layers([layer], torch.zeros(1, width), (1, 4), 0 + 1).layers[0].signature

    assert signature(TimedLayer(0.001)) == signature(TimedLayer(0.001, speed=8.0))
    assert signature(TimedLayer(0.001)) != signature(TimedLayer(0.002))
    assert signature(nn.ReLU()) != signature(nn.ReLU(), width=3)
    assert signature(nn.Linear(2, 2)) != signature(nn.Linear(2, 2, bias=False))


class Pair(nn.Module):
    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return inputs, inputs


class Mean(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.mean()


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([nn.Linear(3, 2), nn.Linear(3, 2)], "layer 1 Linear fails on 4 samples of shape"),
        ([Pair()], "layer 0 Pair does not return one tensor"),
        ([Mean()], "layer 0 Mean does not return one tensor"),
    ],
)
def test_a_layer_that_is_none_is_named(layers: list[nn.Module], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        measure_layers(layers, torch.zeros(1, 3), (1, 4), 1)


def test_what_a_function_returns_is_checked() -> None:
    samples, linear = torch.zeros(2, 3), nn.Linear(3, 3)
    assert layers_of((nn.Sequential(linear), samples), "f") == ([linear], samples)
    tied = nn.Linear(3, 3)
    tied.weight = linear.weight
    for made, said in [
        (linear, "f returned Linear, not layers and samples"),
        ((linear, samples), "the layers are Linear, not nn.Sequential"),
        (([linear], [1, 2]), "the samples are not a tensor"),
        (([linear], torch.zeros(0, 3)), "the samples are not a tensor with one"),
        (([], samples), "0 layers; a plan may have 1 to 512"),
        (([linear, nn.ReLU(), tied], samples), "layers 0 and 2 share the parameter weight"),
    ]:
        with pytest.raises(ConfigError, match=said):
            layers_of(made, "f")


MODEL = """
import torch
from gossip.testing import TimedLayer

def layers():
    return [TimedLayer(0.001), TimedLayer(0.002)], torch.zeros(1, 4)
"""


def command(*words: str) -> str:
    return CliRunner().invoke(app, ["plan", *words], catch_exceptions=False).output


def test_a_profile_is_kept_and_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_layers.py").write_text(MODEL)
    words = ("my_layers.py:layers", "--name", "lab1", "--batches", "1,4", "--repeats", "1")
    assert "2 timed now" in command("profile", *words, "--memory", "2GiB")
    first = read_profile(tmp_path / "lab1.toml")
    assert (first.peer, first.memory_bytes, first.batches) == ("lab1", 2 * 2**30, (1, 4))
    assert "all layers were already in the file" in command("profile", *words)
    again = read_profile(tmp_path / "lab1.toml")
    assert again.layers == first.layers
    assert "2 timed now" in command("profile", *words, "--again")


def test_a_line_that_predicts_badly_is_doubted() -> None:
    assert doubt(0.96, 0.95) == ""
    assert "below 0.95: is the machine busy?" in doubt(0.9, 0.95)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("profile", "nowhere.py:layers", "--name", "a"), "there is no file"),
        (("profile", "my_layers.py:layer", "--name", "a"), "has no function layer"),
        (("profile", "my_layers.py", "--name", "a"), "names no function"),
        (("profile", "my_layers.py:layers", "--name", "a/b"), "cannot be 'a/b'"),
        (("profile", "my_layers.py:layers", "--name", "a", "--batches", "4,2"), "two numbers"),
        (("profile", "my_layers.py:layers", "--name", "a", "--memory", "much"), "is not a size"),
        (("link", "lab1.toml", "lab2"), "there is no file lab1.toml"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_layers.py").write_text(MODEL)
    with pytest.raises(ConfigError, match=said):
        command(*words)
