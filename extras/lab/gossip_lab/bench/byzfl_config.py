"""Configurations of ByzFL's benchmark, read as options of ``gossip bench robustness``.

    options = read(Path("config.json"))  # {"rules": ["nnm+trimmed_mean"], "n": [11], "f": [1], ...}

What it says of the training and cannot be taken over is refused by its name. What decides only
where and how it is run and recorded is left aside: ``NO_MATTER``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

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
"""ByzFL's ``SignFlipping`` sends the negated mean of the honest, as ``ipm*1`` does."""
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
"""ByzFL's ``iid`` cuts the samples into parts, where ours has everybody draw from all."""
MODELS = ("cnn_mnist", "fc_mnist", "logreg_mnist")
"""Its models that there are here, under the same names."""
DATA_SETS = {"mnist": "mnist"}
"""Its data sets that are learnt as they are; others it mirrors and cuts at random."""
SIZE_TRAIN_SET = 0.8
"""ByzFL's default share of the training samples. The other samples serve to choose settings."""
NO_MATTER = {
    "benchmark_config": ("device", "nb_workers"),
    "evaluation_and_results": (
        "evaluation_delta",
        "batch_size_evaluation",
        "evaluate_on_test",
        "store_per_client_metrics",
        "store_models",
        "data_folder",
        "results_directory",
    ),
    "model": ("nb_labels",),
}
"""Keys that are ignored: they set where to run and what to record, or repeat what the data set
determines."""
DEFAULT_SPLIT = {"name": "iid"}


def read(path: Path) -> dict[str, Any]:
    """Options of ``gossip bench robustness`` by name.

    Raises: ConfigError: It cannot be read, or something in it cannot be taken over, which is named.
    """
    try:
        given = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}", "give a config.json of ByzFL") from error
    if not isinstance(given, dict):
        raise ConfigError(f"{path} is no configuration of ByzFL: it holds no object")
    whole = _Section("", given)
    options = {
        **_clients(whole.section("honest_clients")),
        **_benchmark(whole.section("benchmark_config")),
        **_model(whole.section("model")),
        "rules": _rules(whole.pop_list("aggregator", {"name": "Average"}), whole),
        "attacks": [_attack(one) for one in whole.pop_list("attack", {"name": "NoAttack"})],
    }
    whole.section("evaluation_and_results").done()
    whole.done()
    return options


class _Section:
    """One object of the file. What was not taken of it in the end is refused."""

    def __init__(self, name: str, given: Mapping[str, Any]) -> None:
        self.name, self.left = name, dict(given)
        for key in NO_MATTER.get(name, ()):
            self.left.pop(key, None)

    def pop_value(self, key: str, default: Any) -> Any:
        return self.left.pop(key, default)

    def pop_single(self, key: str, default: Any) -> Any:
        """A value, or a list of one."""
        value = self.pop_value(key, default)
        if isinstance(value, list):
            if len(value) != 1:
                raise _refused(f"{self.name}.{key}", value, "one value at a time, in files apart")
            return value[0]
        return value

    def pop_list(self, key: str, default: Any) -> list[Any]:
        """One value or more."""
        values = _listed(self.pop_value(key, default))
        if not values:
            where = f"{self.name}.{key}" if self.name else key
            raise _refused(where, values, "give at least one")
        return values

    def only(self, key: str, *allowed: Any) -> None:
        """Refuses any other value than these, of which the first is the default."""
        value = self.pop_single(key, allowed[0])
        if value not in allowed:
            words = " or ".join(map(str, allowed))
            raise _refused(f"{self.name}.{key}", value, f"there is only {words} here")

    def section(self, key: str) -> _Section:
        value = self.pop_value(key, {})
        if not isinstance(value, dict):
            raise _refused(key, value, "it is to be one object")
        return _Section(key, value)

    def done(self) -> None:
        for key, value in self.left.items():
            where = f"{self.name}.{key}" if self.name else key
            raise _refused(where, value, "leave it out")


def _refused(where: str, value: Any, hint: str) -> ConfigError:
    return ConfigError(f"{where} = {json.dumps(value)} cannot be taken over from ByzFL", hint)


def _benchmark(section: _Section) -> dict[str, Any]:
    section.only("nb_data_distribution_seeds", 1)
    size = section.pop_single("size_train_set", SIZE_TRAIN_SET)
    if not isinstance(size, int | float) or not 0.1 <= size <= 1:
        raise _refused("benchmark_config.size_train_set", size, "give a share from 0.1 to 1")
    options = {
        **_sizes(section),
        **_algorithm(section),
        "first_seed": section.pop_single("training_seed", 0),
        "split_seed": section.pop_single("data_distribution_seed", 0),
        "rounds": section.pop_single("nb_steps", 1000),
        "seeds": section.pop_single("nb_training_seeds", 1),
        "validation": round(1 - size, 9),
        "split": [
            text
            for one in section.pop_list("data_distribution", DEFAULT_SPLIT)
            for text in _split(one)
        ],
    }
    section.done()
    return options


def _algorithm(section: _Section) -> dict[str, Any]:
    """Local steps of plain SGD, where it is FedAvg with all clients in each round. Its clients
    leave out their momentum then."""
    where = "benchmark_config.training_algorithm"
    given = section.pop_single("training_algorithm", {"name": "DSGD"})
    name, parameters = _named(where, given, {"DSGD": "", "FedAvg": ""})
    if name == "DSGD":
        return {}
    steps = parameters.pop("local_steps_per_client", 1)
    if parameters.pop("proportion_selected_clients", 1.0) != 1:
        raise _refused(where, given, "all clients take part here: proportion_selected_clients 1")
    _nothing_left(where, name, parameters)
    return {"local_steps": [steps], "outer": ["mean"], "sender": [""]}


def _sizes(section: _Section) -> dict[str, Any]:
    """``n``, ``f`` and ``declared_f`` of each table."""
    honest = section.pop_list("nb_honest_clients", 10)
    byzantine = section.pop_list("f", 0)
    declared = section.pop_value("tolerated_f", None)
    inclusive = section.pop_single("set_honest_clients_as_clients", False)
    sizes = [
        (clients if inclusive else clients + f, f, told)
        for clients, f in product(honest, byzantine)
        for told in ([f] if declared is None else _listed(declared))
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


def _split(given: Any) -> list[str]:
    where = "benchmark_config.data_distribution"
    form = SPLITS.get(given.get("name", "iid")) if isinstance(given, dict) else None
    if form is None:
        raise _refused(where, given, f"there are {', '.join(SPLITS)}")
    numbers = _listed(given.get("distribution_parameter", 1.0))
    return list(dict.fromkeys(form.format(number) for number in numbers))


def _model(section: _Section) -> dict[str, Any]:
    name = section.pop_single("name", "cnn_mnist")
    if name not in MODELS:
        raise _refused("model.name", name, f"there is only {', '.join(MODELS)} here")
    data = section.pop_single("dataset_name", "mnist")
    if data not in DATA_SETS:
        raise _refused(
            "model.dataset_name",
            data,
            f"there is only {', '.join(DATA_SETS)} here; name that and give another with --data",
        )
    section.only("loss", "NLLLoss", "CrossEntropyLoss")
    section.only("optimizer_name", "SGD")
    decay = section.pop_single("learning_rate_decay", 1.0)
    milestones = section.pop_value("milestones", [])
    options = {
        "lr_decay": decay,
        "milestones": _listed(milestones) if decay != 1 else [],
        "model": name,
        "data": DATA_SETS[data],
        "lr": section.pop_list("learning_rate", 0.1),
    }
    section.done()
    return options


def _clients(section: _Section) -> dict[str, Any]:
    betas = section.pop_list("momentum", 0.9)
    options = {
        "sender": [f"momentum:beta={beta}" if beta else "" for beta in betas],
        "weight_decay": section.pop_list("weight_decay", 0.0),
        "batch": section.pop_single("batch_size", 32),
    }
    section.done()
    return options


def _rules(aggregators: list[Any], whole: _Section) -> list[str]:
    before = whole.pop_value("pre_aggregators", [])
    # A list of lists: each of them once.
    chains = before if before and isinstance(before[0], list) else [before]
    return [
        "+".join([*(_rule("pre_aggregators", one) for one in chain), _rule("aggregator", rule)])
        for rule in aggregators
        for chain in chains
    ]


def _rule(where: str, given: Any) -> str:
    name, parameters = _named(where, given, RULES)
    parameters.pop("f", None)  # it is told the declared one, as here
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


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
