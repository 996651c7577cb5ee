"""Configurations of ByzFL's benchmark as options of the command."""

from __future__ import annotations

import copy
import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gossip.aggregators import registry
from gossip.errors import ConfigError
from gossip.launch.bench import byzfl_config
from gossip.launch.bench.learning import read_attack
from gossip.launch.bench.robustness import robustness
from gossip.launch.bench.splits import read_split
from gossip.launch.cli import app

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
        "seeds": 2,
        "split": ["gamma:1.0", "gamma:0.33"],
        "hidden": 100,
        "lr": 0.1,
        "sender": "momentum:beta=0.9",
        "batch": 25,
        "rules": [
            "clipping:radius=2.0+nnm+rfa:nu=0.2,steps=3",
            "clipping:radius=2.0+nnm+trimmed_mean",
        ],
        "attacks": ["ipm*1", "alie*0.5", "gaussian*1.0", "optimal_ipm"],
    }
    assert set(options) <= set(inspect.signature(robustness).parameters)


def test_sizes_and_the_declared_f_are_byzfls(tmp_path: Path) -> None:
    declared = read(tmp_path, ("benchmark_config", "tolerated_f", [1, 2]))
    assert (declared["n"], declared["f"], declared["declared_f"]) == (
        [6, 6, 7],
        [1, 1, 2],
        [1, 2, 2],
    ), "fewer than lie are never declared"
    among = read(tmp_path, ("benchmark_config", "set_honest_clients_as_clients", True))
    assert (among["n"], among["f"]) == ([5, 5], [1, 2]), "the liars are among the five"


def test_lists_of_pre_aggregations_are_each_tried(tmp_path: Path) -> None:
    chains = [[{"name": "NNM"}], [{"name": "Bucketing", "parameters": {"s": 2}}], []]
    options = read(tmp_path, ("", "pre_aggregators", chains), ("", "aggregator", {"name": "Krum"}))
    assert options["rules"] == ["nnm+krum", "bucketing:s=2+krum", "krum"]


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


@pytest.mark.parametrize(
    ("section", "key", "value", "says"),
    [
        ("benchmark_config", "training_algorithm", {"name": "FedAvg"}, "training_algorithm = "),
        ("benchmark_config", "training_seed", 7, "benchmark_config.training_seed = 7 cannot"),
        ("benchmark_config", "size_train_set", 0.8, "size_train_set = 0.8"),
        ("benchmark_config", "data_distribution", [{"name": "odd"}], "data_distribution = "),
        ("benchmark_config", "surprise", 1, "benchmark_config.surprise = 1 cannot be taken over"),
        ("model", "name", "cnn_mnist", 'model.name = "cnn_mnist" cannot be taken over'),
        ("model", "learning_rate", [0.1, 0.2], "model.learning_rate = [0.1, 0.2]"),
        ("model", "learning_rate_decay", 0.5, "model.learning_rate_decay = 0.5"),
        ("honest_clients", "weight_decay", 0.0001, "honest_clients.weight_decay = 0.0001"),
        ("", "aggregator", {"name": "MoNNA", "parameters": {"idx": 0}}, "aggregator = "),
        ("", "aggregator", {"name": "TrMean", "parameters": {"g": 1}}, "aggregator: g of TrMean"),
        ("", "attack", {"name": "Mimic"}, "attack = "),
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


def test_the_command_runs_a_configuration_and_its_page_names_the_options(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(200) % 4
    images = np.eye(4)[labels] + 0.2 * generator.normal(size=(200, 4))
    np.savez(
        tmp_path / "few.npz", x_train=images, y_train=labels, x_test=images[:40], y_test=labels[:40]
    )
    given = copy.deepcopy(GIVEN)
    given["attack"] = {"name": "SignFlipping"}
    given["benchmark_config"]["f"] = 1
    path, page = tmp_path / "config.json", tmp_path / "page.md"
    path.write_text(json.dumps(given))
    words = ["bench", "robustness", "--config", path, "--into", tmp_path / "runs", "--no-plot"]
    data = ["--data", tmp_path / "few.npz"]

    def bench(*more: object) -> str:
        called = map(str, [*words, *more])
        return CliRunner().invoke(app, list(called), catch_exceptions=False).output

    with pytest.raises(ConfigError, match="names data that are not here"):
        bench()
    with pytest.raises(ConfigError, match=r"--rounds is given beside .*config.json, which sets it"):
        bench(*data, "--rounds", 7)
    said = bench(*data, "--out", page)
    assert "## f = 1 of 6, `gamma:1.0`" in said
    assert "## f = 1 of 6, `gamma:0.33`" in said
    assert "--rounds 6 " in page.read_text("utf-8")
    assert "--config" not in page.read_text("utf-8")
    assert "shared among the honest as each table says" in page.read_text("utf-8").replace(
        "\n", " "
    )
