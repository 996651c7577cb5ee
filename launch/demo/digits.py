"""Training script of ``gossip demo``: a small network on handwritten digits. Plain PyTorch with
gossip's five lines. It also runs alone.

python launch/demo/digits.py --rounds 300          a swarm of one
gossip run -n 4 launch/demo/digits.py              four peers

Data: the 1,797 test images of Alpaydin, Kaynak 1998, "Optical Recognition of Handwritten Digits",
UCI Machine Learning Repository, CC BY 4.0; scikit-learn contains the same images.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import gossip

TEST_SAMPLES = 360
SPLIT_SEED = 20
TABLE = Path(__file__).with_name("digits.gz")
"""One row of 65 bytes per image: 64 grey values of 0 to 16, and the digit."""


@dataclass(frozen=True, slots=True)
class Digits:
    """1437 images for training and 360 for testing: ``(n, 64)`` float32 in [0, 1], labels ``(n,)``
    int64."""

    train: TensorDataset
    test_images: Tensor
    test_labels: Tensor


def load_digits() -> Digits:
    """Return the digits, with the same split on all machines."""
    table = torch.tensor(list(gzip.decompress(TABLE.read_bytes()))).view(-1, 65)
    images, labels = table[:, :-1].to(torch.float32) / 16, table[:, -1]
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SPLIT_SEED))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    return Digits(TensorDataset(images[train], labels[train]), images[test], labels[test])


def make_model() -> nn.Sequential:
    """Return a new model with 17,226 parameters."""
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def make_optimizer(model: nn.Module, lr: float) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


@torch.no_grad()
def test(model: nn.Module, digits: Digits) -> tuple[float, float]:
    """Return (accuracy, loss) on the test images."""
    logits = model(digits.test_images)
    accuracy = (logits.argmax(dim=1) == digits.test_labels).float().mean()
    return float(accuracy), float(cross_entropy(logits, digits.test_labels))


def state_digest(state: dict[str, Tensor]) -> str:
    """Return the blake2b digest of names and bytes. Models that are equal bit for bit have equal
    digests."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        digest.update(name.encode() + b"\0" + state[name].detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def save_final(folder: Path, model: nn.Module, round_id: int) -> None:
    """Write ``final.safetensors``, with the digest of its content."""
    from safetensors.torch import save_file

    state = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        state, folder / "final.safetensors", {"digest": state_digest(state), "round": str(round_id)}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small network on the digits.")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32, help="samples of one peer in one round")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--log-every", type=int, default=10, help="rounds between two tests")
    options = parser.parse_args()

    peer = gossip.init()
    digits = load_digits()
    model = make_model()
    optimizer = make_optimizer(model, options.lr)
    images, labels = digits.train.tensors

    def judge() -> Tensor:
        """Return the loss on a random mini-batch. Rules with a judge rate updates by this loss."""
        chosen = torch.randint(len(images), (options.batch,))
        return cross_entropy(model(images[chosen]), labels[chosen])

    model, optimizer = peer.prepare(model, optimizer, judge=judge)
    loader = peer.shard(DataLoader(digits.train, batch_size=options.batch, shuffle=True))
    while peer.round < options.rounds and not peer.finished:
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            due = peer.round % options.log_every == 0
            if due:
                peer.log(loss=loss.item())
            optimizer.step()
            if due:
                accuracy, test_loss = test(model, digits)
                peer.log(accuracy=accuracy, test_loss=test_loss)
            if peer.round >= options.rounds:
                break
    accuracy, test_loss = test(model, digits)
    peer.log(accuracy=accuracy, test_loss=test_loss)
    if peer.run_dir is None:
        print(json.dumps({"rounds": peer.round, "accuracy": accuracy, "loss": test_loss}))
    else:
        save_final(peer.run_dir / f"peer-{peer.id}", model, peer.round)
    peer.close()


if __name__ == "__main__":
    main()
