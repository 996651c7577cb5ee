"""Configurations of ByzFL's benchmark, read as options of ``gossip bench robustness``.

    options = read(Path("config.json"))  # {"rules": ["nnm+trimmed_mean"], "n": [11], "f": [1], ...}

A setting of the training without a counterpart here is rejected by its name. Values of type ``Any``
that are not read set where to run and what to record, or repeat what the data set determines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    ValidationError,
)

from gossip.errors import ConfigError

RULES = {
    "Average": "mean",
    "Median": "median",
    "TrMean": "trimmed_mean",
    "GeometricMedian": "rfa",
    "Krum": "krum",
    "MultiKrum": "multi_krum",
    "CenteredClipping": "centered_clipping",
    "MDA": "mda",
    "Meamed": "meamed",
    "CAF": "caf",
    "SMEA": "smea",
    "NNM": "nnm",
    "Bucketing": "bucketing",
    "Clipping": "clipping",
    "ARC": "arc",
}
PARAMETERS: dict[str, dict[str, tuple[str, float]]] = {
    "GeometricMedian": {"nu": ("nu", 0.1), "T": ("steps", 3)},
    "CenteredClipping": {"L": ("steps", 1), "tau": ("tau", 100.0)},
    "Bucketing": {"s": ("s", 1)},
    "Clipping": {"c": ("radius", 2.0)},
}
"""Options of each rule: ByzFL's name -> the name here and ByzFL's default."""
ATTACKS = {
    "NoAttack": "none",
    "SignFlipping": "ipm*1",
    "InnerProductManipulation": "ipm*{tau}",
    "Optimal_InnerProductManipulation": "optimal_ipm",
    "ALittleIsEnough": "alie*{tau}",
    "Optimal_ALittleIsEnough": "optimal_alie",
    "Inf": "inf",
    "Gaussian": "gaussian*{sigma}",
    "LabelFlipping": "label_flip",
}
"""ByzFL's ``SignFlipping`` sends the negated mean of the honest updates, as ``ipm*1`` does."""
STRENGTHS = {
    "InnerProductManipulation": {"tau": 2.0},
    "ALittleIsEnough": {"tau": 1.5},
    "Gaussian": {"sigma": 1.0},
}
SPLITS = {
    "iid": "gamma:1",
    "extreme_niid": "sorted",
    "gamma_similarity_niid": "gamma:{}",
    "dirichlet_niid": "dirichlet:{}",
}
"""ByzFL's ``iid`` cuts the samples into parts; here every worker draws from all samples."""


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _single(value: Any) -> Any:
    if isinstance(value, list) and len(value) != 1:
        raise ValueError("one value at a time, in files apart")
    return value[0] if isinstance(value, list) else value


T = TypeVar("T")
Many = Annotated[list[T], BeforeValidator(_listed), Field(min_length=1)]
"""One or more values."""
One = Annotated[T, BeforeValidator(_single)]
"""A value, or a list of one."""


class _Section(BaseModel):
    """One object of the file, with ByzFL's defaults. Other keys are rejected."""

    model_config = ConfigDict(extra="forbid")


class _Clients(_Section):
    momentum: Many[float] = [0.9]
    weight_decay: Many[float] = [0.0]
    batch_size: One[int] = 32


class _Benchmark(_Section):
    """``size_train_set``: share of the training samples; the others serve to choose settings."""

    training_algorithm: One[dict[str, Any]] = {"name": "DSGD"}
    nb_steps: One[int] = 1000
    training_seed: One[NonNegativeInt] = 0
    nb_training_seeds: One[int] = 1
    nb_honest_clients: Many[int] = [10]
    f: Many[int] = [0]
    tolerated_f: Annotated[list[int], BeforeValidator(_listed)] | None = None
    set_honest_clients_as_clients: One[bool] = False
    data_distribution_seed: One[NonNegativeInt] = 0
    nb_data_distribution_seeds: One[Literal[1]] = 1
    data_distribution: Many[dict[str, Any]] = [{"name": "iid"}]
    size_train_set: One[Annotated[float, Field(ge=0.1, le=1)]] = 0.8
    device: Any = None
    nb_workers: Any = None


class _Model(_Section):
    """Models that also exist here, under the same names, and data sets that are trained on
    unchanged: ByzFL mirrors and crops others at random."""

    name: One[Literal["cnn_mnist", "fc_mnist", "logreg_mnist"]] = "cnn_mnist"
    dataset_name: One[Literal["mnist"]] = "mnist"
    loss: One[Literal["NLLLoss", "CrossEntropyLoss"]] = "NLLLoss"
    optimizer_name: One[Literal["SGD"]] = "SGD"
    learning_rate: Many[float] = [0.1]
    learning_rate_decay: One[Annotated[float, Field(ge=0, le=1)]] = 1.0
    milestones: Annotated[list[int], BeforeValidator(_listed)] = []
    nb_labels: Any = None


class _Evaluation(_Section):
    evaluation_delta: Any = None
    batch_size_evaluation: Any = None
    evaluate_on_test: Any = None
    store_per_client_metrics: Any = None
    store_models: Any = None
    data_folder: Any = None
    results_directory: Any = None


class _Config(_Section):
    """``pre_aggregators``: a chain, or a list of chains of which each is tried."""

    honest_clients: _Clients = _Clients()
    benchmark_config: _Benchmark = _Benchmark()
    model: _Model = _Model()
    aggregator: Many[dict[str, Any]] = [{"name": "Average"}]
    pre_aggregators: list[Any] = []
    attack: Many[dict[str, Any]] = [{"name": "NoAttack"}]
    evaluation_and_results: _Evaluation = _Evaluation()


def read(path: Path) -> dict[str, Any]:
    """Return the options of ``gossip bench robustness`` by name.

    Raises: ConfigError: It cannot be read, or a setting has no counterpart, which is named.
    """
    try:
        given = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}", "give a config.json of ByzFL") from error
    if not isinstance(given, dict):
        raise ConfigError(f"{path} is no configuration of ByzFL: it holds no object")
    try:
        whole = _Config.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _refused(where, first["input"], first["msg"]) from error
    clients, benchmark, model = whole.honest_clients, whole.benchmark_config, whole.model
    decay = model.learning_rate_decay
    return {
        "sender": [f"momentum:beta={beta}" if beta else "" for beta in clients.momentum],
        "weight_decay": clients.weight_decay,
        "batch": clients.batch_size,
        **_sizes(benchmark),
        **_algorithm(benchmark.training_algorithm),
        "first_seed": benchmark.training_seed,
        "split_seed": benchmark.data_distribution_seed,
        "rounds": benchmark.nb_steps,
        "seeds": benchmark.nb_training_seeds,
        "validation": round(1 - benchmark.size_train_set, 9),
        "split": [text for one in benchmark.data_distribution for text in _split(one)],
        "lr_decay": decay,
        "milestones": model.milestones if decay != 1 else [],
        "model": model.name,
        "data": model.dataset_name,
        "lr": model.learning_rate,
        "rules": _rules(whole.aggregator, whole.pre_aggregators),
        "attacks": [_attack(one) for one in whole.attack],
    }


def _refused(where: str, value: Any, hint: str) -> ConfigError:
    return ConfigError(f"{where} = {json.dumps(value)} cannot be taken over from ByzFL", hint)


def _algorithm(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of FedAvg with all clients in each round: local steps of plain SGD,
    without the momentum of the clients."""
    where = "benchmark_config.training_algorithm"
    name, parameters = _named(where, given, {"DSGD": "", "FedAvg": ""})
    if name == "DSGD":
        return {}
    steps = parameters.pop("local_steps_per_client", 1)
    if parameters.pop("proportion_selected_clients", 1.0) != 1:
        raise _refused(where, given, "all clients take part here: proportion_selected_clients 1")
    _nothing_left(where, name, parameters)
    return {"local_steps": [steps], "outer": ["mean"], "sender": [""]}


def _sizes(benchmark: _Benchmark) -> dict[str, Any]:
    """Return ``n``, ``f`` and ``declared_f`` of each table."""
    byzantine, declared = benchmark.f, benchmark.tolerated_f
    inclusive = benchmark.set_honest_clients_as_clients
    sizes = [
        (clients if inclusive else clients + f, f, told)
        for clients, f in product(benchmark.nb_honest_clients, byzantine)
        for told in ([f] if declared is None else declared)
        if told >= f  # ByzFL leaves out the others, too
    ]
    if not sizes:
        raise ConfigError(
            f"no pair of f and tolerated_f is left: f = {json.dumps(byzantine)}, "
            f"tolerated_f = {json.dumps(declared)}",
            "a pair counts when tolerated_f is at least f, as in ByzFL: raise tolerated_f, or "
            "leave it out",
        )
    return {
        "n": [n for n, _, _ in sizes],
        "f": [f for _, f, _ in sizes],
        "declared_f": None if declared is None else [told for _, _, told in sizes],
    }


def _split(given: dict[str, Any]) -> list[str]:
    where = "benchmark_config.data_distribution"
    form = SPLITS.get(given.get("name", "iid"))
    if form is None:
        raise _refused(where, given, f"there are {', '.join(SPLITS)}")
    numbers = _listed(given.get("distribution_parameter", 1.0))
    return list(dict.fromkeys(form.format(number) for number in numbers))


def _rules(aggregators: list[dict[str, Any]], before: list[Any]) -> list[str]:
    chains = before if before and isinstance(before[0], list) else [before]
    return [
        "+".join([*(_rule("pre_aggregators", one) for one in chain), _rule("aggregator", rule)])
        for rule in aggregators
        for chain in chains
    ]


def _rule(where: str, given: Any) -> str:
    name, parameters = _named(where, given, RULES)
    parameters.pop("f", None)  # it gets the declared one, as here
    options = []
    for theirs, (ours, default) in PARAMETERS.get(name, {}).items():
        value = parameters.pop(theirs, default)
        options.append(f"{ours}={value}")
    _nothing_left(where, name, parameters)
    return RULES[name] + (f":{','.join(options)}" if options else "")


def _attack(given: Any) -> str:
    name, parameters = _named("attack", given, ATTACKS)
    strengths = {
        key: parameters.pop(key, default) for key, default in STRENGTHS.get(name, {}).items()
    }
    if name == "Gaussian" and not parameters.get("mu", 0.0):
        parameters.pop("mu", None)
    _nothing_left("attack", name, parameters)
    return ATTACKS[name].format(**strengths)


def _named(where: str, given: Any, known: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    name = given.get("name") if isinstance(given, dict) else None
    if name not in known:
        raise _refused(where, given, f"there are {', '.join(known)}")
    return str(name), dict(given.get("parameters", {}))


def _nothing_left(where: str, name: str, parameters: Mapping[str, Any]) -> None:
    for key, value in parameters.items():
        raise _refused(f"{where}: {key} of {name}", value, "leave it out")
