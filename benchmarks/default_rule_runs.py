"""Cost of the default rule in real runs while nothing is wrong.

Four peers train on the digits for 150 rounds, each with data of its own (equal, Dirichlet(0.1),
sorted), with ``mean`` and with the default rule.

    python benchmarks/default_rule_runs.py --seeds 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from digits_train import digits, mlp
from torch.nn.functional import cross_entropy

import gossip
from gossip_lab.bench import splits

PEERS, ROUNDS, BATCH = 4, 150, 32
TEXT_STEPS = 400
SPLITS = ("iid", "dirichlet:0.1", "sorted")
RULES = {"mean": ["--aggregator", "mean"], "default": []}


def train(seed: int, split: str, result: Path) -> None:
    """One peer. Peer 0 writes the accuracy, that on the worst class, and the weights."""
    data, test_x, test_y = digits()
    images, labels = data.tensors
    peer = gossip.init()
    torch.manual_seed(seed)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = peer.prepare(model, optimizer)
    own = splits.split(split, labels, PEERS, BATCH, seed)[peer.id]
    for step in peer.steps(ROUNDS):
        chance = torch.Generator().manual_seed(seed * 10**6 + 1000 * peer.id + step)
        chosen = own[torch.randint(len(own), (BATCH,), generator=chance)]
        optimizer.zero_grad()
        cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    if peer.id == 0:
        with torch.no_grad():
            right = model(test_x).argmax(dim=1) == test_y
        by_class = [float(right[test_y == digit].float().mean()) for digit in range(10)]
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        found = float(right.float().mean()), min(by_class), weights.tolist()
        result.write_text(json.dumps(found))


def play(folder: Path, seed: int, split: str, rule: str) -> tuple[float, float, list[float]]:
    result = folder / f"{split}-{seed}-{rule}.json"
    start([__file__, "--peer", split, str(seed), str(result)], result, seed, rule)
    accuracy, worst, weights = json.loads(result.read_text())
    return accuracy, worst, weights


def play_text(folder: Path, seed: int, text: Path, rule: str) -> float:
    """Return the validation loss of the transformer over characters."""
    result, script = folder / f"text-{seed}-{rule}.json", Path(__file__).with_name("char_gpt.py")
    words = [script, "--text", text, "--steps", TEXT_STEPS, "--result", result]
    start([str(word) for word in words], result, seed, rule)
    return float(json.loads(result.read_text())["validation"])


def start(script: list[str], result: Path, seed: int, rule: str) -> None:
    command = [sys.executable, "-P", "-m", "gossip.launch.cli", "run", "-n", str(PEERS)]
    options = ["--deterministic", "--seed", str(seed), "--run-dir", str(result.with_suffix(""))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, *options, *RULES[rule], *script],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--text", type=Path, help="and the transformer of char_gpt.py on this text")
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        train(int(args.peer[1]), args.peer[0], Path(args.peer[2]))
        return
    print(
        "| data | mean | default | difference, points | worst class, difference | equal weights |"
    )
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for split in SPLITS:
            pairs = [
                [play(Path(folder), seed, split, rule) for rule in RULES]
                for seed in range(args.seeds)
            ]
            mean, default = (statistics.mean(pair[at][0] for pair in pairs) for at in (0, 1))
            worst = statistics.mean(pair[1][1] - pair[0][1] for pair in pairs)
            equal = sum(pair[0][2] == pair[1][2] for pair in pairs)
            print(
                f"| {split} | {100 * mean:.1f} | {100 * default:.1f} | "
                f"{100 * (default - mean):+.2f} | {100 * worst:+.2f} | {equal} of {len(pairs)} |",
                flush=True,
            )
        if args.text:
            losses = [
                [play_text(Path(folder), seed, args.text, rule) for rule in RULES]
                for seed in range(args.seeds)
            ]
            print(f"losses on the text, mean and default: {losses}")


if __name__ == "__main__":
    main()
