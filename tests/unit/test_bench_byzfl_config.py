"""Configurations of ByzFL's benchmark as options of the command."""

from __future__ import annotations

import ast
import copy
import importlib.metadata
import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from byzfl_rules import byzfl
from typer.testing import CliRunner

from gossip.aggregators import registry
from gossip.errors import ConfigError
from gossip.launch.cli import app
from gossip_lab.bench import byzfl_config
from gossip_lab.bench.robustness import _with_config, robustness
from gossip_lab.bench.trials import read_attack
from gossip_lab.splits import read_split

# The layout is that of the file that ByzFL writes where it finds none.
GIVEN: dict[str, Any] = {
    "benchmark_config": {
        "training_algorithm": {"name": "DSGD", "parameters": {}},
        "nb_steps": 6,
        "device": "cuda",
        "training_seed": 0,
        "nb_training_seeds": 2,
        "nb_honest_clients": 5,
        "f": [1, 2],
        "data_distribution_seed": 0,
        "nb_data_distribution_seeds": 1,
        "data_distribution": [
            {"name": "gamma_similarity_niid", "distribution_parameter": [1.0, 0.33]}
        ],
    },
    "model": {
        "name": "fc_mnist",
        "dataset_name": "mnist",
        "nb_labels": 10,
        "loss": "NLLLoss",
        "learning_rate": 0.1,
        "learning_rate_decay": 1.0,
        "milestones": [],
    },
    "aggregator": [
        {"name": "GeometricMedian", "parameters": {"nu": 0.2, "T": 3}},
        {"name": "TrMean", "parameters": {}},
    ],
    "pre_aggregators": [{"name": "Clipping", "parameters": {}}, {"name": "NNM", "parameters": {}}],
    "honest_clients": {"momentum": 0.9, "weight_decay": 0.0, "batch_size": 25},
    "attack": [
        {"name": "SignFlipping", "parameters": {}},
        {"name": "ALittleIsEnough", "parameters": {"tau": 0.5}},
        {"name": "Gaussian", "parameters": {"mu": 0.0}},
        {"name": "Optimal_InnerProductManipulation", "parameters": {}},
    ],
    "evaluation_and_results": {"evaluation_delta": 50, "store_models": False},
}


def read(folder: Path, *changes: tuple[str, str, Any]) -> dict[str, Any]:
    """What is read of the file above with ``changes``: section, key, value."""
    given = copy.deepcopy(GIVEN)
    for section, key, value in changes:
        (given[section] if section else given)[key] = value
    path = folder / "config.json"
    path.write_text(json.dumps(given))
    return byzfl_config.read(path)


def test_a_configuration_is_read_as_options_of_the_command(tmp_path: Path) -> None:
    options = read(tmp_path)
    assert options == {
        "n": [6, 7],
        "f": [1, 2],
        "declared_f": None,
        "rounds": 6,
        "batch": 25,
        "seeds": 2,
        "first_seed": 0,
        "split_seed": 0,
        "lr_decay": 1.0,
        "milestones": [],
        "split": ["gamma:1.0", "gamma:0.33"],
        "validation": 0.2,
        "model": "fc_mnist",
        "data": "mnist",
        "lr": [0.1],
        "weight_decay": [0.0],
        "sender": ["momentum:beta=0.9"],
        "rules": [
            "clipping:radius=2.0+nnm+rfa:nu=0.2,steps=3",
            "clipping:radius=2.0+nnm+trimmed_mean",
        ],
        "attacks": ["ipm*1", "alie*0.5", "gaussian*1.0", "optimal_ipm"],
    }
    assert set(options) <= set(inspect.signature(robustness).parameters)


def test_sizes_and_the_declared_f_are_byzfls(tmp_path: Path) -> None:
    declared = read(tmp_path, ("benchmark_config", "tolerated_f", [1, 2]))
    sizes = declared["n"], declared["f"], declared["declared_f"]
    assert sizes == ([6, 6, 7], [1, 1, 2], [1, 2, 2]), "fewer than lie are never declared"
    among = read(tmp_path, ("benchmark_config", "set_honest_clients_as_clients", True))
    assert (among["n"], among["f"]) == ([5, 5], [1, 2]), "the liars are among the five"


def test_lists_of_pre_aggregations_are_each_tried(tmp_path: Path) -> None:
    chains = [[{"name": "NNM"}], [{"name": "Bucketing", "parameters": {"s": 2}}], []]
    options = read(tmp_path, ("", "pre_aggregators", chains), ("", "aggregator", {"name": "Krum"}))
    assert options["rules"] == ["nnm+krum", "bucketing:s=2+krum", "krum"]


def test_lists_of_settings_are_searched_and_what_is_not_said_is_byzfls(tmp_path: Path) -> None:
    lists = [
        ("model", "learning_rate", [0.1, 0.2]),
        ("honest_clients", "momentum", [0.0, 0.9]),
        ("honest_clients", "weight_decay", [0.0001]),
        ("benchmark_config", "size_train_set", 1.0),
    ]
    options = read(tmp_path, *lists)
    assert options["lr"] == [0.1, 0.2]
    assert options["sender"] == ["", "momentum:beta=0.9"]
    assert options["weight_decay"] == [0.0001]
    assert options["validation"] == 0.0
    (tmp_path / "empty.json").write_text("{}")
    plain = byzfl_config.read(tmp_path / "empty.json")
    assert (plain["model"], plain["validation"]) == ("cnn_mnist", 0.2)


def test_byzfls_default_configuration_is_taken_over(tmp_path: Path) -> None:
    byzfl()  # or it says what is missing
    package = importlib.metadata.distribution("byzfl")
    source = Path(str(package.locate_file("byzfl/benchmark/benchmark.py")))
    # It is read from the source: an import takes torchvision.
    (default,) = [
        ast.literal_eval(node.value)
        for node in ast.parse(source.read_text("utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "default_config"
    ]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(default))
    options = byzfl_config.read(path)
    assert options["model"] == "cnn_mnist"
    assert options["split"] == ["gamma:1.0", "gamma:0.66", "gamma:0.33", "gamma:0.0"]
    assert (options["rounds"], options["seeds"]) == (800, 3)
    assert (options["n"], options["f"]) == ([11, 12, 13, 14], [1, 2, 3, 4])
    assert (options["weight_decay"], options["validation"]) == ([0.0001], 0.2)
    assert options["attacks"] == ["ipm*1", "optimal_ipm", "optimal_alie"]


def test_every_name_that_is_taken_over_is_one_of_ours(tmp_path: Path) -> None:
    for name in byzfl_config.RULES:
        before = name in ("NNM", "Bucketing", "Clipping", "ARC")
        rules = read(
            tmp_path,
            ("", "pre_aggregators", [{"name": name}] if before else []),
            ("", "aggregator", {"name": "Average" if before else name}),
        )["rules"]
        registry.check(rules[0])
        registry.load(rules[0]).check(1, 9)
    for name in byzfl_config.ATTACKS:
        read_attack(read(tmp_path, ("", "attack", {"name": name}))["attacks"][0])
    for name in byzfl_config.SPLITS:
        one = {"name": name, "distribution_parameter": 0.5}
        read_split(read(tmp_path, ("benchmark_config", "data_distribution", one))["split"][0])


def test_seeds_milestones_and_fedavg_are_read(tmp_path: Path) -> None:
    parameters = {"proportion_selected_clients": 1.0, "local_steps_per_client": 5}
    averaging = {"name": "FedAvg", "parameters": parameters}
    options = read(
        tmp_path,
        ("benchmark_config", "training_seed", 7),
        ("benchmark_config", "data_distribution_seed", 3),
        ("benchmark_config", "training_algorithm", averaging),
        ("model", "name", "logreg_mnist"),
        ("model", "learning_rate_decay", 0.5),
        ("model", "milestones", [100, 200]),
    )
    assert (options["first_seed"], options["split_seed"]) == (7, 3)
    assert options["model"] == "logreg_mnist"
    assert (options["local_steps"], options["outer"], options["sender"]) == ([5], ["mean"], [""])
    assert (options["lr_decay"], options["milestones"]) == (0.5, [100, 200])
    assert set(options) <= set(inspect.signature(robustness).parameters)


HALF = {"name": "FedAvg", "parameters": {"proportion_selected_clients": 0.5}}


@pytest.mark.parametrize(
    ("section", "key", "value", "says"),
    [
        ("benchmark_config", "training_algorithm", {"name": "FedProx"}, "training_algorithm = "),
        ("benchmark_config", "training_algorithm", HALF, "training_algorithm = "),
        ("benchmark_config", "size_train_set", 0.0, "size_train_set = 0.0"),
        ("benchmark_config", "data_distribution", [{"name": "odd"}], "data_distribution = "),
        ("benchmark_config", "surprise", 1, "benchmark_config.surprise = 1 cannot be taken over"),
        ("model", "name", "ResNet18", 'model.name = "ResNet18" cannot be taken over'),
        ("model", "dataset_name", "cifar10", 'model.dataset_name = "cifar10" cannot be taken'),
        ("", "aggregator", {"name": "MoNNA", "parameters": {"idx": 0}}, "aggregator = "),
        ("", "aggregator", {"name": "TrMean", "parameters": {"g": 1}}, "aggregator: g of TrMean"),
        ("", "attack", {"name": "Mimic"}, "attack = "),
        ("", "attack", [], "attack = [] cannot be taken over"),
        ("", "aggregator", [], "aggregator = [] cannot be taken over"),
        ("benchmark_config", "f", [], "benchmark_config.f = [] cannot be taken over"),
        ("benchmark_config", "tolerated_f", 0, "no pair of f and tolerated_f is left"),
        ("", "attack", {"name": "Gaussian", "parameters": {"mu": 1.0}}, "attack: mu of Gaussian"),
        ("", "surprise", {}, "surprise = {} cannot be taken over"),
    ],
)
def test_what_cannot_be_taken_over_is_named(
    section: str, key: str, value: Any, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        read(tmp_path, (section, key, value))


def test_what_is_no_configuration_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text, says in (("{", "cannot read"), ("[]", "it holds no object")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=says):
            byzfl_config.read(path)


@pytest.mark.usefixtures("forked")
def test_the_command_runs_a_configuration_and_what_is_typed_wins(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(80) % 4
    images = 40 * generator.integers(0, 4, size=(80, 28, 28), dtype=np.uint8)
    images[np.arange(80), labels] = 255
    tests = {"x_test": images[:40], "y_test": labels[:40]}
    np.savez(tmp_path / "few.npz", x_train=images, y_train=labels, **tests)
    given = copy.deepcopy(GIVEN)
    given["model"]["name"] = "cnn_mnist"
    given["attack"] = {"name": "SignFlipping"}
    given["benchmark_config"] |= {"f": 1, "nb_training_seeds": 1}
    given["honest_clients"] |= {"batch_size": 4, "weight_decay": 0.0001}
    path, page = tmp_path / "config.json", tmp_path / "page.md"
    path.write_text(json.dumps(given))
    words = ["bench", "robustness", "--config", path, "--into", tmp_path / "runs", "--no-plot"]
    data = ["--data", tmp_path / "few.npz"]

    def bench(*more: object) -> str:
        called = map(str, [*words, *more])
        return CliRunner().invoke(app, list(called), catch_exceptions=False).output

    with pytest.raises(ConfigError, match=r"no data set mnist: there is no data.mnist.npz nor"):
        bench()
    said = bench(*data, "--out", page, "--rounds", 2)
    assert "## f = 1 of 6, `gamma:1.0`" in said
    assert "## f = 1 of 6, `gamma:0.33`" in said
    told = page.read_text("utf-8").replace("\n", " ")
    for words_ in (
        *("--rounds 2 ", "--model cnn_mnist ", "| `weight_decay` | 0.0001 |"),
        *("| `validation` | 0.2 |", "| `split` | gamma:1.0 or gamma:0.33 |"),
    ):
        assert words_ in told
    assert "--config" not in told


class Typed:
    """Which options were typed."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def get_parameter_source(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(name="COMMANDLINE" if name in self.names else "DEFAULT")


def beside(folder: Path, **typed: Any) -> dict[str, Any]:
    """The options that come of the file above, told the f 2, with those typed beside it."""
    read(folder, ("benchmark_config", "tolerated_f", 2))
    options = {"n": [10, 20], "f": [2, 4], "declared_f": None, **typed}
    return _with_config(folder / "config.json", {**options, "context": Typed(*typed)})


def test_numbers_of_workers_are_typed_together_or_not_at_all(tmp_path: Path) -> None:
    """With the file's n an --f alone would leave it fewer honest workers than it has."""
    for typed in ({"f": [3]}, {"n": [9]}, {"declared_f": [3]}, {"n": [9], "declared_f": [3]}):
        with pytest.raises(ConfigError, match=r"--config, which has numbers of workers for its"):
            beside(tmp_path, **typed)
    both = beside(tmp_path, n=[9], f=[3])
    assert (both["n"], both["f"], both["declared_f"]) == ([9], [3], None), "the true f is told"
    of_file = beside(tmp_path)
    assert (of_file["n"], of_file["f"], of_file["declared_f"]) == ([6, 7], [1, 2], [2, 2])
