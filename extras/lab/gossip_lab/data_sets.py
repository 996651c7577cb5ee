"""Data sets by name, or from the user's own files. Nothing is downloaded.

digits              of scikit-learn
mnist               in the folder data: mnist.npz, or the files of MNIST itself in MNIST/raw
fashion_mnist       in the folder data: fashion_mnist.npz, or FashionMNIST/raw
path/to/file.npz    arrays x_train, y_train, x_test and y_test
path/to/folder      the files of MNIST, or of a set that has its format, gzipped or not
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from torch import Tensor

from gossip.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIGITS = "digits"
FOLDER = Path("data")
"""Folder of the data sets in ``NAMED``."""
NAMED = {
    "mnist": ("mnist.npz", "MNIST/raw"),
    "fashion_mnist": ("fashion_mnist.npz", "FashionMNIST/raw"),
}
"""Name of a data set -> places to look for it in ``FOLDER``."""
IDX_FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
ARRAYS = tuple(IDX_FILES)
CLASSES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Training and test data: images ``(samples, features)`` float32, labels int64."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1


def load(name: str) -> TrainingData:
    """Return a data set. Pixels from 0 to 255, see ``_range_of``, are scaled to the range 0 to 1.
    Data that are already scaled or standardised are not changed.

    Raises: ConfigError: The data set is not available; the hint names the missing files.
    """
    if name == DIGITS:
        from gossip.launch.demo import load_digits

        digits = load_digits()
        images, labels = digits.train.tensors
        return TrainingData(images, labels, digits.test_images, digits.test_labels)
    path = find(name)
    arrays = _read_folder(path) if path.is_dir() else _read_npz(path)
    if wrong := _wrong_with(arrays):
        raise ConfigError(
            f"{name}: {wrong}",
            f"store one row of numbers and one label for each sample, in {', '.join(ARRAYS)}",
        )
    tensors, scale = [], _range_of(arrays["x_train"])
    for image, label in (ARRAYS[:2], ARRAYS[2:]):
        pixels = torch.from_numpy(arrays[image].astype("float32")).reshape(len(arrays[image]), -1)
        tensors += [
            pixels / scale,
            torch.from_numpy(arrays[label].astype("int64")),
        ]
    return TrainingData(*tensors)


def choose_tests(data: TrainingData, count: int) -> TrainingData:
    """Return the data with only ``count`` test samples, or with all if ``count`` is 0. The choice
    is random, but the same in all runs."""
    if not 0 < count < len(data.test_labels):
        return data
    chosen = torch.randperm(len(data.test_labels), generator=_generator_of("tests"))[:count]
    return replace(data, test_images=data.test_images[chosen], test_labels=data.test_labels[chosen])


def hold_out(data: TrainingData, share: float, seed: int) -> tuple[TrainingData, TrainingData]:
    """Hold out a random share of the training samples. Return the data without them, and then the
    data with the held-out samples as test samples."""
    order = torch.randperm(len(data.labels), generator=_generator_of(f"validation/{seed}"))
    count = int(share * len(order))
    out, left = order[:count], order[count:]
    rest = replace(data, images=data.images[left], labels=data.labels[left])
    return rest, replace(rest, test_images=data.images[out], test_labels=data.labels[out])


def _generator_of(name: str) -> torch.Generator:
    seed = int.from_bytes(blake2b(name.encode(), digest_size=7).digest(), "big")
    return torch.Generator().manual_seed(seed)


def _range_of(images: NDArray[Any]) -> int:
    """Return the divisor that scales images to the range 0 to 1: 255 or 1. It is 255 if no training
    pixel is negative and the largest is above 1 (integers) or above 2 (floats, because scaled
    floats may be slightly above 1)."""
    most = 1 if images.dtype.kind in "biu" else 2
    return 255 if images.min() >= 0 and images.max() > most else 1


def find(name: str) -> Path:
    """Return the file or folder of a set that is not in a package.

    Raises: ConfigError: There is none.
    """
    places = [FOLDER / place for place in NAMED.get(name, ())] or [Path(name)]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        where = " nor ".join(map(str, places))
        raise ConfigError(
            f"no data set {name}: there is no {where}",
            f"set --data to the path of an .npz file with {', '.join(ARRAYS)}, or of a folder with "
            f"{', '.join(IDX_FILES.values())} (or these names with .gz); {DIGITS} needs no file",
        )
    return found


def files(name: str) -> list[Path]:
    """Return the files of a data set. The list is empty for ``digits``, which is in a package, and
    for a missing data set."""
    if name == DIGITS:
        return []
    try:
        path = find(name)
    except ConfigError:
        return []
    return sorted(path.iterdir()) if path.is_dir() else [path]


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays named in ``ARRAYS`` of an ``.npz`` file. Pickled arrays are refused."""
    try:
        with ZipFile(path) as archive:
            arrays = {}
            for name in ARRAYS:
                with archive.open(f"{name}.npy") as file:
                    arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
            return arrays
    except (OSError, BadZipFile, KeyError, ValueError) as error:
        raise ConfigError(
            f"cannot read {path}: {error}",
            f"use {DIGITS!r}, or an .npz file with the arrays {', '.join(ARRAYS)}",
        ) from error


def _read_folder(folder: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays named in ``ARRAYS`` from files in the IDX format, the format of MNIST."""
    arrays = {}
    for name, file in IDX_FILES.items():
        path = next((p for p in (folder / file, folder / f"{file}.gz") if p.is_file()), None)
        if path is None:
            raise ConfigError(
                f"there is neither {folder / file} nor {file}.gz beside it",
                f"the folder of a data set has {', '.join(IDX_FILES.values())}",
            )
        arrays[name] = _read_idx(path)
    return arrays


def _read_idx(path: Path) -> NDArray[Any]:
    """Read an IDX file: two zero bytes, the type (8: unsigned bytes), the number of dimensions, the
    size of each dimension in four bytes, and then the elements.

    Source: LeCun, Cortes, Burges, "The MNIST database of handwritten digits".
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if raw[:3] != b"\0\0\x08" or len(raw) < 4 or len(raw) < 4 + 4 * raw[3]:
        raise ConfigError(f"{path} is not an IDX file of bytes", "use the files of MNIST")
    head = 4 + 4 * raw[3]
    shape = [int(size) for size in np.frombuffer(raw[4:head], ">u4")]
    if len(raw) - head != np.prod(shape, dtype=object):
        raise ConfigError(
            f"{path} should hold {' x '.join(map(str, shape))} bytes, but holds {len(raw) - head}",
            "it is incomplete: download it again",
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def _wrong_with(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the reason why no model can be trained on these arrays, or an empty text if a model
    can."""
    for name, array in arrays.items():
        if (
            array.ndim == 0
            or array.size == 0
            or array.dtype.kind not in "biuf"
            or not np.isfinite(array).all()
        ):
            return (
                f"{name} of shape {array.shape} and type {array.dtype} is empty, or has values "
                "that are not finite"
            )
    for image, label in (ARRAYS[:2], ARRAYS[2:]):
        if arrays[label].shape != (len(arrays[image]),):
            return (
                f"{len(arrays[image])} images in {image} for labels of shape "
                f"{arrays[label].shape} in {label}"
            )
        if (arrays[label] % 1).any() or not 0 <= arrays[label].min() <= arrays[
            label
        ].max() < CLASSES_MAX:
            return f"labels in {label} are whole numbers from 0 to {CLASSES_MAX - 1}"
    here, there = (
        arrays[name].reshape(len(arrays[name]), -1).shape[1] for name in ("x_train", "x_test")
    )
    if here != there:
        return f"{here} numbers to an image in x_train, {there} in x_test"
    if arrays["y_test"].max() > arrays["y_train"].max():
        return (
            f"y_test has the label {arrays['y_test'].max():g}, but y_train none above "
            f"{arrays['y_train'].max():g}"
        )
    return ""
