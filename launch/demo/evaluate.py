"""Evaluates the models of a demo, in another process so that the launcher need not import torch.

Accuracy of the replicas and of their mean:

    python -m gossip.launch.demo.evaluate replicas RUN_DIR 0 1 2

Plain PyTorch without faults, for comparison:

    python -m gossip.launch.demo.evaluate alone RUN_DIR ROUNDS BATCH SEED

Both write ``RUN_DIR/evaluation.json``, and print the number of finished models or rounds to stdout.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from gossip.run import JsonLines, write_json

from .digits import load_digits, make_model, make_optimizer, state_digest, test

LR = 0.05
LOG_EVERY = 10


def replicas(folder: Path, peers: list[int]) -> dict[str, Any]:
    """Return accuracy and loss of each saved replica, and of their mean."""
    digits = load_digits()
    model = make_model()
    states: dict[int, dict[str, Tensor]] = {}
    damaged: list[int] = []
    rounds: dict[str, int] = {}
    for peer in peers:
        path = folder / f"peer-{peer}" / "final.safetensors"
        if not path.is_file():
            continue
        with safe_open(path, framework="pt") as file:
            # ``file`` is not a dict.
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            said = file.metadata() or {}
        # safetensors does not detect a flipped bit; the digest does.
        if said.get("digest") != state_digest(state):
            damaged.append(peer)
            continue
        states[peer], rounds[str(peer)] = state, int(said.get("round", 0))
    found: dict[str, Any] = {
        "schema": "gossip.evaluation/1",
        "damaged": damaged,
        "rounds": rounds,
        "replicas": {},
        "digests": {},
    }
    for done, (peer, state) in enumerate(states.items()):
        print(done, flush=True)
        model.load_state_dict(state)
        accuracy, loss = test(model, digits)
        found["replicas"][str(peer)] = {"accuracy": accuracy, "loss": loss}
        found["digests"][str(peer)] = state_digest(state)
    if states:
        mean = {
            name: torch.stack([s[name].double() for s in states.values()]).mean(0).float()
            for name in next(iter(states.values()))
        }
        model.load_state_dict(mean)
        found["mean_model"], found["loss"] = test(model, digits)
        found["worst_replica"] = min(row["accuracy"] for row in found["replicas"].values())
    return found


def alone(folder: Path, rounds: int, batch: int, seed: int) -> dict[str, Any]:
    """Train in one process without gossip, with as many samples a round as all peers together."""
    torch.set_num_threads(1)
    digits = load_digits()
    torch.manual_seed(seed)
    model = make_model()
    optimizer = make_optimizer(model, LR)
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(digits.train, batch_size=batch, shuffle=True, generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    metrics = JsonLines(folder / "metrics.jsonl", "metrics")
    began, done = time.monotonic(), 0
    while done < rounds:
        for x, y in loader:
            if done == rounds:
                break
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            done += 1
            if done % LOG_EVERY == 0:
                print(done, flush=True)
                accuracy, test_loss = test(model, digits)
                now = {"t": time.monotonic(), "wall": time.time(), "peer": 0}
                metrics.write(
                    {
                        **now,
                        "round": done,
                        "loss": loss.item(),
                        "accuracy": accuracy,
                        "test_loss": test_loss,
                    }
                )
    wall_s = time.monotonic() - began
    accuracy, test_loss = test(model, digits)
    return {
        "schema": "gossip.evaluation/1",
        "mean_model": accuracy,
        "worst_replica": accuracy,
        "loss": test_loss,
        "rounds": {"0": rounds},
        "wall_s": wall_s,
    }


if __name__ == "__main__":
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "replicas":
        write_json(
            folder / "evaluation.json", replicas(folder, [int(peer) for peer in sys.argv[3:]])
        )
    else:
        write_json(folder / "evaluation.json", alone(folder, *map(int, sys.argv[3:6])))
