"""Models and data sets of the robustness table."""

from __future__ import annotations

import dataclasses
import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from gossip.errors import ConfigError, UnknownName
from gossip_lab.bench import data_sets, models
from gossip_lab.bench.learning import Trial, train


def stripes(samples: int = 60) -> data_sets.TrainingData:
    """Images of 28 by 28 of three classes: a bright stripe at another height."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(samples) % 3
    images = 0.2 * torch.rand(samples, 28, 28, generator=generator)
    for sample, label in enumerate(labels.tolist()):
        images[sample, 4 + 8 * label : 8 + 8 * label] = 1.0
    flat = images.flatten(1)
    return data_sets.TrainingData(flat[20:], labels[20:], flat[:20], labels[:20])


@pytest.mark.parametrize("name", models.names())
def test_gradients_of_many_workers_are_the_change_of_each_ones_loss(name: str) -> None:
    data, model = stripes(), models.make(name, 784, 3, 8, seed=1)
    images, labels = data.images[:12].view(3, 4, 784), data.labels[:12].view(3, 4)
    rows = model.gradients(images, labels)
    assert rows.shape == (3, len(model.parameters))
    for worker, row in enumerate(rows):
        step = 1e-2 * row / row.norm()
        there, back = (
            model.loss(images[worker], labels[worker], sign * step) for sign in (-1.0, 1.0)
        )
        assert (there - back) / 2e-2 == pytest.approx(float(row.norm()), rel=0.05)


def test_logistic_regression_is_one_layer() -> None:
    model = models.make("logreg_mnist", 784, 10, 32, seed=3)
    twin = torch.nn.Linear(784, 10)
    torch.nn.utils.vector_to_parameters(model.parameters, twin.parameters())
    images = torch.rand(6, 784)
    expected = twin((images - models.MEAN) / models.DEVIATION)
    torch.testing.assert_close(model.logits(images), expected)


def test_the_convolutional_model_is_byzfls() -> None:
    model = models.make("cnn_mnist", 784, 10, 32, seed=3)
    twin = torch.nn.Sequential(
        torch.nn.Conv2d(1, 20, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(20, 50, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(800, 500), torch.nn.ReLU(), torch.nn.Linear(500, 10),
    )  # fmt: skip
    torch.nn.utils.vector_to_parameters(model.parameters, twin.parameters())
    data = stripes()
    standard = ((data.images - 0.1307) / 0.3081).view(-1, 1, 28, 28)
    assert torch.allclose(model.logits(data.images), twin(standard), atol=1e-5)
    cross_entropy(twin(standard[:8]), data.labels[:8]).backward()
    expected = torch.cat([p.grad.flatten() for p in twin.parameters() if p.grad is not None])
    found = model.gradients(data.images[None, :8], data.labels[None, :8])[0]
    assert torch.allclose(found, expected, atol=1e-5)


def test_more_images_than_go_through_at_once_are_all_answered() -> None:
    model = models.make("fc_mnist", 784, 3, 8, seed=0)
    images = torch.rand(2 * models.AT_ONCE + 7, 784)
    assert torch.allclose(model.logits(images)[-5:], model.logits(images[-5:]), atol=1e-6)


@pytest.mark.parametrize("name", models.names())
def test_each_model_learns(name: str) -> None:
    trial = Trial("mean", "none", 3, 0, rounds=40, batch=8, lr=0.1, hidden=8, model=name)
    accuracy = train(trial, stripes()).accuracy
    assert accuracy is not None
    assert accuracy > 0.9


def test_a_model_that_is_not_there_or_not_for_such_images_is_told() -> None:
    with pytest.raises(UnknownName, match="cnn_mnits"):
        models.make("cnn_mnits", 784, 10, 8, seed=0)
    with pytest.raises(ConfigError, match="28 by 28, and these have 64 numbers each"):
        models.make("cnn_mnist", 64, 10, 8, seed=0)


def test_a_weight_decay_shrinks_what_nobody_pulls_at() -> None:
    trial = Trial("mean", "zero", 3, 2, rounds=30, batch=4, lr=0.5, hidden=8)
    decayed = Trial("mean", "zero", 3, 2, rounds=30, batch=4, lr=0.5, hidden=8, weight_decay=1.9)
    plain, shrunk = train(trial, stripes()).accuracy, train(decayed, stripes()).accuracy
    assert plain is not None
    assert shrunk is not None
    assert plain > 0.9 > shrunk


def test_a_curve_has_a_test_every_so_many_rounds_and_none_is_made_unasked() -> None:
    trial = Trial("mean", "none", 3, 0, rounds=10, batch=8, lr=0.1, hidden=8, every=4)
    curve = train(trial, stripes()).curve
    assert [made for made, _ in curve] == [4, 8]
    assert all(0 <= accuracy <= 1 for _, accuracy in curve)
    assert train(Trial("mean", "none", 3, 0, rounds=10, batch=8, hidden=8), stripes()).curve == ()


def test_the_curve_of_a_model_that_is_lost_goes_on_at_nothing() -> None:
    trial = Trial("mean", "none", 3, 0, rounds=60, batch=8, lr=1e30, hidden=8, every=20)
    outcome = train(dataclasses.replace(trial, weight_decay=1e30), stripes())
    assert outcome.accuracy == 0.0
    assert outcome.curve == ((20, 0.0), (40, 0.0), (60, 0.0))


def test_what_is_held_out_is_tested_on_and_not_trained_on() -> None:
    data = stripes()
    trial = Trial("mean", "none", 3, 0, rounds=20, batch=8, lr=0.1, hidden=8)
    held = Trial("mean", "none", 3, 0, rounds=20, batch=8, lr=0.1, hidden=8, validation=0.25)
    assert train(trial, data).validation is None
    with_part = train(held, data)
    assert with_part.validation is not None
    assert with_part.validation > 0.5
    # Labels that are wrong in the held out part alone would show in its accuracy only.
    order = torch.randperm(40, generator=models.generator_of("validation/0"))
    labels = data.labels.clone()
    labels[order[:10]] = (labels[order[:10]] + 1) % 3
    spoilt = data_sets.TrainingData(data.images, labels, data.test_images, data.test_labels)
    outcome = train(held, spoilt)
    assert outcome.accuracy == with_part.accuracy
    assert outcome.validation is not None
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
        (b"", "no IDX file of bytes"),
        (b"\0\0\x0d\x01\0\0\0\x01a", "no IDX file of bytes"),
        (b"\0\0\x08\x03\0\0\0\x01", "no IDX file of bytes"),
        (idx(np.zeros((2, 3, 3)))[:-1], "should hold 2 x 3 x 3 bytes, and holds 17"),
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
