"""A small convolutional network on MNIST, or on a part of it for a short run. The folder has
``mnist.npz`` in the format of Keras; nothing is downloaded:

gossip run -n 4 examples/mnist_cnn.py --data path/to/folder
"""

import argparse
import sys
from pathlib import Path
from zipfile import ZipFile

import torch
from numpy.lib.format import read_array
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gossip


def load(folder: Path, part: str, most: int) -> TensorDataset:
    """Return the first images of ``train`` or ``test``, (n, 1, 28, 28) from 0 to 1, with their
    digits."""
    arrays = []
    with ZipFile(folder / "mnist.npz") as files:
        for name in (f"x_{part}.npy", f"y_{part}.npy"):
            with files.open(name) as file:
                arrays.append(torch.from_numpy(read_array(file, allow_pickle=False)[:most]))
    images, digits = arrays
    return TensorDataset(images.float().unsqueeze(1) / 255, digits.long())


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> Tensor:
    images, digits = data.tensors
    return (model(images).argmax(1) == digits).float().mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with mnist.npz")
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    if not (options.data / "mnist.npz").is_file():
        sys.exit(
            f"there is no mnist.npz in {options.data}: keras.datasets.mnist.load_data() gets it"
        )

    torch.manual_seed(0)
    train, test = load(options.data, "train", options.samples), load(options.data, "test", 2000)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    peer = gossip.init()
    model, optimizer = peer.prepare(model, optimizer)
    loader = peer.shard(DataLoader(train, batch_size=32, shuffle=True))
    for epoch in peer.epochs(options.epochs):
        for images, digits in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), digits)
            loss.backward()
            peer.log(loss=loss.item())
            optimizer.step()
        mean = peer.mean(accuracy=accuracy(model, test))
        if peer.is_main:
            print(f"epoch {epoch}: accuracy {mean['accuracy']:.4f}")


if __name__ == "__main__":
    main()
