"""MNIST from a file that the user has: nothing is downloaded,
and nothing of it lies in this repository."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import read_array
from torch import Tensor

VARIABLE = "GOSSIP_MNIST"
SHAPES = {
    "x_train": (60000, 28, 28),
    "y_train": (60000,),
    "x_test": (10000, 28, 28),
    "y_test": (10000,),
}
# of the training images, from 0 to 1: what everybody uses for MNIST
MEAN, DEVIATION = 0.1307, 0.3081
HOW_TO = (
    f"Give the file with --data path/to/mnist.npz or in the variable {VARIABLE}. It holds x_train "
    "(60000, 28, 28) uint8, y_train, x_test and y_test in their original order, and is known as "
    "the mnist.npz of Keras: where TensorFlow is installed, keras.datasets.mnist.load_data() "
    "fetches it to ~/.keras/datasets."
)


class NoData(Exception):
    """The file is not there, or is not MNIST. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Mnist:
    """Images ``(samples, 1, 28, 28)`` float32, with mean 0 and deviation 1; labels int64."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def path_of(given: Path | None) -> Path:
    """The file's path: as given, or from the environment.

    Raises: NoData: There is none, or no file is there.
    """
    named = os.environ.get(VARIABLE)
    if given is None and not named:
        raise NoData(f"this needs MNIST, and does not know where it is. {HOW_TO}")
    path = given or Path(named or "")
    if not path.is_file():
        raise NoData(f"there is no file {path}. {HOW_TO}")
    return path.resolve()


def read(path: Path) -> Mnist:
    """Raises: NoData: Something in the file is missing or of another shape."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = set(archive.namelist())
            arrays = {name: _array(archive, name) for name in SHAPES if f"{name}.npy" in inside}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise NoData(f"{path} is not an npz file that can be read: {error}. {HOW_TO}") from error
    for name, shape in SHAPES.items():
        found = arrays[name].shape if name in arrays else None
        if found != shape:
            raise NoData(f"{path}: {name} should have the shape {shape}, and has {found}. {HOW_TO}")
    train, test = (
        torch.from_numpy(arrays[name])
        .unsqueeze(1)
        .to(torch.float32)
        .div_(255)
        .sub_(MEAN)
        .div_(DEVIATION)
        for name in ("x_train", "x_test")
    )
    labels, test_labels = (
        torch.from_numpy(arrays[name].astype(np.int64)) for name in ("y_train", "y_test")
    )
    return Mnist(train, labels, test, test_labels)


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """One array of an npz file. Nothing is unpickled: a file that would need it is refused."""
    with archive.open(f"{name}.npy") as file:
        return read_array(file, allow_pickle=False)
