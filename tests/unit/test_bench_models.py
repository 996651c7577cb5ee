"""Models and data sets of the robustness table."""

from __future__ import annotations

import dataclasses
import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from gossip.errors import ConfigError, UnknownName
from gossip_lab import data_sets
from gossip_lab.bench import trial_store
from gossip_lab.bench.trial_world import train
from gossip_lab.bench.trials import Trial
from gossip_lab.playground import networks


def stripes(samples: int = 60) -> data_sets.TrainingData:
    """Images of 28 by 28 of three classes: a bright stripe at another height."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(samples) % 3
    images = 0.2 * torch.rand(samples, 28, 28, generator=generator)
    for sample, label in enumerate(labels.tolist()):
        images[sample, 4 + 8 * label : 8 + 8 * label] = 1.0
    flat = images.flatten(1)
    return data_sets.TrainingData(flat[20:], labels[20:], flat[:20], labels[:20])


def test_the_models_of_images_are_byzfls() -> None:
    conv, linear = torch.nn.Conv2d, torch.nn.Linear
    layers = [conv(1, 20, 5), conv(20, 50, 5), linear(800, 500), linear(500, 10)]
    expected = {
        "cnn_mnist": [tuple(each.shape) for layer in layers for each in layer.parameters()],
        "fc_mnist": [(100, 784), (100,), (10, 100), (10,)],
        "logreg_mnist": [(10, 784), (10,)],
    }
    images = stripes().images
    standard = ((images - 0.1307) / 0.3081).view(-1, 1, 28, 28)
    for name, shapes in expected.items():
        model = networks.make_model(name, 784, 10, seed=3)
        assert isinstance(model, torch.nn.Sequential)
        assert [tuple(each.shape) for each in model.parameters()] == shapes
        torch.testing.assert_close(model(images), model[1:](standard))


@pytest.mark.parametrize("name", networks.NAMES)
def test_each_model_learns(name: str) -> None:
    trial = Trial("mean", "none", 3, 0, rounds=40, batch=8, lr=0.1, model=name)
    accuracy = train(trial, stripes()).accuracy
    assert accuracy > 0.9


def test_a_model_that_is_not_there_or_not_for_such_images_is_told() -> None:
    with pytest.raises(UnknownName, match="cnn_mnits"):
        trial_store.check_model("cnn_mnits", stripes())
    few = dataclasses.replace(stripes(), images=torch.zeros(40, 64))
    with pytest.raises(ConfigError, match="28 by 28, and these have 64 numbers"):
        trial_store.check_model("cnn_mnist", few)


def test_a_weight_decay_shrinks_what_nobody_pulls_at() -> None:
    trial = Trial("mean", "zero", 3, 2, rounds=30, batch=4, lr=0.5, model="mlp:8")
    decayed = Trial(
        "mean", "zero", 3, 2, rounds=30, batch=4, lr=0.5, model="mlp:8", weight_decay=1.9
    )
    plain, shrunk = train(trial, stripes()).accuracy, train(decayed, stripes()).accuracy
    assert shrunk is not None
    assert plain > 0.9 > shrunk


def test_a_curve_has_a_test_every_so_many_rounds_and_none_is_made_unasked() -> None:
    trial = Trial("mean", "none", 3, 0, rounds=10, batch=8, lr=0.1, model="mlp:8", every=4)
    curve = train(trial, stripes()).curve
    assert [made for made, _ in curve] == [4, 8]
    assert all(0 <= accuracy <= 1 for _, accuracy in curve)
    assert (
        train(Trial("mean", "none", 3, 0, rounds=10, batch=8, model="mlp:8"), stripes()).curve == ()
    )


def test_the_curve_of_a_model_that_is_lost_goes_on_at_nothing() -> None:
    trial = Trial("mean", "none", 3, 0, rounds=60, batch=8, lr=1e30, model="mlp:8", every=20)
    outcome = train(dataclasses.replace(trial, weight_decay=1e30), stripes())
    assert outcome.accuracy == 0.0
    assert outcome.curve == ((20, 0.0), (40, 0.0), (60, 0.0))


def test_what_is_held_out_is_tested_on_and_not_trained_on() -> None:
    data = stripes()
    trial = Trial("mean", "none", 3, 0, rounds=20, batch=8, lr=0.1, model="mlp:8")
    held = Trial("mean", "none", 3, 0, rounds=20, batch=8, lr=0.1, model="mlp:8", validation=0.25)
    assert train(trial, data).validation is None
    with_part = train(held, data)
    assert with_part.validation > 0.5
    # Labels that are wrong in the held out part alone would show in its accuracy only.
    _, out = data_sets.hold_out(data, 0.25, seed=0)
    is_out = (data.images[:, None] == out.test_images).all(dim=2).any(dim=1)
    labels = torch.where(is_out, (data.labels + 1) % 3, data.labels)
    outcome = train(held, dataclasses.replace(data, labels=labels))
    assert outcome.accuracy == with_part.accuracy
    assert outcome.validation < 0.5


def idx(array: np.ndarray) -> bytes:
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return b"\0\0\x08" + bytes([array.ndim]) + shape + array.astype(np.uint8).tobytes()


def folder_of(place: Path, *, zipped: bool) -> Path:
    images = np.arange(2 * 9).reshape(2, 3, 3)
    place.mkdir(parents=True)
    for name, file in data_sets.IDX_FILES.items():
        content = idx(images if name.startswith("x") else np.array([0, 1]))
        if zipped:
            (place / f"{file}.gz").write_bytes(gzip.compress(content))
        else:
            (place / file).write_bytes(content)
    return place


@pytest.mark.parametrize("zipped", [True, False])
def test_the_files_of_mnist_are_read_where_a_name_looks_for_them(
    zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no data set mnist: there is no data.mnist\.npz nor"):
        data_sets.load("mnist")
    folder = folder_of(tmp_path / "data" / "MNIST" / "raw", zipped=zipped)
    data = data_sets.load("mnist")
    assert data.images.shape == (2, 9)
    assert float(data.images.max()) == pytest.approx(17 / 255)
    assert data.labels.tolist() == [0, 1]
    assert torch.equal(data_sets.load(str(folder)).test_images, data.test_images)
    assert len(data_sets.files("mnist")) == 4


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not an IDX file of bytes"),
        (b"\0\0\x0d\x01\0\0\0\x01a", "not an IDX file of bytes"),
        (b"\0\0\x08\x03\0\0\0\x01", "not an IDX file of bytes"),
        (idx(np.zeros((2, 3, 3)))[:-1], "should hold 2 x 3 x 3 bytes, but holds 17"),
    ],
)
def test_a_damaged_file_of_mnist_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "here", zipped=False)
    (folder / data_sets.IDX_FILES["x_train"]).write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        data_sets.load(str(folder))
    (folder / data_sets.IDX_FILES["x_train"]).unlink()
    with pytest.raises(ConfigError, match="there is neither"):
        data_sets.load(str(folder))
