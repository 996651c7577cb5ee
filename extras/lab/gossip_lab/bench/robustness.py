"""``gossip bench robustness``: the accuracy of rules under attacks, as a table and a heat map."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gossip.errors import ConfigError
from gossip.launch.optional import optional
from gossip.launch.report import counted

from .exchange import Json

if TYPE_CHECKING:
    from .tables import RobustnessTable

COMPOSED = (
    "nnm+krum",
    "nnm+trimmed_mean",
    "nnm+suspicion",
    "bucketing:s=2+geometric_median",
    "arc+geometric_median",
)
"""Combined rules in the table, in addition to all rules of the registry."""
BESIDE = {"ipm": "ipm*10", "alie": "alie*1.5"}
INSTEAD = {
    "sign_flip": "sign_flip*10",
    "every_second": "every_second*10",
    "random_direction": "random_direction*10",
}
"""Attack -> the stronger form that the table has in place of it."""
FAILS_BELOW = 0.9
MAKES_NO_DIFFERENCE = ("jobs", "into", "show", "csv", "latex", "as_json")
"""Options that do not affect the page, and so are left out of the command on it."""
CHOSEN = ("lr", "sender", "weight_decay")
"""Options that may have several values; each rule is then shown with its best value."""


def robustness(
    rules: Annotated[
        list[str] | None, optional("Rules, separated by blanks; all by default. Repeatable.")
    ] = None,
    attacks: Annotated[
        list[str] | None, optional("Attacks, NAME or NAME*STRENGTH; all by default. Repeatable.")
    ] = None,
    n: Annotated[
        list[int], typer.Option(help="Workers, including Byzantine ones. Repeatable, with --f.")
    ] = [  # noqa: B006
        10,
        20,
    ],
    f: Annotated[
        list[int], typer.Option(help="Number of Byzantine workers among the n workers.")
    ] = [  # noqa: B006
        2,
        4,
    ],
    declared_f: Annotated[
        list[int] | None, optional("The f that the rule receives; by default that of --f.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of runs of each cell, each with another seed.")
    ] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="First of the seeds.")] = 0,
    split_seed: Annotated[
        int | None, optional("Seed of the split; by default the seed of each run.", min=0)
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a run.")] = 150,
    batch: Annotated[int, typer.Option(min=1, help="Samples per worker and round.")] = 32,
    lr: Annotated[
        list[float],
        typer.Option(
            help="Learning rate of plain SGD. Repeatable: each rule is shown with its best rate."
        ),
    ] = [0.5],  # noqa: B006
    milestones: Annotated[
        list[int] | None,
        optional("Round from which on --lr is multiplied by --lr-decay. Repeatable."),
    ] = None,
    lr_decay: Annotated[
        float, typer.Option(min=0, max=1, help="Factor of the learning rate at each milestone.")
    ] = 0.1,
    model: Annotated[
        str,
        typer.Option(
            help="mlp, or mlp:64 with 64 hidden units; for images of 28 by 28 small_cnn, or "
            "logreg_mnist, fc_mnist or cnn_mnist of ByzFL."
        ),
    ] = "mlp",
    sender: Annotated[
        list[str] | None,
        optional("Transforms of workers' updates: momentum:beta=0.9+clip:10. Repeatable, as --lr."),
    ] = None,
    weight_decay: Annotated[
        list[float], typer.Option(help="Weight decay of plain SGD. Repeatable, as --lr.")
    ] = [0.0],  # noqa: B006
    validation: Annotated[
        float,
        typer.Option(
            min=0,
            max=0.9,
            help="Share of the training samples to hold out for choosing the best settings.",
        ),
    ] = 0.0,
    reference: Annotated[
        int, typer.Option(min=1, help="Samples per round on which rules with a judge rate updates.")
    ] = 256,
    split: Annotated[
        list[str],
        typer.Option(
            help=(
                "Split among honest workers: iid, sorted, dirichlet:ALPHA, gamma:SHARE. Repeatable."
            )
        ),
    ] = ["iid"],  # noqa: B006
    local_steps: Annotated[
        list[int],
        typer.Option(
            help="Steps that each worker takes by itself in a round; --rounds counts rounds. "
            "Repeatable."
        ),
    ] = [1],  # noqa: B006
    outer: Annotated[
        list[str] | None,
        optional(
            "Outer optimizer after local steps: nesterov:lr=0.7,momentum=0.9 (the default), "
            "heavy_ball, mean. Repeatable."
        ),
    ] = None,
    trust: Annotated[
        bool, typer.Option(help="Use the trust table of a run, which quarantines outliers.")
    ] = False,
    data: Annotated[
        str,
        typer.Option(
            help=(
                "digits, mnist or fashion_mnist in the folder data, an .npz file with x_train, "
                "y_train, x_test, y_test, or a folder with MNIST's files."
            )
        ),
    ] = "digits",
    test_samples: Annotated[
        int, typer.Option(min=0, help="Number of test samples, the same in all runs; 0 means all.")
    ] = 0,
    curves: Annotated[
        int,
        typer.Option(
            min=0, help="Rounds between two points of the curves next to --out; 0 for no curves."
        ),
    ] = 0,
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, help="Processes.")] = 1,
    into: Annotated[Path, typer.Option(help="Folder of finished runs.")] = Path("runs/robustness"),
    out: Annotated[
        Path | None, optional("Write the page (.md) here, and its heat maps next to it.")
    ] = None,
    fails_below: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="A cell fails below this share of the accuracy without an attack."
        ),
    ] = FAILS_BELOW,
    csv: Annotated[Path | None, optional("Write a row for each run here.")] = None,
    record: Annotated[
        Path | None,
        optional("Write a row for each worker and round of each run here: .parquet or .csv."),
    ] = None,
    latex: Annotated[Path | None, optional("Write the tables here, for LaTeX (booktabs).")] = None,
    plot: Annotated[bool, typer.Option(help="Draw heat maps next to --out.")] = True,
    show: Annotated[
        bool, typer.Option("--show", help="Run nothing; print tables of the finished runs.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train with every rule under every attack, and print the accuracies with error bars. After
    Ctrl-C the same command continues."""
    options = locals()
    command = _command(options)
    tables = _tables(options)
    from . import exports, robustness_page
    from .trial_store import run_all, store_of

    for path in (out, csv, latex, record):
        if path is not None:
            robustness_page.check_place(path)
    wanted = [trial for table in tables for trial in table.trials()]
    found = store_of(into, data).read_all(wanted) if show else run_all(wanted, into, data, jobs)
    tables = [dataclasses.replace(table, found=found) for table in tables]
    for table in tables:
        _check_reference(table, into)
    if out is not None:
        head = robustness_page.head(tables, data, command)
        robustness_page.write(out, tables, head, plot)
    exports.write_files(options, tables)
    if as_json:
        print(json.dumps([table.as_data() for table in tables]))
    else:
        parts = [
            [robustness_page.title(table), "", *robustness_page.section(table)] for table in tables
        ]
        print("\n\n".join("\n".join(part) for part in parts))


def _tables(given: Mapping[str, Any]) -> list[RobustnessTable]:
    """Return the tables that the options request. All options are checked before anything runs."""
    from gossip.aggregators import registry, senders
    from gossip_lab import data_sets, splits

    from .tables import RobustnessTable
    from .trial_store import check_model
    from .trials import read_attack, spelt

    n, f, declared = given["n"], given["f"], given["declared_f"] or given["f"]
    _check_numbers(n, f, declared)
    _check_milestones(given)
    choices = _choices(given)
    for each in given["split"]:
        splits.read_split(each)
    steps = _steps(given)
    rules = _words(given["rules"]) or [*registry.names(), *COMPOSED]
    for rule in rules:
        registry.check(rule)
    attacks = [spelt(attack) for attack in _words(given["attacks"])] or every_attack()
    if given["rules"] and not given["show"]:
        _check_options(rules, n, declared, any(each["outer"] for each in steps))
    for attack in attacks:
        read_attack(attack)
    for choice in choices:
        senders.load(choice["sender"])
    if given["out"] is not None and given["plot"]:
        _need(
            "matplotlib",
            "heat maps need matplotlib, which is not installed",
            "pip install matplotlib, or --no-plot",
        )
    _check_record(given["record"])
    if not given["show"]:
        check_model(given["model"], data_sets.load(given["data"]))
    names = ("rounds", "batch", "trust", "model", "reference", "validation")
    shared = {
        **{name: given[name] for name in (*names, "test_samples")},
        "every": given["curves"],
        "milestones": " ".join(map(str, sorted(set(given["milestones"] or ())))),
        "lr_decay": given["lr_decay"] if given["milestones"] else 1.0,
        "split_seed": given["split_seed"],
        "record": given["record"] is not None,
    }
    return [
        RobustnessTable(
            workers,
            attackers,
            told,
            tuple(rules),
            tuple(attacks),
            tuple(range(given["first_seed"], given["first_seed"] + given["seeds"])),
            given["fails_below"],
            {**shared, **taken, "split": each},
            tuple(choices),
        )
        for each in given["split"]
        for taken in steps
        for workers, attackers, told in zip(n, f, declared, strict=True)
    ]


def _check_milestones(given: Mapping[str, Any]) -> None:
    milestones = given["milestones"] or []
    if not all(0 < at < given["rounds"] for at in milestones):
        raise ConfigError(
            f"milestones = {milestones}: each must be a round from 1 to {given['rounds'] - 1}"
        )


def _steps(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each combination of local steps and outer steps. With one local step and
    no outer step, the choice of the outer step makes no difference, so there is one combination."""
    from gossip.aggregators import outer

    after = [outer.load(each).spec for each in given["outer"] or [outer.NESTEROV]]
    combinations = [
        {"local_steps": steps, "outer": spec if steps > 1 or given["outer"] else ""}
        for steps in given["local_steps"]
        for spec in after
    ]
    return [each for at, each in enumerate(combinations) if each not in combinations[:at]]


def _choices(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all combinations of the options of ``CHOSEN``. Each rule is shown with its best
    combination.

    Raises: ConfigError: A value is invalid, or there are several combinations but no held-out
    samples to choose by.
    """
    for lr in given["lr"]:
        if not 0 < lr < math.inf:
            raise ConfigError(f"--lr must be a learning rate above 0, not {lr:g}")
    for decay in given["weight_decay"]:
        if not 0 <= decay < math.inf:
            raise ConfigError(f"--weight-decay is at least 0 and cannot be {decay:g}")
    values = [list(dict.fromkeys(given[name] or [""])) for name in CHOSEN]
    combinations = [dict(zip(CHOSEN, each, strict=True)) for each in product(*values)]
    if len(combinations) > 1 and not given["validation"]:
        raise ConfigError(
            f"{len(combinations)} settings to choose from, but no samples to choose by: chosen by "
            "the test samples a rule would look better than it is",
            "hold out training samples: --validation 0.2",
        )
    return combinations


def _check_numbers(n: Sequence[int], f: Sequence[int], declared: Sequence[int]) -> None:
    if len(n) != len(f):
        raise ConfigError(
            f"{counted(len(n), 'number')} of workers, but {len(f)} of Byzantine workers",
            "set as many --n as --f",
        )
    if len(declared) != len(f):
        raise ConfigError(
            f"{counted(len(f), 'number')} of Byzantine workers, but {len(declared)} declared ones",
            "set as many --declared-f as --f, or none",
        )
    for workers, attackers, told in zip(n, f, declared, strict=True):
        if not 0 <= attackers < workers:
            raise ConfigError(
                f"{attackers} Byzantine of {counted(workers, 'worker')}",
                "use an --f from 0 to less than --n",
            )
        if not 0 <= told < workers:
            raise ConfigError(
                f"--declared-f is {told}, with {counted(workers, 'worker')}",
                "use a --declared-f from 0 to less than --n",
            )


def _check_record(path: Path | None) -> None:
    if path is None:
        return
    if path.suffix not in (".parquet", ".csv"):
        raise ConfigError(f"--record {path}: its name ends neither in .parquet nor in .csv")
    _need(
        "pyarrow",
        "records need pyarrow, which is not installed",
        "pip install pyarrow",
    )


def _check_reference(table: RobustnessTable, into: Path) -> None:
    """Raise ConfigError if the reference accuracy is missing: that of averaging the honest workers
    alone."""
    alone = [table.found[trial] for trial in table.without_attackers() if trial in table.found]
    if why := next((result.refused for result in alone if result.refused), ""):
        raise ConfigError(f"{table.n - table.f} honest workers alone cannot train: {why}")
    if not alone:
        raise ConfigError(
            f"no run has {counted(table.f, 'Byzantine worker')} of {table.n} with these settings "
            f"in {into}",
            "leave out --show to run it",
        )


def _command(given: Mapping[str, Any]) -> str:
    """Return the command line for these arguments of ``robustness``, without options that do not
    affect the page."""
    words = ["gossip", "bench", "robustness"]
    for name, parameter in inspect.signature(robustness).parameters.items():
        value, option = given[name], name.replace("_", "-")
        if name in MAKES_NO_DIFFERENCE or value == parameter.default:
            continue
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [
                word
                for one in (value if isinstance(value, list) else [value])
                for word in (f"--{option}", str(one))
            ]
    return shlex.join(words)


def _check_options(
    rules: Sequence[str], n: Sequence[int], f: Sequence[int], local_steps: bool
) -> None:
    """Check the options of the rules. If n is too small for a rule, no error is raised, and its
    cells show the reason. Raises: ConfigError: A rule's options do not cover the Byzantine workers,
    or do not work with local steps."""
    from gossip.aggregators import registry

    for spec in rules:
        rule = registry.load(spec)
        if local_steps:
            rule.check_model_differences()
        for workers, attackers in zip(n, f, strict=True):
            rule.check(attackers, max(workers, rule.at_least(attackers)))


def every_attack() -> list[str]:
    """Return ``none`` and all attacks on a server. Attacks that send each receiver a different
    update are left out."""
    from gossip.aggregators.attacks import DATA_ATTACKS, KINDS, names

    plain = [name for name in names() if KINDS[name].shape != "apart"]
    beside = [BESIDE[name] for name in plain if name in BESIDE]
    return ["none", *sorted([*(INSTEAD.get(name, name) for name in plain), *DATA_ATTACKS, *beside])]


def _words(given: list[str] | None) -> list[str]:
    return list(dict.fromkeys(word for text in given or () for word in text.split()))


def _need(module: str, what: str, hint: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise ConfigError(what, hint)
