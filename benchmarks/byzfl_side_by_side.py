"""Cells of ByzFL's default benchmark, each trained by ByzFL itself and by ``gossip bench
robustness``, in one table.

    # some minutes: one f and gamma, two rules, two attacks, two seeds;
    # 60 of the 800 steps, and a sixth of the training samples
    python benchmarks/byzfl_side_by_side.py --data path/to/mnist.npz

Both sides read the same file: ByzFL's default configuration, as its package has it, with fewer
steps and cells. ByzFL's side is its own ``start_training``, unchanged. It needs torchvision, which
would download MNIST; a stand-in reads ``--data`` instead.

Both train on 80 % of the same samples and are tested after the last step on the same ones. They
draw other batches: ByzFL goes through a client's samples epoch by epoch, gossip draws with
replacement. gossip's seeds also change which samples are held out and how the others are split
among the clients. ByzFL draws both once, by its data_distribution_seed: gossip's errors include
that, and those of ByzFL do not.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from gossip_lab.bench.byzfl_config import ATTACKS, RULES
from gossip_lab.bench.robustness_page import percent
from gossip_lab.cells import CellStore, Row, run_cells
from gossip_lab.data_sets import TrainingData, choose_tests, files, load
from gossip_lab.estimates import Estimate
from gossip_lab.pages import markdown_table
from gossip_lab.playground.networks import DEVIATION, MEAN, SIDE
from gossip_lab.rule_sources import content

KNOWN = 4
"""Decimal places of an accuracy that are kept."""


def default_config() -> dict[str, Any]:
    """Return the configuration that ByzFL writes if it finds no ``config.json``. It is read from
    ByzFL's source, because importing that takes torchvision."""
    try:
        package = importlib.metadata.distribution("byzfl")
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit("byzfl is not installed: pip install --no-deps byzfl scipy") from None
    source = Path(str(package.locate_file("byzfl/benchmark/benchmark.py")))
    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "default_config":
            config: dict[str, Any] = ast.literal_eval(node.value)
            return config
    raise SystemExit(f"{source} has no default_config: is it another version than 0.0.11?")


def reduced(options: argparse.Namespace) -> dict[str, Any]:
    """Return the default configuration with the requested cells and steps."""
    config = default_config()
    benchmark, unwanted = config["benchmark_config"], config["evaluation_and_results"]
    benchmark |= {
        "nb_steps": options.rounds,
        "nb_training_seeds": options.seeds,
        "f": options.f,
        "device": "cpu",
        "data_distribution": [
            {"name": "gamma_similarity_niid", "distribution_parameter": options.gamma}
        ],
    }
    unwanted |= {"evaluation_delta": options.rounds, "store_per_client_metrics": False}
    config["aggregator"] = [rule for rule in config["aggregator"] if rule["name"] in options.rules]
    config["attack"] = [one for one in config["attack"] if one["name"] in options.attacks]
    if not (config["aggregator"] and config["attack"]):
        raise SystemExit("the default configuration has no such rule or attack")
    return config


def key_of(options: argparse.Namespace) -> str:
    """Return a key of the number of samples and the content of the file."""
    contents = " ".join(map(content, files(str(options.data))))
    return f"{options.samples}-{blake2b(contents.encode(), digest_size=6).hexdigest()}"


def fewer(options: argparse.Namespace) -> Path:
    """Write a file with this number of training samples, which both sides read."""
    path: Path = options.into / f"first-{key_of(options)}.npz"
    if not path.exists():
        data = load(str(options.data))
        np.savez(
            path,
            x_train=data.images[: options.samples],
            y_train=data.labels[: options.samples],
            x_test=data.test_images,
            y_test=data.test_labels,
        )
    return path


# --- ByzFL's side ---------------------------------------------------------------------------------


class _Images:
    """Stand-in for ``torchvision.datasets.MNIST``."""

    data: TrainingData

    def __init__(self, root: str, train: bool, download: bool, transform: Any) -> None:
        data, self.transform = self.data, transform
        self.images = data.images if train else data.test_images
        self.targets = data.labels if train else data.test_labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, at: int) -> tuple[Any, Any]:
        return self.transform(self.images[at].view(1, SIDE, SIDE)), self.targets[at]


def byzfl_training(data: TrainingData, test_samples: int) -> Any:
    """Return ByzFL's ``start_training``, with stand-ins for unneeded imports."""
    _Images.data = choose_tests(data, test_samples)
    transforms = ModuleType("torchvision.transforms")
    transforms.Compose = _Standard  # type: ignore[attr-defined]
    for name in ("ToTensor", "Normalize", "RandomHorizontalFlip", "RandomCrop"):
        setattr(transforms, name, lambda *given, **options: None)
    datasets = ModuleType("torchvision.datasets")
    datasets.MNIST = _Images  # type: ignore[attr-defined]
    torchvision = ModuleType("torchvision")
    torchvision.datasets = datasets  # type: ignore[attr-defined]
    torchvision.transforms = transforms  # type: ignore[attr-defined]
    sys.modules |= {
        "torchvision": torchvision,
        "torchvision.datasets": datasets,
        "torchvision.transforms": transforms,
        "seaborn": ModuleType("seaborn"),
    }
    return importlib.import_module("byzfl.benchmark.train").start_training


class _Standard:
    """Stand-in for ``torchvision.transforms.Compose``, with the same result for MNIST's images."""

    def __init__(self, steps: Any) -> None:
        pass

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return (image - MEAN) / DEVIATION


@dataclass(frozen=True)
class ByzflCell:
    """One training of ByzFL. ``config``: its configuration, as JSON."""

    f: int
    gamma: float
    rule: str
    attack: str
    seed: int
    config: str
    data: str
    test_samples: int


def byzfl_cells(config: dict[str, Any], options: argparse.Namespace) -> dict[Any, list[float]]:
    """Return the accuracies of the seeds, by f, gamma, rule and attack."""
    cells = []
    given = product(
        options.f, options.gamma, config["aggregator"], config["attack"], range(options.seeds)
    )
    for f, gamma, rule, attack, seed in given:
        one = single(config, f, gamma, rule, attack)
        one["benchmark_config"]["training_seed"] = seed
        text, data = json.dumps(one, sort_keys=True), str(fewer(options))
        cells.append(
            ByzflCell(
                f, gamma, rule["name"], attack["name"], seed, text, data, options.test_samples
            )
        )
    store: CellStore[ByzflCell, Row] = CellStore(options.into / "byzfl")
    found: dict[Any, list[float]] = {}
    for cell, row in run_cells(cells, train_byzfl, store, options.jobs).items():
        accuracies = found.setdefault((cell.f, cell.gamma, cell.rule, cell.attack), [])
        accuracies.append(row["accuracy"])
    return found


def train_byzfl(cell: ByzflCell) -> Row:
    """Return the test accuracy after the last step."""
    torch.set_num_threads(1)
    start_training = byzfl_training(load(cell.data), cell.test_samples)
    one = json.loads(cell.config)
    with tempfile.TemporaryDirectory() as folder:
        one["evaluation_and_results"]["results_directory"] = folder
        start_training(one)
        (tested,) = Path(folder).glob("*/test_accuracy_*.txt")
        last = float(tested.read_text().replace(",", " ").split()[-1])
    return {"accuracy": round(last, KNOWN)}


def single(
    config: dict[str, Any], f: int, gamma: float, rule: dict[str, Any], attack: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings of one training, as ByzFL's ``run_benchmark`` makes them of a
    configuration."""
    one: dict[str, Any] = json.loads(json.dumps(config))
    honest = one["benchmark_config"]["nb_honest_clients"]
    one["benchmark_config"] |= {
        "f": f,
        "tolerated_f": f,
        "nb_workers": honest + f,
        "size_train_set": 0.8,
        "data_distribution": {
            "name": "gamma_similarity_niid",
            "distribution_parameter": gamma,
        },
    }
    one["aggregator"], one["attack"] = json.loads(json.dumps([rule, attack]))
    for part in (one["aggregator"], *one["pre_aggregators"]):
        part["parameters"]["f"] = f
    return one


# --- our side -------------------------------------------------------------------------------------


def gossip_cells(path: Path, options: argparse.Namespace) -> dict[Any, list[float]]:
    """Return the accuracies of ``gossip bench robustness --config``, by f, gamma, rule and
    attack."""
    command = [sys.executable, "-m", "gossip.launch.cli", "bench", "robustness"]
    command += ["--config", str(path), "--data", str(fewer(options)), "--json"]
    command += ["--curves", str(options.rounds), "--test-samples", str(options.test_samples)]
    command += ["--into", str(options.into / "gossip"), "--jobs", str(options.jobs)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    rules = {ours: theirs for theirs, ours in RULES.items()}
    attacks = {ours: theirs for theirs, ours in ATTACKS.items()}
    found: dict[Any, list[float]] = {}
    for table in json.loads(said):
        gamma = float(table["split"].removeprefix("gamma:"))
        for cell in table["cells"]:
            rule = rules[cell["rule"].rpartition("+")[2].partition(":")[0]]
            last = [curve[-1][1] for curve in cell["curves"]]
            found[table["f"], gamma, rule, attacks[cell["attack"]]] = last
    return found


def table_of(ours: dict[Any, list[float]], theirs: dict[Any, list[float]]) -> list[str]:
    rows = []
    for (f, gamma, rule, attack), accuracies in theirs.items():
        found, known = Estimate(tuple(ours[f, gamma, rule, attack])), Estimate(tuple(accuracies))
        less = f"{100 * (found.mean - known.mean):+.1f}"
        rows.append([str(f), f"{gamma:g}", rule, attack, percent(known), percent(found), less])
    return markdown_table(
        ("f", "gamma", "rule", "attack", "ByzFL", "gossip", "gossip less ByzFL"), rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="mnist.npz, or MNIST's folder")
    parser.add_argument("--into", type=Path, default=Path("runs/byzfl_side_by_side"))
    parser.add_argument("--rounds", type=int, default=60, help="steps; 800 in the configuration")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--f", type=int, nargs="+", default=[1], help="with 10 honest clients")
    parser.add_argument("--gamma", type=float, nargs="+", default=[0.33])
    parser.add_argument("--rules", nargs="+", default=["GeometricMedian", "TrMean"])
    parser.add_argument("--attacks", nargs="+", default=["SignFlipping", "Optimal_ALittleIsEnough"])
    parser.add_argument(
        "--samples", type=int, default=10_000, help="training samples, the first of the file's"
    )
    parser.add_argument("--test-samples", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.into.mkdir(parents=True, exist_ok=True)
    config = reduced(options)
    path = options.into / "config.json"
    path.write_text(json.dumps(config, indent=2) + "\n")
    theirs = byzfl_cells(config, options)
    ours = gossip_cells(path, options)
    print("\n".join(table_of(ours, theirs)))


if __name__ == "__main__":
    main()
